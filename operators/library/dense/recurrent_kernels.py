"""Kernels of recurrent layers: a matrix product for all steps, then step by step; backward the other way round.

One layer of an LSTM in one direction, of samples b, steps s, features i and hidden features h:

    forward     gates (s b, 4h) = x W_ih' + bias      for all steps at once, where backward will read them
                each step: gates += h W_hh'; the gates; c, tanh(c), h
    backward    each step, the last first: gradients of the gates' sums, of c; the gradient of h = those times W_hh
                dx = gates' W_ih,  dW_ih = gates'^T x,  dW_hh = gates'^T h,  for all steps at once

Forward keeps gates, cell states and their tangents, the results of inner layers, and what is dropped of them.

Layers may be given halves: sequence, weights and results. Then every product reads halves and is added up in float32,
as are the gates' sums; gates and cells are float32, and a hidden state is a half, as the next product reads it and as
it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast, final

import torch
from torch import Tensor

from maniple.operators.library.dense.gate_kernels import HOST_GATES
from maniple.operators.library.dense.gates import Gates
from maniple.operators.library.dense.matrix_product import bind_product
from maniple.operators.operator.operator import ForwardTensors, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell

Run = Callable[[], None]


@final
@dataclass(frozen=True)
class Weights:
    """The weights of a layer in one direction, or their gradients.

    Args:
        ih: (gates, features).
        hh: (gates, hidden).
        biases: that of the input and that of the state; none where there are none.
        hr: what a hidden state is projected by.
    """

    ih: Tensor | None
    hh: Tensor | None
    biases: tuple[Tensor | None, ...]
    hr: Tensor | None

    @staticmethod
    def all_of(operator: Recurrent, tensors: Sequence[Tensor | None]) -> list[Weights]:
        """Of every layer and direction, in torch's order."""
        each = 2 + 2 * operator.bias + (operator.proj_size > 0)
        found = []
        for start in range(0, each * operator.num_layers * operator.directions, each):
            ih, hh, *rest = tensors[start : start + each]
            projected = rest.pop() if operator.proj_size else None
            found.append(Weights(ih, hh, tuple(rest), projected))
        return found


@final
class Saved:
    """What forward keeps, by name; everything else is as the operator's ``saved`` says."""

    def __init__(self, operator: Recurrent, tensors: Sequence[Tensor]) -> None:
        self._found = dict(zip((item.name for item in operator.saved()), tensors, strict=True))

    def of(self, name: str, place: int) -> Tensor | None:
        """What is kept under a name for a layer (and direction)."""
        found = self._found.get(name)
        return None if found is None else found[place]


def steps_first(operator: Recurrent, tensor: Tensor) -> Tensor:
    """A sequence as (steps, samples, features)."""
    return tensor.transpose(0, 1) if operator.batch_first else tensor


def gates_of(tensor: Tensor) -> Gates:
    """The kernels for what lies where a tensor does."""
    if tensor.is_cuda:
        from maniple.operators.library.dense import gate_cuda_kernels

        return gate_cuda_kernels.GATES
    return HOST_GATES


def there(tensor: Tensor | None) -> Tensor:
    """A tensor that the layers cannot do without."""
    if tensor is None:
        raise TypeError("a recurrent layer needs all its weights and what it saved")
    return tensor


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Run:
    """Layer by layer, each in its directions."""
    operator = cast("Recurrent", context.operator)
    operands, saved = tensors.operands, Saved(operator, tensors.saved)
    weights = Weights.all_of(operator, operands[1 + operator.states :])
    x, out = steps_first(operator, tensors.operand(0)), steps_first(operator, tensors.results[0])
    numbers, halves = there(saved.of("gates", 0)).dtype, there(weights[0].ih).dtype
    masks, steps = drop_masks(context, numbers), list[Run]()
    for layer in range(operator.num_layers):
        inner = layer + 1 < operator.num_layers
        kept = there(saved.of("hidden", layer)) if inner else out
        target = kept if kept.dtype == halves else torch.empty_like(kept, dtype=halves)
        x = in_dtype(x, halves, steps)
        for direction in range(operator.directions):
            place = layer * operator.directions + direction
            width = operator.output_size
            part = target[..., direction * width : (direction + 1) * width]
            first = tuple(None if state is None else state[place] for state in operands[1 : 1 + operator.states])
            last = tuple(result[place] for result in tensors.results[1:])
            steps.append(_bind_layer(operator, weights[place], x, part, first, last, _Kept.of(saved, place), direction))
        if target is not kept:
            steps.append(_copy(target, kept))
        x = target
        if inner and masks:
            x = there(saved.of("dropped", layer))
            steps.append(_multiply(kept, masks[layer], x))
    return _all(steps)


