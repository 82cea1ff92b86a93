"""Kernels of flatten and reshape: one copy between two views of equal order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext


def by_factor(context: TileContext, tensor: Tensor) -> Tensor:
    """The tensor as a view with one dimension per factor.

    Operand and result hold the same factors in the same order, so both views have equal shapes. Cutting a dimension
    never needs a copy, whatever its stride.
    """
    sizes = [high - low for low, high in context.tile.ranges]
    return tensor.view(sizes)


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Copy the elements."""
    return _copying(context, tensors.operand(0), tensors.results[0])


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Copy the gradient back."""
    return _copying(context, tensors.gradient(), tensors.target())


def _copying(context: TileContext, given: Tensor, written: Tensor) -> Callable[[], None]:
    source, target = by_factor(context, given), by_factor(context, written)
    return lambda: target.copy_(source)  # type: ignore[return-value]


KERNELS = Kernels(bind_forward, bind_backward)
