"""Kernels of pointwise operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from maniple.operators.operator.aten_overload import threshold_backward
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext


def bind_relu(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """``max(x, 0)``."""
    clamp, x, (result,) = torch.clamp_min, tensors.operand(0), tensors.results
    return lambda: clamp(x, 0, out=result)  # type: ignore[return-value]


def bind_relu_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradient where the result is above zero."""
    threshold, gradient, result, target = threshold_backward, tensors.gradient(), tensors.result(), tensors.target()
    return lambda: threshold(gradient, result, 0, grad_input=target)  # type: ignore[return-value]


def bind_add(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """``a + b``."""
    add, a, b, (result,) = torch.add, tensors.operand(0), tensors.operand(1), tensors.results
    return lambda: add(a, b, out=result)  # type: ignore[return-value]


def bind_add_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradient to each operand."""
    steps, gradient = CallSequence(), tensors.gradient()
    for target in tensors.operand_gradients:
        if target is not None:
            steps.then(lambda copy=target.copy_: copy(gradient))  # type: ignore[misc]
    return steps.bind()


RELU_KERNELS = Kernels(bind_relu, bind_relu_backward)
ADD_KERNELS = Kernels(bind_add, bind_add_backward)