def in_dtype(tensor: Tensor, dtype: torch.dtype, steps: list[Run]) -> Tensor:
    """A tensor in another dtype, to which steps copy it; itself where it is of that."""
    if tensor.dtype == dtype:
        return tensor
    made = torch.empty_like(tensor, dtype=dtype)
    steps.append(_copy(tensor, made))
    return made


def _copy(source: Tensor, target: Tensor) -> Run:
    return lambda: target.copy_(source)  # type: ignore[return-value]


def _all(steps: Sequence[Run]) -> Run:
    def run() -> None:
        for step in steps:
            step()

    return run


def drop_masks(context: TileContext, dtype: torch.dtype) -> list[Callable[[], Tensor]]:
    """What draws the factors of dropout behind each inner layer, steps first."""
    operator, stream = cast("Recurrent", context.operator), context.stream
    found: list[Callable[[], Tensor]] = []
    for drawn in operator.draws(context):
        if stream is None:
            raise TypeError(f"{operator.mode}: needs a random stream")
        found.append(lambda drawn=drawn, stream=stream: steps_first(operator, drawn.draw(stream, dtype)[0]))  # type: ignore[misc]
    return found


def _multiply(source: Tensor, mask: Callable[[], Tensor], target: Tensor) -> Run:
    return lambda: torch.mul(source, mask(), out=target)  # type: ignore[return-value]


@final
@dataclass(frozen=True)
class _Kept:
    """What is kept of a layer in one direction; steps first."""

    gates: Tensor
    cells: Tensor | None
    squashed: Tensor | None
    full: Tensor | None

    @staticmethod
    def of(saved: Saved, place: int) -> _Kept:
        each = (saved.of(name, place) for name in ("cells", "squashed", "full"))
        return _Kept(there(saved.of("gates", place)), *each)


def _bias(operator: Recurrent | RecurrentCell, biases: tuple[Tensor | None, ...], target: Tensor) -> None:
    """Write what biases give to the gates' sums: those of input and state add up, but for a GRU's last."""
    inputs, states = (there(bias) for bias in biases)
    width = operator.hidden_size
    if operator.mode == "lstm":
        torch.add(inputs.to(target.dtype), states, out=target)
        return
    target[:width].copy_(inputs[2 * width :])
    torch.add(inputs[: 2 * width].to(target.dtype), states[: 2 * width], out=target[width : 3 * width])
    target[3 * width :].copy_(states[2 * width :])


def bind_input_gates(operator: Recurrent | RecurrentCell, weights: Weights, x: Tensor, gates: Tensor) -> Run:
    """The part of all gates' sums that the sequence gives: of every step at once."""
    width, ih = operator.hidden_size, there(weights.ih)
    bias = gates.new_zeros(gates.shape[-1])
    # A GRU's gates lie as n r z m; its weights as r z n.
    parts = [(gates, ih.t(), bias)]
    if operator.mode == "gru":
        parts = [
            (gates[..., :width], ih[2 * width :].t(), bias[:width]),
            (gates[..., width : 3 * width], ih[: 2 * width].t(), bias[width : 3 * width]),
        ]
    targets = [(_rows(part), matrix, own) for part, matrix, own in parts]
    last = gates[..., 3 * width :] if operator.mode == "gru" else None

    def run() -> None:
        if weights.biases:
            _bias(operator, weights.biases, bias)
        rows = x.reshape(-1, x.shape[-1])
        for (target, matrix, own), (part, _, _) in zip(targets, parts, strict=True):
            if target is None:
                part.copy_(torch.addmm(own, rows, matrix).view(part.shape))
            elif rows.dtype != target.dtype:
                target.copy_(own)
                bind_product(rows, matrix, target, adds=True)()
            else:
                torch.addmm(own, rows, matrix, out=target)
        if last is not None:
            last.copy_(bias[3 * width :])

    return run


