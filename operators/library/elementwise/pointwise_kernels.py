"""Kernels of pointwise operators."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maniple.operators.operator.aten import threshold_backward
from maniple.operators.operator.kernel_scratch import Steps
from maniple.operators.operator.operator import Kernels, TileContext


def bind_relu(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """``max(x, 0)``; see ``maniple.operators.operator.operator.BindForward``."""
    (result,) = results
    (x,) = operands
    if x is None:
        raise TypeError("relu: forward needs its operand")
    clamp = torch.clamp_min
    return lambda: clamp(x, 0, out=result)  # type: ignore[return-value]


def bind_relu_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """The gradient where the result is above zero; see ``maniple.operators.operator.operator.BindBackward``."""
    (result,) = results
    (result_gradient,) = result_gradients
    (target,) = operand_gradients
    if result_gradient is None or result is None or target is None:
        raise TypeError("relu: backward needs the result, its gradient, and a place for the operand's")
    threshold = threshold_backward
    return lambda: threshold(result_gradient, result, 0, grad_input=target)  # type: ignore[return-value]


def bind_add(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """``a + b``; see ``maniple.operators.operator.operator.BindForward``."""
    (result,) = results
    a, b = operands
    if a is None or b is None:
        raise TypeError("add: forward needs both operands")
    add = torch.add
    return lambda: add(a, b, out=result)  # type: ignore[return-value]


def bind_add_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """The gradient to each operand; see ``maniple.operators.operator.operator.BindBackward``."""
    (result_gradient,) = result_gradients
    if result_gradient is None:
        raise TypeError("add: backward needs the result's gradient")
    steps = Steps()
    for target in operand_gradients:
        if target is not None:
            steps.then(lambda copy=target.copy_: copy(result_gradient))  # type: ignore[misc]
    return steps.bound()


RELU_KERNELS = Kernels(bind_relu, bind_relu_backward)
ADD_KERNELS = Kernels(bind_add, bind_add_backward)
