"""Kernels of linear: one matrix product each, written straight into the result."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maniple.operators.operator.kernel_scratch import Steps, in_matrix, out_matrix
from maniple.operators.operator.operator import Kernels, TileContext


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """``x W^T + b``; see ``maniple.operators.operator.operator.BindForward``."""
    (result,) = results
    x, weight, bias = operands
    if x is None or weight is None:
        raise TypeError("linear: forward needs its input and its weight")
    before, after = Steps(), Steps()
    rows, matrix = in_matrix(x, before), out_matrix(result, after)
    transposed = weight.t()
    if bias is None:
        before.then(lambda: torch.mm(rows, transposed, out=matrix))
    else:
        before.then(lambda: torch.addmm(bias, rows, transposed, out=matrix))
    return before.then(after).bound()


def bind_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """``g W``, ``g^T x`` and ``g^T 1``; see ``maniple.operators.operator.operator.BindBackward``."""
    (result_gradient,) = result_gradients
    x, weight, _ = operands
    x_gradient, weight_gradient, bias_gradient = operand_gradients
    if result_gradient is None:
        raise TypeError("linear: backward needs the result's gradient")
    steps = Steps()
    gradient = in_matrix(result_gradient, steps)
    transposed = gradient.t()
    if weight_gradient is not None and x is not None:
        rows = in_matrix(x, steps)
        steps.then(lambda: torch.mm(transposed, rows, out=weight_gradient))
    if bias_gradient is not None:
        ones = torch.ones(gradient.shape[0], dtype=gradient.dtype)
        steps.then(lambda: torch.mv(transposed, ones, out=bias_gradient))
    if x_gradient is not None and weight is not None:
        after = Steps()
        matrix, used = out_matrix(x_gradient, after), weight
        steps.then(lambda: torch.mm(gradient, used, out=matrix)).then(after)
    return steps.bound()


KERNELS = Kernels(bind_forward, bind_backward)