def _rows(tensor: Tensor) -> Tensor | None:
    """The leading dimensions joined; None where that takes a copy."""
    try:
        return tensor.view(-1, tensor.shape[-1])
    except RuntimeError:
        return None


def _bind_layer(
    operator: Recurrent,
    weights: Weights,
    x: Tensor,
    out: Tensor,
    first: tuple[Tensor | None, ...],
    last: tuple[Tensor, ...],
    kept: _Kept,
    direction: int,
) -> Run:
    """One direction of a layer, all steps."""
    width, gates, kernels = operator.hidden_size, kept.gates, gates_of(x)
    entering = list[Run]()
    start = [x.new_zeros(x.shape[1], out.shape[2]) if first[0] is None else in_dtype(first[0], out.dtype, entering)]
    if operator.states == 2:
        zeros = first[1] is None
        start.append(gates.new_zeros(x.shape[1], width) if zeros else in_dtype(there(first[1]), gates.dtype, entering))
    matrix, projected = there(weights.hh).t(), None if weights.hr is None else weights.hr.t()
    columns = slice(width, None) if operator.mode == "gru" else slice(None)
    hidden, cell, steps = start[0], start[-1], list[tuple[Callable[[Tensor], object], Run, Run | None]]()
    for at in in_order(len(gates), direction):
        whole = out[at]
        entered, after = gates[at][:, columns], None
        if operator.mode == "gru":
            step = kernels.gru(gates[at], hidden, whole)
        else:
            cells, squashed = there(kept.cells), there(kept.squashed)
            full = whole if kept.full is None else kept.full[at]
            step = kernels.lstm(gates[at], cell, cells[at], squashed[at], full)
            cell = cells[at]
            if projected is not None:
                after = _product(full, projected, whole)
        steps.append((_adding(hidden, matrix, entered), step, after))
        hidden = whole
    begin, ends = bind_input_gates(operator, weights, x, gates), (hidden, cell)[: operator.states]

    lies_otherwise = _is_worth_transposing(there(weights.hh), samples=x.shape[1], steps=len(gates))

    def run() -> None:
        for enter in entering:
            enter()
        begin()
        factor = matrix.contiguous() if lies_otherwise else matrix
        for enters, step, after in steps:
            enters(factor)
            step()
            if after is not None:
                after()
        for target, value in zip(last, ends, strict=True):
            target.copy_(value)

    return run


def _adding(before: Tensor, matrix: Tensor, entered: Tensor) -> Callable[[Tensor], object]:
    """Adds what a state gives to the sums of a step; of halves by the matrix itself."""
    if before.dtype == entered.dtype:
        return partial(entered.addmm_, before)
    wide = bind_product(before, matrix, entered, adds=True)
    return lambda _: wide()


def _is_worth_transposing(weight: Tensor, *, samples: int, steps: int) -> bool:
    """Whether a copy of a state's weight that lies as the products read it pays.

    A product of few rows with a matrix that lies the other way takes a processor's library up to 2.6 times as long
    (float32, one core, the best of 60 calls in us):

        hidden   the copy   a product of 4 rows    of 8 rows      of 32 rows     of 64 rows
           128         40         8 ->   4          15 ->   7       29 ->  22      51 ->  43
           256        197        21 ->  17          36 ->  25      115 ->  91     214 -> 191
           512        969       345 -> 198         497 -> 226      648 -> 507    1019 -> 833
          1024     25,254      1222 -> 718        1868 -> 851     2943 -> 3122

    The copy of a matrix that does not fit the second cache costs more than it saves.
    """
    alone = weight.dtype in (torch.float32, torch.float64) and not weight.is_cuda
    return alone and steps >= 8 and samples <= 64 and weight.numel() <= 1 << 20


def in_order(steps: int, direction: int) -> range:
    """The steps as a direction goes through them."""
    return range(steps - 1, -1, -1) if direction else range(steps)


def _product(a: Tensor, b: Tensor, target: Tensor) -> Run:
    return lambda: torch.mm(a, b, out=target)  # type: ignore[return-value]
