"""Compiled tapes: the calls of a tape as one function, bound to the tensors that it reads and writes.

A value that a body writes is given its memory beforehand where torch has a variant of the call for that, instead of
being made somewhere else and copied:

    tape                                  bound to gradient g, operand x, target y
    2  gelu_backward(1, 0)                gelu_backward.grad_input(g, x, grad_input=y)
    3  mm(2, 4)                           mm.out(y, w, out=z.t())       (5, the transpose of 3, is what is wanted)
    5  t(3)
    6  embedding_dense_backward(...)      the call, then a copy: torch has no variant that writes to given memory

What is made on the way, and is large, lies in scratch memory where there is some, in places that are free again after
the last call that reads what was there (`passing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor

from maniple.operators.recording.passing_value import passing
from maniple.operators.recording.tape import Call, Value, source_of
from maniple.process import torch_internals

if TYPE_CHECKING:
    from maniple.runtime.storage.scratchpad import ScratchTurn

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Written:
    """A value that is written to memory that there is.

    Args:
        number: of the value.
        target: the memory, of the value's shape and dtype.
        adds: whether it is added to what is there.
    """

    number: int
    target: Tensor
    adds: bool = False


def bind_calls(
    calls: Sequence[Call],
    given: Mapping[int, Callable[[], Tensor] | Tensor],
    written: Sequence[Written],
    scratch: ScratchTurn | None = None,
) -> Callable[[], None]:
    """Give a function that makes the calls and writes what is wanted.

    A value is let go after the last call that reads it.

    Args:
        calls: in order.
        given: the values that there are before, by number: a tensor, or what makes one whenever the function runs.
        written: the values wanted; none of their memory is that of a given one.
        scratch: memory of the host for what is made on the way; None: torch gives it, and takes it back.
    """
    names: dict[str, object] = {}
    lines = ["def run():"]
    for number, value in given.items():
        if isinstance(value, Tensor):
            names[f"v{number}"] = value
        else:
            names[f"g{number}"] = value
            lines.append(f"    v{number} = g{number}()")
    placed = _places(calls, given, written)
    if scratch is not None and written:
        able = {
            at for at, call in enumerate(calls) if placed.keys().isdisjoint(call.results) and _gives(calls, at, given)
        }
        placed |= passing(calls, able, [item.number for item in written], scratch, written[0].target)
    last = _last_reads(calls, [item.number for item in written])
    for at, call in enumerate(calls):
        lines += [f"    {line}" for line in _lines(at, call, placed, names, given)]
        gone = [n for n, end in last.items() if end == at and n not in given and n not in placed]
        if gone:
            lines.append(f"    {' = '.join(f'v{number}' for number in gone)} = None")
    for place, item in enumerate(written):
        if placed.get(item.number) is not item.target:
            if item.number in placed:
                names[f"v{item.number}"] = placed[item.number]
            names[f"t{place}"] = item.target
            lines.append(f"    t{place}.{'add_' if item.adds else 'copy_'}(v{item.number})")
    lines.append("    return None")
    return _closed(lines, names)


def _closed(lines: Sequence[str], names: Mapping[str, object]) -> Callable[[], None]:
    """The function of a text, with what it names in its closure.

    In its globals it would be a name among what it names: such a ring is let go of by the collector alone, some time
    after the last who called it, and with it the memory of every tensor that it names.
    """
    space: dict[str, Any] = {}
    text = (f"def bind({', '.join(names)}):", *(f"    {line}" for line in lines), "    return run")
    exec("\n".join(text), space)  # noqa: S102  (the text is made of numbers alone)
    return cast("Callable[[], None]", space.pop("bind")(**names))


def _last_reads(calls: Sequence[Call], wanted: Sequence[int]) -> dict[int, int]:
    """After which call nobody reads a value any more."""
    last: dict[int, int] = {}
    for at, call in enumerate(calls):
        last.update(dict.fromkeys([*call.reads(), *(made for made in call.results if made is not None)], at))
    return {number: end for number, end in last.items() if number not in wanted}


def _places(
    calls: Sequence[Call], given: Mapping[int, Callable[[], Tensor] | Tensor], written: Sequence[Written]
) -> dict[int, Tensor]:
    """The memory of each value that a call, or a view of what it makes, puts where it is wanted at once."""
    made = {number: call for call in calls for number in call.results if number is not None}
    changed = {number for call in calls if call.changes is not None for number in (call.changes, *call.results)}
    chains: dict[int, dict[int, Tensor]] = {}
    for item in written:
        if item.number in given or item.adds:
            continue
        base, chain = _undone(item, made)
        taken = any(chain.keys() & other.keys() for other in chains.values())
        if not taken and not changed.intersection(chain) and _reads_alike(calls, chain, made):
            chains[base] = chain
    placed: dict[int, Tensor] = {}
    for base, chain in chains.items():
        call = made.get(base)
        if call is not None and _writes(call, chains, given, made):
            placed |= chain
    return placed


def _reads_alike(calls: Sequence[Call], chain: Mapping[int, Tensor], made: Mapping[int, Call]) -> bool:
    """Whether whoever reads a value that is put elsewhere finds it lie as it did when it was recorded."""
    others = [call for call in calls if not chain.keys() & set(call.results)]
    read = {number for call in others for number in call.reads()}
    return all(
        chain[number].stride() == call.made[call.results.index(number)][2]  # type: ignore[index]
        for number in chain.keys() & read
        if (call := made.get(number)) is not None
    )


def _undone(item: Written, made: Mapping[int, Call]) -> tuple[int, dict[int, Tensor]]:
    """The value of which the wanted one is a view, and the memory of each on the way, views of the target."""
    number, target = item.number, item.target
    chain = {number: target}
    while (call := made.get(number)) is not None and call.name in _INVERSES:
        source = call.args[0]
        before = made.get(source.number) if isinstance(source, Value) else None
        if before is None or not isinstance(source, Value):
            break
        shape, *_ = before.made[before.results.index(source.number)] or ((),)
        try:
            target = _INVERSES[call.name](target, call.args, shape)
        except RuntimeError:  # torch's answer where strides do not allow a view
            break
        number = source.number
        chain[number] = target
    return number, chain


def _writes(
    call: Call,
    chains: Mapping[int, Mapping[int, Tensor]],
    given: Mapping[int, Callable[[], Tensor] | Tensor],
    made: Mapping[int, Call],
) -> bool:
    """Whether torch can write all that a call makes to the memory where it is wanted."""
    if any(number not in chains for number in call.results):
        return False
    targets = [chains[cast("int", number)][cast("int", number)] for number in call.results]
    pairs = list(zip(targets, call.made, strict=True))
    alike = all(made is not None and (target.shape, target.dtype) == made[:2] for target, made in pairs)
    if not alike or out_variant(call, targets[0].device.type) is None:
        return False
    return _is_anyhow(call) or (all(target.is_contiguous() for target in targets) and _reads_dense(call, given, made))


def _is_anyhow(call: Call) -> bool:
    """Whether torch looks how what a call reads and writes lies: native_batch_norm.out takes strided rows for dense."""
    return call.name in _ANYHOW or torch.Tag.pointwise in call.function.tags


def _reads_dense(call: Call, given: Mapping[int, Callable[[], Tensor] | Tensor], made: Mapping[int, Call]) -> bool:
    return all(_is_dense(number, given, made) for number in call.reads())


def _gives(calls: Sequence[Call], at: int, given: Mapping[int, Callable[[], Tensor] | Tensor]) -> bool:
    """Whether a call of the host can write all that it makes to memory that lies as that did when it was recorded."""
    call, made = calls[at], {number: call for call in calls for number in call.results if number is not None}
    changed = {number for call in calls if call.changes is not None for number in (call.changes, *call.results)}
    if call.is_view or call.name in _INVERSES or None in call.results or not changed.isdisjoint(call.results):
        return False
    dense = all(each is not None and _is_compact(each[0], each[2]) for each in call.made)
    return dense and out_variant(call, "cpu") is not None and (_is_anyhow(call) or _reads_dense(call, given, made))


def _is_dense(number: int, given: Mapping[int, Callable[[], Tensor] | Tensor], made: Mapping[int, Call]) -> bool:
    """Whether a value that a call reads lies without gaps, its dimensions in order."""
    value = given.get(number)
    if isinstance(value, Tensor):
        return value.is_contiguous()
    call = made.get(number)
    if call is None:  # what makes it whenever the function runs
        return False
    layout = call.made[call.results.index(number)]
    return layout is not None and _is_compact(layout[0], layout[2])


def _is_compact(shape: Sequence[int], stride: Sequence[int]) -> bool:
    return torch.empty(tuple(shape), device="meta").stride() == tuple(stride)


def out_variant(call: Call, device: str) -> tuple[Callable[..., object], tuple[str, ...]] | None:
    """What writes a call's results to memory that is given, and by which names; None where torch has nothing."""
    if call.name == "clone":
        return _copied, ("out",)
    numbered = _OF_NUMBERS.get(str(call.function))
    return torch_internals.out_variant(call.function if numbered is None else numbered, device)


