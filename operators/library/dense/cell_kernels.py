"""Kernels of recurrent cells: one step of a layer; see ``recurrent_kernels``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from maniple.operators.library.dense.recurrent_kernels import Weights, bind_input_gates, gates_of, there
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.dense.recurrent import RecurrentCell


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Both products into the gates' sums, then the gates."""
    cell = cast("RecurrentCell", context.operator)
    x, state, gates, width = tensors.operand(0), tensors.operand(1), tensors.saved[0], cell.hidden_size
    ih, hh, *biases = tensors.operands[1 + cell.states : 3 + cell.states + 2 * cell.bias]
    begin = bind_input_gates(cell, Weights(ih, hh, tuple(biases), None), x, gates)
    if cell.mode == "lstm":
        hidden, inner = tensors.results
        step, entered = gates_of(x).lstm(gates, tensors.operand(2), inner, tensors.saved[1], hidden), gates
    else:
        step, entered = gates_of(x).gru(gates, state, tensors.results[0]), gates[:, width:]
    matrix = there(hh).t()

    def run() -> None:
        begin()
        entered.addmm_(state, matrix)
        step()

    return run


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradients of the gates' sums, and of all that entered them."""
    cell = cast("RecurrentCell", context.operator)
    states, width = cell.states, cell.hidden_size
    x, state = tensors.operand(0), tensors.operand(1)
    ih, hh = tensors.operand(1 + states), tensors.operand(2 + states)
    targets = tensors.operand_gradients
    kernels = gates_of(x)
    kernels.compile(cell.mode, x)

    def begin(place: int) -> Tensor:
        given = tensors.result_gradients[place]
        return state.new_zeros(state.shape) if given is None else given.contiguous()

    def run() -> None:
        gates = tensors.saved[0].contiguous()
        sums, hidden = torch.empty_like(gates), begin(0)
        if cell.mode == "lstm":
            old, inner = tensors.operand(2).contiguous(), begin(1).clone()
            whole, squashed = gates[None], tensors.saved[1].contiguous()[None]
            kernels.lstm_back(whole, squashed, squashed, old, inner, sums[None])(0, None, hidden, None)
            parts, entered = [(sums, slice(None))], sums
            before = None
            if targets[2] is not None:
                targets[2].copy_(inner)
        else:
            before = torch.empty_like(hidden)
            start = state.contiguous()
            kernels.gru_back(gates[None], start[None], start, before, sums[None])(0, None, hidden, None)
            parts = [(sums[:, width : 3 * width], slice(None, 2 * width)), (sums[:, :width], slice(2 * width, None))]
            entered = sums[:, width:]
        if targets[1] is not None:
            targets[1].copy_(entered @ hh if before is None else before.addmm_(entered, hh))
        _write(targets, states, x, state, ih, parts, entered)

    return run


def _write(
    targets: tuple[Tensor | None, ...],
    states: int,
    x: Tensor,
    state: Tensor,
    ih: Tensor,
    parts: list[tuple[Tensor, slice]],
    entered: Tensor,
) -> None:
    """The gradients of the input and of the weights."""
    dx, (wih, whh, *biases) = targets[0], targets[1 + states :]
    for number, (sums, rows) in enumerate(parts):
        if dx is not None:
            found = sums @ ih[rows]
            dx.copy_(found) if number == 0 else dx.add_(found)
        if wih is not None:
            torch.mm(sums.t(), x, out=wih[rows])
        if biases and biases[0] is not None:
            torch.sum(sums, 0, out=biases[0][rows])
    if whh is not None:
        torch.mm(entered.t(), state, out=whh)
    if biases and biases[1] is not None:
        torch.sum(entered, 0, out=biases[1])


KERNELS = Kernels(bind_forward, bind_backward)
