"""Cross-entropy of tiles on CUDA: the fused kernels bound to an operator's tensors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from maniple.operators.library.losses.cross_entropy_cuda_kernels import (
    bind_cross_entropy,
    bind_cross_entropy_backward,
    bind_share,
)
from maniple.operators.library.losses.loss_kernels import Tensors
from maniple.operators.operator.kernel_scratch import Steps, in_row, out_matrix, out_row
from maniple.operators.operator.operator import Kernels, TileContext
from maniple.runtime.devices.cuda_kernels import current_stream


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The tile's share of the loss; see ``maniple.operators.operator.operator.BindForward``."""
    steps, after = Steps(), Steps()
    read = Tensors(context, operands, steps, bind_share)
    logarithms = out_row(saved[0], after)
    steps.then(bind_cross_entropy(*_given(read), logarithms, results[0].view(1), current_stream()))
    return steps.then(after).bound()


def bind_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """The gradient of the logits; see ``maniple.operators.operator.operator.BindBackward``."""
    (gradient,) = result_gradients
    target = operand_gradients[0]
    if gradient is None or target is None:
        raise TypeError("cross_entropy: backward needs the loss's gradient and a place for the logits'")
    steps, after = Steps(), Steps()
    read = Tensors(context, operands, steps, bind_share)
    rows, logarithms = out_matrix(target.movedim(1, -1), after), in_row(saved[0], steps)
    steps.then(bind_cross_entropy_backward(*_given(read), logarithms, gradient.view(1), rows, current_stream()))
    return steps.then(after).bound()


def _given(read: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor, int, float]:
    """What both kernels begin with."""
    operator = read.operator
    return read.rows, read.labels, read.share, read.weights, operator.ignore_index, operator.label_smoothing


KERNELS = Kernels(bind_forward, bind_backward)
