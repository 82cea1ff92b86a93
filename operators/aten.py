"""The one module that touches torch below its documented surface: out= variants and backward kernels of torch.ops.aten.

Everything here exists in torch 2.11 and later; a torch that renames an overload fails at import, naming it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_aten = torch.ops.aten

threshold_backward: Callable[..., Tensor] = _aten.threshold_backward.grad_input
"""(gradient, result, threshold, *, grad_input): the gradient where the result is above the threshold, else zero."""

convolution_backward: Callable[..., tuple[Tensor, Tensor, Tensor]] = _aten.convolution_backward.default
"""(gradient, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask).

The three gradients; torch gives None for those that the mask leaves out.
"""
