"""Kernels of flatten and reshape: one copy between two views of equal order."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from maniple.operators.operator.operator import Kernels, TileContext


def by_factor(context: TileContext, tensor: Tensor) -> Tensor:
    """The tensor as a view with one dimension per factor.

    Operand and result hold the same factors in the same order, so both views have equal shapes. Cutting a dimension
    never needs a copy, whatever its stride.
    """
    sizes = [high - low for low, high in context.tile.ranges]
    return tensor.view(sizes)


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """Copy the elements; see ``maniple.operators.operator.operator.BindForward``."""
    (result,) = results
    (x,) = operands
    if x is None:
        raise TypeError(f"{context.operator.name}: forward needs its operand")
    source, target = by_factor(context, x), by_factor(context, result)
    return lambda: target.copy_(source)  # type: ignore[return-value]


def bind_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """Copy the gradient back; see ``maniple.operators.operator.operator.BindBackward``."""
    (result_gradient,) = result_gradients
    (gradient,) = operand_gradients
    if result_gradient is None or gradient is None:
        raise TypeError(f"{context.operator.name}: backward needs the result's gradient and a place for the operand's")
    source, target = by_factor(context, result_gradient), by_factor(context, gradient)
    return lambda: target.copy_(source)  # type: ignore[return-value]


KERNELS = Kernels(bind_forward, bind_backward)
