"""Cross-entropy of tiles on CUDA: the fused kernels bound to an operator's tensors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from maniple.operators.library.losses.cross_entropy_cuda_kernels import (
    bind_cross_entropy,
    bind_cross_entropy_backward,
    bind_share,
)
from maniple.operators.library.losses.loss_kernels import Read, kernels_of
from maniple.operators.operator.operator import TileContext
from maniple.runtime.devices.cuda_kernels import current_stream


def _forward(context: TileContext, read: Read, logarithms: Tensor, result: Tensor) -> Callable[[], None]:
    return bind_cross_entropy(*_read_operands(read), logarithms, result.view(1), current_stream())


def _backward(
    context: TileContext, read: Read, logarithms: Tensor, gradient: Tensor, rows: Tensor
) -> Callable[[], None]:
    return bind_cross_entropy_backward(*_read_operands(read), logarithms, gradient.view(1), rows, current_stream())


def _read_operands(read: Read) -> tuple[Tensor, Tensor, Tensor, Tensor, int, float]:
    """What both kernels begin with."""
    operator = read.operator
    return read.rows, read.labels, read.share, read.weights, operator.ignore_index, operator.label_smoothing


KERNELS = kernels_of(bind_share, _forward, _backward)
