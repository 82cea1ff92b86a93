"""Access checks: what `debug()` looks for around a body, namely writes of what it may only read, and writes left out.

Storage that a task is to write and does not see holds whatever was there. Before the body runs it is filled with a
pattern of bits that values seldom have. Where the pattern is still there afterwards, the body has either written
nothing or exactly that; so it runs once more, on the arguments of the first time and over another pattern, and what
bears both was written in neither run:

    first run    c5a5 c5a5  1.0  c5a5        second run    3a5a 3a5a  1.0  c5a5
                 -- left --      written                   -- left --      written: it is the value

The results are those of the first run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from maniple.process.digest import flat_bytes
from maniple.process.error import RunError
from maniple.regions.index_space import RectSet
from maniple.runtime.storage.copy_kernels import positions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.privilege import Privilege

__all__: list[str] = []

# Bytes of the two patterns; for truth values neither is one, so that no second run is needed.
PATTERNS = (0xC5, 0x3A)
# How many points an error names.
SHOWN = 3

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False, slots=True)
class CheckedArgument:
    """An argument of a body that is checked.

    Args:
        parameter: what the body calls it.
        region: what the program calls it.
        view: the bounds of its elements.
        space: its elements.
        privilege: what the task may do with it.
    """

    parameter: str
    region: str
    view: torch.Tensor
    space: IndexSpace
    privilege: Privilege

    @property
    def discards(self) -> bool:
        """Whether the body must write all of it."""
        return self.privilege.writes and not self.privilege.reads

    def paint(self, pattern: int) -> None:
        """Fill it with a pattern."""
        bits = _elements(self.view)
        bits.fill_(_word(pattern, bits.dtype))

    def bare(self, pattern: int) -> torch.Tensor:
        """Say of which of its elements, in their order, a pattern is all that is there."""
        bits = _elements(self.view)
        same = bits == _word(pattern, bits.dtype)
        return same[positions(self.space)] if isinstance(self.space, RectSet) else same.reshape(-1)


def guard_access(body: Callable[..., object], arguments: Sequence[CheckedArgument]) -> Callable[..., object]:
    """Wrap a body so that it fails if it writes what it may only read, or leaves out what it must write.

    Args:
        body: the body; it may run twice.
        arguments: those with a privilege, in the order of the signature.
    """
    discarded = [argument for argument in arguments if argument.discards and argument.space.volume]
    read = [argument for argument in arguments if not (argument.privilege.writes or argument.privilege.reduces)]
    kept = [argument for argument in arguments if not argument.discards] if discarded else read

    def call(*given: object) -> object:
        before = [argument.view.clone() for argument in kept]
        state = torch.get_rng_state() if discarded else None
        for argument in discarded:
            argument.paint(0)
        found = body(*given)
        for argument, held in zip(kept, before, strict=True):
            if argument in read and not torch.equal(flat_bytes(argument.view), flat_bytes(held)):
                name = argument.parameter
                msg = f"the body wrote its argument {name!r}, which it declares as read; declare it ReadWrite"
                raise RunError(msg)
        suspects = [argument.bare(0) for argument in discarded]
        if state is not None and any(bool(each.any()) for each in suspects):
            _run_again(lambda: body(*given), kept, before, discarded, suspects, state)
        return found

    return call


def _run_again(
    body: Callable[[], object],
    kept: Sequence[CheckedArgument],
    before: Sequence[torch.Tensor],
    discarded: Sequence[CheckedArgument],
    suspects: Sequence[torch.Tensor],
    state: torch.Tensor,
) -> None:
    """Run a body once more over the other pattern, and put the first run's results back.

    Raises:
        RunError: it has written some elements in neither run.
    """
    results = [argument.view.clone() for argument in (*kept, *discarded)]
    after = torch.get_rng_state()
    for argument, held in zip(kept, before, strict=True):
        argument.view.copy_(held)
    for argument in discarded:
        argument.paint(1)
    torch.set_rng_state(state)
    try:
        body()
        left = [each & argument.bare(1) for argument, each in zip(discarded, suspects, strict=True)]
    finally:
        torch.set_rng_state(after)
        for argument, held in zip((*kept, *discarded), results, strict=True):
            argument.view.copy_(held)
    for argument, bare in zip(discarded, left, strict=True):
        if bool(bare.any()):
            raise RunError(_describe_unwritten(argument, bare))


def _describe_unwritten(argument: CheckedArgument, bare: torch.Tensor) -> str:
    """Describe the elements that a body has left out."""
    wanted = set(torch.nonzero(bare).reshape(-1)[:SHOWN].tolist())
    points = [point for number, point in enumerate(_points(argument.space, max(wanted))) if number in wanted]
    count = int(bare.sum())
    named = ", ".join(str(point[0] if len(point) == 1 else point) for point in points)
    first = f"{'first ' if count > len(points) else ''}{named}" if points[0] else "its only one"
    return (
        f"the body left {count} of the {argument.space.volume} elements of its argument {argument.parameter!r} "
        f"unwritten ({argument.region}: {first}), which it declares as write-discard; "
        "write every one in place, as in x[:] = ..., or declare it ReadWrite"
    )


def _points(space: IndexSpace, last: int) -> list[tuple[int, ...]]:
    """Give the points of a space up to one of them, in the order of its elements."""
    found = []
    for number, point in enumerate(space.points()):
        found.append(tuple(point))
        if number == last:
            break
    return found


def _word(pattern: int, dtype: torch.dtype) -> int:
    """Give a pattern as a number of some type."""
    return int.from_bytes(bytes([PATTERNS[pattern]]) * dtype.itemsize, "little", signed=dtype != torch.uint8)


def _elements(view: torch.Tensor) -> torch.Tensor:
    """View elements as whole numbers of the same size."""
    return view.view(_BITS[view.element_size()])