def _copied(source: Tensor, *, out: Tensor, memory_format: object = None) -> object:
    """A clone in given memory: how that lies is known."""
    del memory_format
    return out.copy_(source)


_ANYHOW = frozenset(("mm", "addmm", "bmm", "baddbmm", "clone", "cat", "sum", "mean", "amax", "amin"))
"""What reads and writes memory however it lies, besides what computes element by element."""

_OF_NUMBERS = {
    str(packet.Scalar): packet.Tensor
    for packet in (torch.ops.aten.add, torch.ops.aten.sub, torch.ops.aten.mul, torch.ops.aten.div)
}
"""Calls with a number for which torch only writes to memory that is given if that number stands for a tensor."""


def _inverse_view(target: Tensor, args: Sequence[object], shape: Sequence[int]) -> Tensor:
    del args
    return target.view(shape)


def _inverse_transpose(target: Tensor, args: Sequence[object], shape: Sequence[int]) -> Tensor:
    del shape
    return target.transpose(cast("int", args[1]), cast("int", args[2]))


def _inverse_permute(target: Tensor, args: Sequence[object], shape: Sequence[int]) -> Tensor:
    order = [axis % len(shape) for axis in cast("Sequence[int]", args[1])]
    return target.permute([order.index(axis) for axis in range(len(order))])


