"""Gradients of recurrent layers: step by step from the last, then of all weights at once.

Of halves (see ``recurrent_kernels``) the gradients of the gates' sums are halves, which products read; what leaves, and
the gradients of the states from step to step, are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

import torch
from torch import Tensor

from maniple.operators.library.dense.matrix_product import bind_column_sums, bind_product
from maniple.operators.library.dense.recurrent_kernels import (
    Saved,
    Weights,
    drop_masks,
    gates_of,
    in_order,
    steps_first,
    there,
)
from maniple.operators.operator.operator import BackwardTensors, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.dense.recurrent import Recurrent


@final
@dataclass(frozen=True)
class _Pass:
    """One direction of a layer.

    Args:
        operator: The layers.
        place: The number of the layer in its direction.
        weights: Its weights.
        found: Their gradients, as far as they are wanted.
        x: What the layer reads, steps first.
        out: What it gave in this direction, steps first.
        first: The states before the first step; None: zeros.
        saved: What forward kept.
    """

    operator: Recurrent
    place: int
    weights: Weights
    found: Weights
    x: Tensor
    out: Tensor
    first: tuple[Tensor | None, ...]
    saved: Saved

    @property
    def order(self) -> range:
        """The steps as forward went through them."""
        return in_order(len(self.x), self.place % self.operator.directions)

    def kept(self, name: str) -> Tensor:
        """What is kept under a name, in memory of its own: kernels go through it row by row."""
        return there(self.saved.of(name, self.place)).contiguous()


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The last layer first; each makes the gradient of what it read."""
    operator = cast("Recurrent", context.operator)
    states = operator.states
    saved = Saved(operator, tensors.saved)
    weights = Weights.all_of(operator, tensors.operands[1 + states :])
    found = Weights.all_of(operator, tensors.operand_gradients[1 + states :])
    x, out = steps_first(operator, tensors.operand(0)), steps_first(operator, tensors.result(0))
    numbers, halves = there(saved.of("gates", 0)), there(weights[0].ih).dtype
    masks = drop_masks(context, numbers.dtype)
    slope = None if tensors.result_gradients[0] is None else steps_first(operator, tensors.result_gradients[0])
    wanted = None if tensors.operand_gradients[0] is None else steps_first(operator, tensors.operand_gradients[0])
    gates_of(x).compile(operator.mode, numbers)

    def read(layer: int) -> tuple[Tensor, Tensor]:
        """What a layer read and gave."""
        before = x if layer == 0 else there(saved.of("dropped" if masks else "hidden", layer - 1))
        made = out if layer + 1 == operator.num_layers else there(saved.of("hidden", layer))
        return before.to(halves), made.to(halves)

    def run() -> None:
        above = slope
        for layer in reversed(range(operator.num_layers)):
            given, made = read(layer)
            target = numbers.new_empty(given.shape) if layer else wanted
            for direction in range(operator.directions):
                place, width = layer * operator.directions + direction, operator.output_size
                columns = slice(direction * width, (direction + 1) * width)
                first = tuple(None if state is None else state[place] for state in tensors.operands[1 : 1 + states])
                one = _Pass(operator, place, weights[place], found[place], given, made[..., columns], first, saved)
                last = [None if each is None else each[place] for each in tensors.result_gradients[1:]]
                sums, ends = _steps(one, None if above is None else above[..., columns], last)
                for whole, end in zip(tensors.operand_gradients[1 : 1 + states], ends, strict=True):
                    if whole is not None:
                        whole[place].copy_(end)
                _weights(one, sums)
                if target is not None:
                    _inputs(one, sums, target, add=direction > 0)
            if layer and masks:
                there(target).mul_(masks[layer - 1]())
            above = target

    return run


