"""Kernels of torch operators: forward as it is, backward by the tape of the tile or else under autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.operators.operator.recorded_pass import (
    HALVES,
    Layouts,
    RecordedPass,
    does_save,
    promotes,
    recorded_pass,
    served_places,
)
from maniple.operators.recording.compiled_tape import Written, bind_calls
from maniple.operators.recording.tape import Call, Made, reads_of
from maniple.process.error import RunError
from maniple.process.torch_internals import gradients_of
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from maniple.operators.operator.torch_operator import TorchOperator


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The operator's forward; in training with what backward reads of it."""
    if context.training and tensors.saved and does_save(context, tensors.operands, tensors.results):
        return _bind_saving(context, tensors)
    return _bind_recorded(context, tensors) or _bind_called(context, tensors)


def _bind_recorded(context: TileContext, tensors: ForwardTensors) -> Callable[[], None] | None:
    """Forward by the tape of the tile; None where there is none that gives the results."""
    found = recorded_pass(context, Layouts.of(tensors.operands, [None] * len(tensors.results), ()))
    if isinstance(found, str) or not _fits(found, tensors.results):
        return None
    return _bind_ahead(context, found, tensors.operands, tensors.results)


def _bind_called(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward by calling it."""
    operator, operands, results = cast("TorchOperator", context.operator), tensors.operands, tensors.results

    def run() -> None:
        found = operator.compute(context, operands)
        _check(context, found, results)
        for target, value in zip(results, found, strict=True):
            target.copy_(value)

    return run


def _bind_saving(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward by the tape of the tile, which also gives what is saved.

    Raises:
        RunError: torch computes the tile in another way where its tensors lie as they do, or the rule of what is saved
            and the body do not agree.
    """
    operands = tensors.operands
    layouts = Layouts.of(operands, tensors.results, served_places(context, operands))
    found = recorded_pass(context, layouts, saving=True)
    name = type(context.operator).__name__
    if isinstance(found, str):
        raise RunError(f"{name}.forward: what backward reads of tile {context.tile.index} is not there: {found}")
    targets = (*tensors.results, *tensors.saved)
    if not _fits(found, targets):
        raise RunError(
            f"{name}.forward: expected results and saved values of {_shapes(targets)} for tile {context.tile.index}, "
            f"got {found.shapes}; the rule and the body do not agree"
        )
    return _bind_ahead(context, found, operands, targets)


def _bind_ahead(
    context: TileContext, found: RecordedPass, operands: tuple[Tensor | None, ...], targets: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The calls of forward, which write the results and what is saved."""
    drawn = cast("TorchOperator", context.operator).bind_draws(context, operands)
    pairs = (*zip(found.operands, operands, strict=True), *zip(found.drawn, drawn, strict=True))
    given = {number: value for number, value in pairs if number is not None and value is not None}
    written = [Written(number, target) for number, target in zip((*found.results, *found.saved), targets, strict=True)]
    calls = found.ahead()
    read = reads_of(calls, [item.number for item in written])
    return _bind_calls(context, calls, {number: value for number, value in given.items() if number in read}, written)


def _bind_calls(
    context: TileContext,
    calls: Sequence[Call],
    given: Mapping[int, Callable[[], Tensor] | Tensor],
    written: Sequence[Written],
) -> Callable[[], None]:
    """The calls as one function, which torch compiles where the operator says so."""
    if not cast("TorchOperator", context.operator).is_compiled:
        on_host = all(in_host_memory(item.target) for item in written)
        return bind_calls(calls, given, written, context.scratch if on_host else None)
    from maniple.operators.recording.inductor_tape import bind_compiled  # torch's compiler takes seconds to import

    return bind_compiled(calls, given, written, context.cores)


def _fits(found: RecordedPass, targets: Sequence[Tensor]) -> bool:
    """Whether a pass gives what the targets are for; a half is for a value of float32 too, rounded as it is written."""
    pairs = zip(found.shapes, _shapes(targets), strict=True)
    return all(
        made == wanted or (made[0] == wanted[0] and made[1] == torch.float32 and wanted[1] in HALVES)
        for made, wanted in pairs
    )


def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradients: by the tape of the tile, and by autograd where its pass cannot be recorded."""
    return _bind_tape(context, tensors) or _bind_autograd(context, tensors)


def bind_promoted_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None] | None:
    """Forward of halves as they are: by the tape of the tile, if what it computes is one call, which rounds once."""
    found = recorded_pass(context, Layouts.of(tensors.operands, [None] * len(tensors.results), ()))
    if isinstance(found, str) or tensors.saved or found.shapes != _shapes(tensors.results):
        return None
    if sum(not call.is_view for call in found.ahead()) > 1:
        return None
    return _bind_ahead(context, found, tensors.operands, tensors.results)


def bind_promoted_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None] | None:
    """Gradients in float32 that read halves as they are: by the tape of float32, if its calls take halves as well."""
    return None if tensors.saved else _bind_tape(context, tensors, promoted=True)


