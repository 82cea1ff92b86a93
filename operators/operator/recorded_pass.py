"""Recorded passes: the forward and backward pass of a torch operator's tile, recorded on zeros before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast, final

import torch
from torch import Tensor

from maniple.operators.operator.operator import Keeping, results_of
from maniple.operators.recording.tape import Call, NotRecordable, Recorder, Watch, cut, reads_of
from maniple.process.torch_internals import gradients_of

if TYPE_CHECKING:
    from maniple.operators.operator.operator import TileContext
    from maniple.operators.operator.random_stream import RandomStream
    from maniple.operators.operator.torch_operator import TorchOperator

__all__: list[str] = []

HALVES = (torch.bfloat16, torch.float16)

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device, int]
"""Shape, stride, dtype, device, and on a GPU how many elements behind a multiple of ``LINE`` bytes it begins."""
LINE = 16
"""Bytes that a kernel of a GPU reads at once, at most."""


@final
@dataclass(frozen=True, slots=True)
class Layouts:
    """Of what a pass is recorded: how tensors lie, None for those that are absent.

    Args:
        operands: of the operands.
        result_gradients: of the results' gradients.
        wanted: the operands whose gradients are wanted, by place.
    """

    operands: tuple[Layout | None, ...]
    result_gradients: tuple[Layout | None, ...]
    wanted: tuple[int, ...]

    @staticmethod
    def of(
        operands: Sequence[Tensor | None], result_gradients: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> Layouts:
        """Of tensors."""
        return Layouts(tuple(map(_layout, operands)), tuple(map(_layout, result_gradients)), tuple(wanted))

    def singly(self) -> Layouts:
        """The same of float32, where these are of halves."""
        return Layouts(
            tuple(map(_in_single, self.operands)), tuple(map(_in_single, self.result_gradients)), self.wanted
        )


@final
@dataclass(frozen=True, slots=True)
class RecordedPass:
    """The tape of a tile's forward and backward pass.

    Args:
        calls: in order.
        forward: so many of them are forward's.
        operands: the number of each operand; None: absent.
        drawn: of each tensor of random numbers.
        result_gradients: of each result's gradient.
        results: of each result.
        saved: of each value that forward saves, as the operator says.
        gradients: of the gradient of each wanted operand; None where there is none.
        shapes: shape and dtype of the results and then of what is saved.
    """

    calls: tuple[Call, ...]
    forward: int
    operands: tuple[int | None, ...]
    drawn: tuple[int, ...]
    result_gradients: tuple[int | None, ...]
    results: tuple[int, ...]
    saved: tuple[int, ...]
    gradients: tuple[int | None, ...]
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    def backward(self, results: Sequence[int]) -> BackwardTape | None:
        """What backward computes; None where that would write over what it reads.

        Args:
            results: the places of the results that it may read.
        """
        readable = {("result", place): self.results[place] for place in results}
        readable |= {("saved", place): number for place, number in enumerate(self.saved)}
        readable |= {("operand", place): n for place, n in enumerate(self.operands) if n is not None}
        readable |= {("drawn", place): number for place, number in enumerate(self.drawn)}
        readable |= {("result_gradient", place): n for place, n in enumerate(self.result_gradients) if n is not None}
        wanted = [number for number in self.gradients if number is not None]
        calls = cut(self.calls, wanted, readable.values())
        read = reads_of(calls, wanted)
        if read.intersection(call.changes for call in calls if call.changes is not None):
            return None
        first: dict[int, tuple[str, int]] = {}
        for slot, number in readable.items():
            first.setdefault(number, slot)
        forward = {id(call) for call in self.calls[: self.forward]}
        follows = _following(calls, readable.values())
        again = tuple(str(call.function) for call in follows if id(call) in forward and not call.is_view)
        return BackwardTape(tuple(calls), {number: first[number] for number in sorted(read)}, again)

    def ahead(self) -> tuple[Call, ...]:
        """The calls that lead from the operands to the results and to what is saved."""
        given = [number for number in (*self.operands, *self.drawn) if number is not None]
        return tuple(cut(self.calls[: self.forward], [*self.results, *self.saved], given))


@final
@dataclass(frozen=True, slots=True)
class BackwardTape:
    """What backward computes of what it reads.

    Args:
        calls: in order; they end in the gradients.
        reads: what they take, by role and place, of each number.
        again: the operators of torch that forward has called already.
    """

    calls: tuple[Call, ...]
    reads: Mapping[int, tuple[str, int]]
    again: tuple[str, ...]


def recorded_pass(context: TileContext, layouts: Layouts, *, saving: bool = False) -> RecordedPass | str:
    """Record a tile's pass; a text says why it cannot be.

    Args:
        context: the tile.
        layouts: of its tensors.
        saving: whether forward saves.
    """
    return _recorded(replace(context, stream=None, scratch=None), layouts, saving)


def does_save(context: TileContext, operands: Sequence[Tensor | None], results: Sequence[Tensor | None]) -> bool:
    """Whether a tile's forward saves for its backward: the one place where that is decided, for both.

    Nothing of where the tensors lie is asked, so a backward elsewhere comes to the same answer.

    Args:
        context: the tile.
        operands: what forward reads.
        results: the results, or their gradients.
    """
    operator = cast("TorchOperator", context.operator)
    if not (operator.saves or operator.keeps):
        return False
    placed = replace(context, stream=None, cores=1, training=True, scratch=None)
    layouts = Layouts(_compact(operands), _compact(results), served_places(context, operands))
    return isinstance(_recorded(placed, layouts, saving=True), RecordedPass)


def float_places(context: TileContext, operands: Sequence[Tensor | None]) -> tuple[int, ...]:
    """The operands that may have gradients, by place."""
    places = context.operator.differentiable
    return tuple(
        place
        for place, operand in enumerate(operands)
        if operand is not None and operand.is_floating_point() and (places is None or place in places)
    )


def served_places(context: TileContext, operands: Sequence[Tensor | None]) -> tuple[int, ...]:
    """The operands whose gradients read what forward saves, by place."""
    served = cast("TorchOperator", context.operator).served
    return tuple(place for place in float_places(context, operands) if served is None or place in served)


@lru_cache(maxsize=1024)
def _recorded(context: TileContext, layouts: Layouts, saving: bool) -> RecordedPass | str:  # noqa: FBT001 (a key)
    operator = cast("TorchOperator", context.operator)
    if operator.counts_storage:
        return "it counts elements from the start of a storage"
    if not operator.is_recordable:
        return "its body is its author's Python"
    context = replace(context, stream=cast("RandomStream", _NoStream()))
    operands = [_zeros(layout) for layout in layouts.operands]
    for place in layouts.wanted:
        cast("Tensor", operands[place]).requires_grad_()
    given = [_zeros(layout) for layout in layouts.result_gradients]
    like = next((tensor for tensor in operands if tensor is not None and tensor.is_floating_point()), None)
    drawn = [] if like is None else [like.new_zeros(each.shape) for each in operator.draws(context)]
    # What is saved serves some gradients; for others the pass is another.
    saving = saving and (operator.served is None or set(layouts.wanted) <= set(operator.served))
    try:
        with Recorder([tensor for tensor in (*operands, *drawn, *given) if tensor is not None]) as tape, Watch():
            with torch.enable_grad():
                found = operator.forward(context, (*operands, *drawn))
            results = results_of(found)
            forward = len(tape.calls)
            pairs = [(r, g) for r, g in zip(results, given, strict=True) if g is not None and r.requires_grad]
            wanted = [cast("Tensor", operands[place]) for place in layouts.wanted]
            gradients: Sequence[Tensor | None] = [None] * len(wanted)
            if pairs and wanted:
                values, seeds = zip(*pairs, strict=True)
                gradients = gradients_of(values, wanted, seeds)
        ends = tuple(tape.number(tensor) for tensor in results)
        saved = _saved(tape, forward, operator, found) if saving else ()
        return RecordedPass(
            tuple(map(_without_unread, tape.calls)),
            forward,
            tuple(None if tensor is None else tape.number(tensor) for tensor in operands),
            tuple(tape.number(tensor) for tensor in drawn),
            tuple(None if tensor is None else tape.number(tensor) for tensor in given),
            ends,
            saved,
            tuple(None if tensor is None else tape.number(tensor) for tensor in gradients),
            tuple(tape.layout(number) for number in (*ends, *saved)),
        )
    except NotRecordable as reason:
        return str(reason)
    except (RuntimeError, ValueError, IndexError) as error:  # such as a matrix of zeros that has no inverse
        return f"torch refuses zeros: {error}"


def promotes(calls: Sequence[Call], given: Mapping[int, object]) -> bool:
    """Whether calls recorded of float32 compute in float32 as well where some of what they are given are halves.

    torch does so element by element, beside an operand of float32 that has dimensions.
    """
    there = {number: value for number, value in given.items() if isinstance(value, Tensor)}
    halves = {number for number, value in there.items() if value.dtype in HALVES}
    singles = {number for number, value in there.items() if value.dtype == torch.float32 and value.ndim}
    for call in calls:
        read = set(call.reads())
        if call.is_view and not halves.isdisjoint(read):
            halves.update(number for number in call.results if number is not None)
            continue
        if not halves.isdisjoint(read) and (torch.Tag.pointwise not in call.function.tags or singles.isdisjoint(read)):
            return False
        for number, made in zip(call.results, call.made, strict=True):
            if number is not None and made is not None and made[0] and made[1] == torch.float32:
                singles.add(number)
    return True


_OF_SHAPES = frozenset(("new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like"))
"""Calls that ask what shape and kind a tensor has, and not what is in it."""


def _following(calls: Sequence[Call], given: Iterable[int]) -> list[Call]:
    """The calls that follow from what is given; others make constants, such as a mask of places."""
    known, found = set(given), list[Call]()
    for call in calls:
        if call.name not in _OF_SHAPES and not known.isdisjoint(call.reads()):
            known.update(number for number in call.results if number is not None)
            found.append(call)
    return found


def _without_unread(call: Call) -> Call:
    """A call without what torch passes and does not read: a batch norm's running statistics, where it trains."""
    if call.name == "native_batch_norm_backward" and call.args[7] is True:
        return replace(call, args=(*call.args[:3], None, None, *call.args[5:]))
    return call