def _steps(one: _Pass, slope: Tensor | None, last: Sequence[Tensor | None]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The gradients of the gates' sums of all steps, steps first, and those of the first states."""
    return _lstm_steps(one, slope, last) if one.operator.mode == "lstm" else _gru_steps(one, slope, last)


def _begin(one: _Pass, width: int, given: Tensor | None) -> Tensor:
    """A state's gradient behind the last step, to be written over."""
    state = there(one.saved.of("gates", one.place)).new_zeros(one.x.shape[1], width)
    return state if given is None else state.copy_(given)


def _lstm_steps(one: _Pass, slope: Tensor | None, last: Sequence[Tensor | None]) -> tuple[Tensor, tuple[Tensor, ...]]:
    operator, matrix, projection = one.operator, there(one.weights.hh), one.weights.hr
    gates, cells, squashed = one.kept("gates"), one.kept("cells"), one.kept("squashed")
    hidden = _begin(one, operator.output_size, last[0])
    cell = _begin(one, operator.hidden_size, last[1])
    start = _begin(one, operator.hidden_size, one.first[1])
    sums, order = torch.empty_like(gates, dtype=matrix.dtype), one.order
    projected = None if projection is None else hidden.new_empty(len(order), *hidden.shape)
    back = gates_of(sums).lstm_back(gates, cells, squashed, start, cell, sums)
    for at in reversed(order):
        top, more = hidden, None if slope is None else slope[at]
        if projected is not None and projection is not None:
            if more is not None:
                hidden += more
            projected[at] = hidden
            top, more = hidden @ projection, None
        back(at, None if at == order[0] else at - order.step, top, more)
        bind_product(sums[at], matrix, hidden)()
    if projected is not None and one.found.hr is not None:
        full = one.kept("full").view(-1, operator.hidden_size)
        torch.mm(projected.view(len(full), -1).t(), full, out=one.found.hr)
    return sums, (hidden, cell)


def _gru_steps(one: _Pass, slope: Tensor | None, last: Sequence[Tensor | None]) -> tuple[Tensor, tuple[Tensor, ...]]:
    width, matrix = one.operator.hidden_size, there(one.weights.hh)
    gates, out = one.kept("gates"), one.out.contiguous()
    first = None if one.first[0] is None else one.first[0].to(matrix.dtype)  # as forward went on from it
    hidden, start = _begin(one, width, last[0]), _begin(one, width, first)
    sums, order = torch.empty_like(gates, dtype=matrix.dtype), one.order
    back = gates_of(sums).gru_back(gates, out, start, hidden, sums)
    for at in reversed(order):
        back(at, None if at == order[0] else at - order.step, hidden, None if slope is None else slope[at])
        bind_product(sums[at][:, width:], matrix, hidden, adds=True)()
    return sums, (hidden,)


def _weights(one: _Pass, sums: Tensor) -> None:
    """The gradients of the weights, of all steps at once."""
    width, is_gru = one.operator.hidden_size, one.operator.mode == "gru"
    rows = sums.view(-1, sums.shape[-1])
    if one.found.ih is not None:
        x = one.x.reshape(len(rows), -1)
        for columns, part in _input_parts(one, one.found.ih):
            bind_product(rows[:, columns].t(), x, part)()
    columns = slice(width, None) if is_gru else slice(None)
    if one.found.hh is not None:
        order, beginning = one.order, one.first[0]
        ahead = slice(1, None) if order.step > 0 else slice(None, -1)
        behind = slice(None, -1) if order.step > 0 else slice(1, None)
        later, earlier = sums[ahead].flatten(0, 1)[:, columns], one.out[behind].flatten(0, 1)
        bind_product(later.t(), earlier, one.found.hh)()
        if beginning is not None:
            bind_product(sums[order[0]][:, columns].t(), beginning.to(sums.dtype), one.found.hh, adds=True)()
    if any(bias is not None for bias in one.found.biases):
        total = one.kept("gates").new_empty(rows.shape[1])
        bind_column_sums(rows, total)()
        inputs, states = one.found.biases
        if inputs is not None:
            for part_of, part in _input_parts(one, inputs):
                part.copy_(total[part_of])
        if states is not None:
            states.copy_(total[columns])


def _inputs(one: _Pass, sums: Tensor, target: Tensor, *, add: bool) -> None:
    """The gradient of what the layer read; added to that of the other direction."""
    rows = sums.view(-1, sums.shape[-1])
    found = target.new_empty(len(rows), target.shape[-1])
    for number, (columns, part) in enumerate(_input_parts(one, there(one.weights.ih))):
        bind_product(rows[:, columns], part, found, adds=number > 0)()
    value = found.view(target.shape)
    if add:
        target += value
    else:
        target.copy_(value)


def _input_parts(one: _Pass, weight: Tensor) -> list[tuple[slice, Tensor]]:
    """The columns of the gates' sums to which the sequence gives something, with the rows of a weight that give it."""
    width = one.operator.hidden_size
    if one.operator.mode == "lstm":
        return [(slice(None), weight)]
    return [(slice(width, 3 * width), weight[: 2 * width]), (slice(None, width), weight[2 * width :])]