def has_saved(context: TileContext, tensors: BackwardTensors) -> bool:
    """Whether the tile's forward has saved what its rule says."""
    known = _with_zeros(context, tensors.operands, tensors.result_gradients)
    pairs = zip(tensors.result_gradients, tensors.results, strict=True)
    ends = [gradient if result is None else result for gradient, result in pairs]
    return bool(tensors.saved) and does_save(context, known, ends)


def _bind_tape(context: TileContext, tensors: BackwardTensors, *, promoted: bool = False) -> Callable[[], None] | None:
    """The calls of the backward pass, of what it reads; None where it cannot be recorded.

    Args:
        context: The tile.
        tensors: What it reads and writes.
        promoted: Whether calls that compute on float32 are given the halves that stand for it.
    """
    known = _with_zeros(context, tensors.operands, tensors.result_gradients)
    targets = gradient_targets(context, known, tensors.operand_gradients)
    wanted = [place for place, target in enumerate(targets) if target is not None]
    ends = [
        gradient if result is None else result
        for gradient, result in zip(tensors.result_gradients, tensors.results, strict=True)
    ]
    saving = bool(tensors.saved) and does_save(context, known, ends)
    layouts = Layouts.of(known, tensors.result_gradients, wanted)
    found = recorded_pass(context, layouts.singly() if promoted else layouts, saving=saving)
    if isinstance(found, str):
        return None
    tape = found.backward([place for place, result in enumerate(tensors.results) if result is not None])
    if tape is None:
        return None
    drawn = cast("TorchOperator", context.operator).bind_draws(context, tensors.operands) if found.drawn else ()
    there: dict[str, Sequence[Tensor | Callable[[], Tensor] | None]] = {"operand": known, "result": tensors.results}
    there |= {"result_gradient": tensors.result_gradients, "saved": tensors.saved, "drawn": drawn}
    reads = context.operator.backward_reads
    readable = reads.operand_places(len(known))
    if reads.results and any(role == "operand" and place not in readable for role, place in tape.reads.values()):
        return None
    made = {number: each for call in found.calls for number, each in zip(call.results, call.made, strict=False)}
    given = {number: _as_made(there[role][place], made.get(number)) for number, (role, place) in tape.reads.items()}
    if promoted and not promotes(
        tape.calls, {number: there[role][place] for number, (role, place) in tape.reads.items()}
    ):
        return None
    pairs = [(place, number) for place, number in zip(wanted, found.gradients, strict=True) if number is not None]
    written = [Written(number, cast("Tensor", targets[place]), place in tensors.adds) for place, number in pairs]
    empty = _stepped_over(tensors, targets, {place for place, _ in pairs})
    run = _bind_calls(context, tape.calls, given, written)
    if not empty:
        return run

    def run_on_zeros() -> None:
        for whole in empty:
            whole.zero_()
        run()

    return run_on_zeros


def _as_made(value: Tensor | Callable[[], Tensor] | None, made: Made | None) -> Tensor | Callable[[], Tensor]:
    """A value as the tape knows it.

    What forward made lay in memory of its own when it was recorded, and torch reads statistics as if it always did; in
    a region it may lie between what other tiles of this memory made. Where it lies as it was made, it is read there.

    Args:
        value: As it lies.
        made: How a call of forward made it; None: it was given.
    """
    if isinstance(value, Tensor) and made is not None and not value.is_contiguous():
        return value if value.stride() == made[2] else value.contiguous
    return cast("Tensor | Callable[[], Tensor]", value)


def _put(tensors: BackwardTensors, place: int, target: Tensor) -> Callable[[Tensor], object]:
    """What brings an operand's gradient where it goes: adds it to what is there, or writes it."""
    return target.add_ if place in tensors.adds else target.copy_


def _stepped_over(tensors: BackwardTensors, targets: tuple[Tensor | None, ...], made: set[int]) -> list[Tensor]:
    """The gradients of which something is zero, and written."""
    return [
        whole
        for place, (whole, target) in enumerate(zip(tensors.operand_gradients, targets, strict=True))
        if whole is not None
        and place not in tensors.adds
        and (place not in made or target is None or target.shape != whole.shape)
    ]


