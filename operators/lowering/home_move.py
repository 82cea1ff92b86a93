"""Moves of homes: what a plan keeps for a training goes to where another plan keeps it.

A move is a launch like any other: at each block of the new home a task reads the old region and writes the new one. The
analysis of validity, which knows where the old home is, derives the copies: of each block the elements that its memory
does not hold already, from a memory that does, and nothing else.

    old home    rows 0 to 3 in memory 0,  4 to 7 in memory 1        moved
    new home    rows 0 to 1 in memory 0                             nothing
                rows 2 to 5 in memory 1                             rows 2 and 3, memory 0 to 1
                rows 6 to 7 in memory 2                             rows 6 and 7, memory 1 to 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from maniple.operators.lowering.operator_body import AssignBinder
from maniple.operators.lowering.step_program import Program
from maniple.process.error import RoomError
from maniple.regions.privilege import READ, WRITE_DISCARD
from maniple.runtime.schedule.launch import Launch, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.lowering.weight import Weight
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.fragment import Home
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class HomeMove:
    """A region's way from one home to another.

    Args:
        old: the region as it was.
        new: the region as it will be, of the same elements.
        weight: whose it will be: its tasks make the move, block by block.
        left: where the old one lives.
    """

    old: LogicalRegion
    new: LogicalRegion
    weight: Weight
    left: Home

    def launch(self) -> Launch:
        """The launch that moves it."""
        rects = self.weight.rects
        needs = Requirement(self.new, WRITE_DISCARD, rects), Requirement(self.old, READ, rects)
        return Launch(f"{self.old.name}.move", self.weight.points, needs, AssignBinder())


def find_moves(old: Mapping[str, Weight], new: Mapping[str, Weight]) -> tuple[HomeMove, ...]:
    """The moves from homes to others, the largest region first; regions that stay where they are have none."""
    found = [
        HomeMove(before, after, weight, old[name].home)
        for name, weight in new.items()
        for before, after in zip(old[name].regions, weight.regions, strict=True)
        if before.id != after.id
    ]
    return tuple(sorted(found, key=lambda move: (-move.old.size_bytes, move.old.id)))


@final
@dataclass(frozen=True, slots=True)
class MoveSizes:
    """What a move takes of each memory, in bytes.

    Args:
        before: the old instance.
        meanwhile: the old instance while it is moved: where it has to grow, as it was and as it is then.
        after: the new instance.
    """

    before: Mapping[int, int]
    meanwhile: Mapping[int, int]
    after: Mapping[int, int]

    @classmethod
    def of(cls, move: HomeMove, old: Mapping[int, Rect], new: Mapping[int, Rect]) -> Self:
        """The sizes of a move.

        Args:
            move: the move.
            old: what the old instance covers, by memory.
            new: what the new one will cover.
        """
        size, meanwhile = move.old.itemsize, {}
        homes = dict(move.weight.home)
        for memory in old.keys() | homes.keys():
            grown = [*homes.get(memory, ()), *([old[memory]] if memory in old else [])]
            hull = grown[0]
            for rect in grown[1:]:
                hull = hull.hull(rect)
            held = old[memory].volume if memory in old else 0
            meanwhile[memory] = size * (hull.volume + (held if hull.volume > held else 0))
        before, after = ({memory: size * rect.volume for memory, rect in each.items()} for each in (old, new))
        return cls(before, meanwhile, after)


def in_turns(
    moves: Sequence[HomeMove], sizes: Mapping[int, MoveSizes], machine: Machine, besides: Mapping[int, int]
) -> list[tuple[HomeMove, ...]]:
    """Moves that are made at once, turn after turn: as many as fit together into every memory.

    Args:
        moves: all, in order.
        sizes: of each, by the id of the old region.
        machine: the memories, with their capacities.
        besides: bytes that take part in no move, by memory.

    Raises:
        RoomError: an old and a new home of one region do not fit together.
    """
    capacity = {memory.id: memory.capacity_bytes for memory in machine.memories}
    held = {memory: besides.get(memory, 0) for memory in capacity}
    for move in moves:
        _add(held, sizes[move.old.id].before)
    turns: list[list[HomeMove]] = []
    peak = dict(held)
    for move in moves:
        wanted = _start(peak, sizes[move.old.id])
        if turns and any(wanted[memory] > capacity[memory] for memory in wanted):
            for done in turns[-1]:
                _add(held, sizes[done.old.id].before, -1)
                _add(held, sizes[done.old.id].after)
            turns.append([])
            wanted = _start(held, sizes[move.old.id])
        for memory, size in wanted.items():
            if size > capacity[memory]:
                raise RoomError(
                    f"adopt: {move.old.name}: its old and its new home do not fit together into memory {memory}: with "
                    f"what else lasts there they take {size} bytes, of {capacity[memory]}; the old plan goes on; save "
                    "a checkpoint and resume under the plan, or adopt one whose homes are nearer"
                )
        turns = turns or [[]]
        turns[-1].append(move)
        peak = wanted
    return [tuple(turn) for turn in turns]


def _start(held: Mapping[int, int], sizes: MoveSizes) -> dict[int, int]:
    """What memories hold once a further move has begun."""
    found = dict(held)
    _add(found, sizes.before, -1)
    _add(found, sizes.meanwhile)
    _add(found, sizes.after)
    return found


def _add(held: dict[int, int], sizes: Mapping[int, int], sign: int = 1) -> None:
    for memory, size in sizes.items():
        held[memory] += sign * size


def move_program(moves: Sequence[HomeMove]) -> Program:
    """The program of some moves."""
    homes = {move.old.id: move.left for move in moves} | {move.new.id: move.weight.home for move in moves}
    return Program(tuple(move.launch() for move in moves), homes)
