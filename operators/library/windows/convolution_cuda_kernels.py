"""Convolutions on CUDA: cuDNN's own, written where they belong; some gradients of inputs are convolutions, too.

Torch's operators make a tensor, which is then copied: while it is made there is the result twice, and the copy is one
pass more. cuDNN writes a convolution to any memory that is dense.

With windows of one element, a row apart, the gradient of the input is the convolution of the result's by the weight
with its channels exchanged. (With larger windows, by the weight turned by half a turn. Which of the two ways cuDNN is
good at then differs from shape to shape: in exact float32 it may go by Fourier transforms in either, with up to sixteen
times the memory of the operand, and now one, now the other takes less.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from maniple.operators.library.windows import convolution_kernels
from maniple.operators.library.windows.convolution_kernels import input_shape, operator_of, torch_padding
from maniple.operators.operator.aten_overload import convolution_into
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ELEMENTS = 2**31 - 1
"""cuDNN is given no larger tensors: torch splits those."""
ACCURATE = (torch.float32, torch.float64)


class Windows(NamedTuple):
    """How windows lie, one number for each dimension.

    Args:
        padding: zero rows at each border.
        stride: between neighbouring windows.
        dilation: between neighbouring elements of a window.
    """

    padding: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The convolution of the tile, in the result's own memory where cuDNN writes there."""
    (x, _, bias), (result,) = tensors.operands, tensors.results
    weight, padding, operator = tensors.operand(1), torch_padding(context), operator_of(context)
    if x is None or padding is None or not _goes_into(context, (x, weight), result):
        return convolution_kernels.bind_forward(context, tensors)
    windows = Windows(padding, operator.stride, operator.dilation)
    steps = CallSequence().then(_convolution(x, lambda: weight, windows, result))
    if bias is not None:
        row = bias.view(-1, *(1 for _ in operator.axes))
        steps.then(lambda: result.add_(row))
    return steps.bind()


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The wanted gradients of the tile: the input's as a convolution, where that is better, and torch's others."""
    found = _bind_exchanged(context, tensors)
    if found is None:
        return convolution_kernels.bind_backward(context, tensors)
    _, *others = tensors.operand_gradients
    if all(other is None for other in others):
        return found
    rest = convolution_kernels.bind_backward(context, replace(tensors, operand_gradients=(None, *others)))
    return CallSequence().then(found).then(rest).bind()


def _bind_exchanged(context: TileContext, tensors: BackwardTensors) -> Callable[[], None] | None:
    """The input's gradient as a convolution; None where it is not wanted or another."""
    gradient, weight, target = tensors.gradient(), tensors.operand(1), tensors.operand_gradients[0]
    operator, padding = operator_of(context), torch_padding(context)
    if target is None or padding is None or target.shape != input_shape(context) or 0 in tensors.adds:
        return None
    exact = gradient.dtype in ACCURATE and not torch.backends.cudnn.allow_tf32
    narrow = set(operator.kernel_size) == set(operator.stride) == {1} and not any(padding)
    if not exact or not narrow or not _goes_into(context, (gradient, weight), target):
        return None
    windows = Windows(padding, operator.stride, operator.dilation)
    return _convolution(gradient, lambda: weight.transpose(0, 1), windows, target)


def _goes_into(context: TileContext, sources: Sequence[Tensor], target: Tensor) -> bool:
    """Whether cuDNN writes a convolution of some tensors to a target."""
    operator = operator_of(context)
    dense = target.is_contiguous() and all(each.numel() for each in (*sources, target))
    fits = max(each.numel() for each in (*sources, target)) <= MOST_ELEMENTS
    alike = {each.dtype for each in sources} == {target.dtype}
    plain = operator.groups == 1 and len(operator.axes) > 1
    there = torch.backends.cudnn.enabled and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]
    return plain and dense and fits and alike and there


def _convolution(source: Tensor, weight: Callable[[], Tensor], windows: Windows, target: Tensor) -> Callable[[], None]:
    """A convolution by cuDNN, with the switches of torch as they are when it is bound."""
    switches = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
    given = (list(windows.padding), list(windows.stride), list(windows.dilation), 1, *switches)

    def run() -> None:
        convolution_into(source, weight(), *given, out=target)

    return run


KERNELS = Kernels(bind_forward, bind_backward, accumulates=convolution_kernels.KERNELS.accumulates)