def _bind_autograd(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradients by autograd, for which forward is computed again.

    Raises:
        RunError: the operator's backward does not read what forward needs.
    """
    if context.operator.backward_reads.results and context.operator.backward_reads.operands is not None:
        raise RunError(
            f"{type(context.operator).__name__}.backward: expected gradients that follow from the results alone; torch "
            f"computes tile {context.tile.index} in another way"
        )
    operands, result_gradients = tensors.operands, tensors.result_gradients
    operand_gradients = tensors.operand_gradients
    operator = cast("TorchOperator", context.operator)
    known = _with_zeros(context, operands, result_gradients)
    targets = gradient_targets(context, known, operand_gradients)

    def run() -> None:
        # Not detach(), whose version counter is the instance's: a task that writes other rows would look like a change.
        leaves = [
            value if value is None else value.data.requires_grad_(target is not None)
            for value, target in zip(known, targets, strict=True)
        ]
        with torch.enable_grad():
            found = operator.compute(context, tuple(leaves))
        pairs = [
            (value, gradient)
            for value, gradient in zip(found, result_gradients, strict=True)
            if gradient is not None and value.requires_grad
        ]
        wanted = [leaf for leaf, target in zip(leaves, targets, strict=True) if target is not None and leaf is not None]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if pairs and wanted:
            values, given = zip(*pairs, strict=True)
            if operator.counts_storage:
                given = tuple(gradient.clone() for gradient in given)
            given = tuple(map(_laid_alike, given, values))
            gradients = gradients_of(values, wanted, given)
        each = iter(gradients)
        for place, (whole, target) in enumerate(zip(operand_gradients, targets, strict=True)):
            if whole is None:
                continue
            gradient = None if target is None else next(each)
            partial = gradient is None or target is None or target.shape != whole.shape
            if partial and place not in tensors.adds:
                whole.zero_()
            if gradient is not None and target is not None:
                _put(tensors, place, target)(gradient)

    return run


def _laid_alike(gradient: Tensor, value: Tensor) -> Tensor:
    """A gradient that lies as the value whose it is.

    torch keeps what cuDNN made of an attention by how queries, keys and values lie, and reads each further gradient of
    a result as that of the first one lay.
    """
    if not value.is_cuda or gradient.stride() == value.stride():
        return gradient
    return torch.empty_like(value, dtype=gradient.dtype).copy_(gradient)


def _check(context: TileContext, found: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Refuse what is not the tile's results: a copy would broadcast or convert without a word.

    Raises:
        RunError: Another number of results, another shape or dtype.
    """
    name = type(context.operator).__name__
    if len(found) != len(results):
        raise RunError(f"{name}.forward: expected {len(results)} results, got {len(found)}")
    for place, (value, target) in enumerate(zip(found, results, strict=True)):
        if not isinstance(value, Tensor):
            way = "; does the body return it?" if value is None else "; give several as a tuple of tensors"
            raise RunError(
                f"{name}.forward: expected result {place} to be a torch.Tensor, got {type(value).__name__}{way}"
            )
        rounded = value.dtype == torch.float32 and target.dtype in HALVES
        if value.shape != target.shape or not (value.dtype == target.dtype or rounded):
            raise RunError(
                f"{name}.forward: expected result {place} of shape {tuple(target.shape)}, {target.dtype}, for tile "
                f"{context.tile.index}, got {tuple(value.shape)}, {value.dtype}; the rule and the body do not agree"
            )


def _with_zeros(
    context: TileContext, operands: tuple[Tensor | None, ...], result_gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """The operands, with zeros for those whose values no gradient depends on."""
    read = context.operator.backward_reads.operand_places(len(operands))
    like = next(gradient for gradient in result_gradients if gradient is not None)
    known: list[Tensor | None] = []
    for place, (value, rect) in enumerate(zip(operands, context.tile.operand_rects, strict=True)):
        absent = rect is None or rect.is_empty
        known.append(value if place in read or rect is None or absent else like.new_zeros(rect.shape))
    return tuple(known)


def gradient_targets(
    context: TileContext, operands: tuple[Tensor | None, ...], gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """For every operand, the part of the gradient to write that is the gradient of what the tile reads.

    Rows that a window steps over are in the gradient and not in the operand.
    """
    targets: list[Tensor | None] = []
    for operand, gradient, read, grown in zip(
        operands, gradients, context.tile.operand_rects, context.tile.gradient_rects, strict=True
    ):
        if operand is None or gradient is None or read is None or grown is None:
            targets.append(None)
        else:
            targets.append(gradient[_inside(read, grown)])
    return tuple(targets)


def _inside(read: Rect, grown: Rect) -> tuple[slice, ...]:
    """Where one rectangle lies in another."""
    return read.slices(grown.lo)


KERNELS = Kernels(bind_forward, bind_backward, accumulates=None)