def _saved(tape: Recorder, forward: int, operator: TorchOperator, given: object) -> tuple[int, ...]:
    """The numbers of the values that forward saves: those that it gives, or what the first call of a name gives.

    Each call is looked for from that on which gave the one before it.

    Args:
        tape: The tape.
        forward: So many of its calls are forward's.
        operator: The operator.
        given: What forward gave.
    """
    if operator.keeps:
        if not isinstance(given, Keeping):
            raise NotRecordable("torch has no kernel for this tile that gives what is saved")
        return tuple(tape.number(tensor) for tensor in given.saved)
    found: list[int] = []
    rest = iter(tape.calls[:forward])
    call = next(rest, None)
    for name, place in operator.saves:
        while call is not None and (call.name != name or call.results[place] is None):
            call = next(rest, None)
        if call is None:
            raise NotRecordable(f"torch does not call {name} for this tile")
        found.append(cast("int", call.results[place]))
    return tuple(found)


def _layout(tensor: Tensor | None) -> Layout | None:
    if tensor is None:
        return None
    beside = int(tensor.storage_offset()) % max(1, LINE // tensor.element_size()) if tensor.is_cuda else 0
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, beside


def _in_single(layout: Layout | None) -> Layout | None:
    if layout is None or layout[2] not in HALVES:
        return layout
    shape, stride, _, device, beside = layout
    return shape, stride, torch.float32, device, beside


def _compact(tensors: Sequence[Tensor | None]) -> tuple[Layout | None, ...]:
    """The layouts of tensors that lie in memory of their own."""
    found: list[Layout | None] = []
    for tensor in tensors:
        stride = () if tensor is None else torch.empty(tensor.shape, device="meta").stride()
        found.append(None if tensor is None else (tensor.shape, stride, tensor.dtype, tensor.device, 0))
    return tuple(found)


def _zeros(layout: Layout | None) -> Tensor | None:
    if layout is None:
        return None
    shape, stride, dtype, device, beside = layout
    if not beside:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    return torch.zeros(beside + max(0, span), dtype=dtype, device=device).as_strided(shape, stride, beside)


class _NoStream:
    """Stands for random numbers where a pass is recorded."""

    def __getattr__(self, name: str) -> object:
        raise NotRecordable("it draws random numbers")