_INVERSES: Mapping[str, Callable[[Tensor, Sequence[object], Sequence[int]], Tensor]] = {
    "view": _inverse_view,
    "_unsafe_view": _inverse_view,
    "unsqueeze": _inverse_view,
    "t": lambda target, args, shape: target.t(),  # noqa: ARG005  (what all of them are given)
    "transpose": _inverse_transpose,
    "permute": _inverse_permute,
}
"""For views of all elements: the view of the result's memory in which the operand lies."""


def _lines(
    at: int, call: Call, placed: Mapping[int, Tensor], names: dict[str, object], given: Mapping[int, object]
) -> list[str]:
    """How a call is written."""
    written = [number for number in call.results if number in placed]
    for number in written:
        names[f"v{number}"] = placed[cast("int", number)]
    if written and call.name in _INVERSES:
        return []
    items = [source_of(item, f"c{at}_{place}", names) for place, item in enumerate(call.args)]
    items += [f"{key}={source_of(item, f'c{at}{key}', names)}" for key, item in call.named.items()]
    if written:
        device = placed[cast("int", written[0])].device.type
        names[f"f{at}"], outs = cast("tuple[object, tuple[str, ...]]", out_variant(call, device))
        items += [f"{name}=v{number}" for name, number in zip(outs, call.results, strict=True)]
        return [f"f{at}({', '.join(items)})"]
    names[f"f{at}"] = call.function
    # What is given is not made again: a call may give it beside something else.
    left = ", ".join("_" if number is None or number in given else f"v{number}" for number in call.results)
    return [f"{left}{',' * call.several} = f{at}({', '.join(items)})"]
