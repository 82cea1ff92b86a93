"""Kernels of linear: one matrix product each, written straight into the result."""

from __future__ import annotations

from collections.abc import Callable

import torch

from maniple.operators.library.dense.matrix_product import bind_column_sums, bind_product
from maniple.operators.operator.kernel_scratch import CallSequence, in_matrix, out_matrix
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.runtime.storage.scratchpad import Scratchpad


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """``x W^T + b``."""
    weight, bias = tensors.operand(1), tensors.operands[2]
    before, after = CallSequence(), CallSequence()
    turn = context.scratch or Scratchpad().turn()
    rows, matrix = in_matrix(tensors.operand(0), before, turn), out_matrix(tensors.results[0], after, turn)
    transposed = weight.t()
    if bias is None:
        before.then(bind_product(rows, transposed, matrix))
    elif rows.dtype != matrix.dtype:
        before.then(lambda: matrix.copy_(bias)).then(bind_product(rows, transposed, matrix, adds=True))
    else:
        before.then(lambda: torch.addmm(bias, rows, transposed, out=matrix))
    return before.then(after).bind()


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """``g W``, ``g^T x`` and ``g^T 1``."""
    x, weight, _ = tensors.operands
    x_gradient, weight_gradient, bias_gradient = tensors.operand_gradients
    steps, turn = CallSequence(), context.scratch or Scratchpad().turn()
    gradient = in_matrix(tensors.gradient(), steps, turn)
    if weight_gradient is not None and x is not None:
        rows = in_matrix(x, steps, turn)
        steps.then(bind_product(gradient.t(), rows, weight_gradient, adds=1 in tensors.adds))
    if bias_gradient is not None:
        steps.then(bind_column_sums(gradient, bias_gradient, adds=2 in tensors.adds))
    if x_gradient is not None and weight is not None:
        after = CallSequence()
        matrix = out_matrix(x_gradient, after, turn)
        steps.then(bind_product(gradient, weight, matrix)).then(after)
    return steps.bind()


KERNELS = Kernels(bind_forward, bind_backward, accumulates=(1, 2))
