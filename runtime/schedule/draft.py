"""Drafts: the steps of lanes while these are laid out, and the table from which it is found what lives how long. Pure.

What a copy engine moves ends after the step that starts it, and at each rank by itself. A tile leaves its source once
the sender's step has begun, and lies in its target once both ends' steps have begun; who waits for the movement at the
receiving rank knows that it has arrived, and so that nobody reads its source for it any more:

    ====  ==================  ==================  ===========================  ===============
    step  lane of p0          lane of p1          its uses                     waits for
    ====  ==================  ==================  ===========================  ===============
    0     makes A             .                   A: 0 to 0
    1     .                   starts: B may come                               .
    2     starts: A may go    .                   .                            .
    3     (end at p0)         .                   A: 2 to 3, or to 4           2
    4     .                   (end at p1)         B: 1 and 2 to 4              1, 2
    5     .                   uses B              B: 5 to 5                    4
    ====  ==================  ==================  ===========================  ===============

Steps of two rows conflict where one of them writes what both touch of an instance. In an exchange among n members that
share memory, n - 1 pushes write blocks of a member's instance and as many read the one block of its own; of the same
exchange in the next run each block meets itself alone. So steps are looked at by what they touch, and of many such
spaces only those that meet.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.index_space import crossing, meets
from maniple.runtime.schedule.step_table import StepTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

Key = tuple[int, int, int, int, int]

Touch = tuple[int, "IndexSpace", bool]
"""A use of an instance: which, what of it, and whether it is written."""

Spaces = dict["IndexSpace", tuple[list[int], list[int]]]
"""By what they touch of one instance: the steps of a row, by number, that write it, and those that only read it."""
Users = dict[int, Spaces]
"""The same by instance."""
Wait = tuple[int, int]
"""What to wait for: a counter (a processor's, or -1 - row for a movement of the copy engine's) and the value that it
must reach, counted from its value when the run began."""
FEW = 64
"""Below so many comparisons, comparing all costs less than sorting."""


class StepKind(IntEnum):
    """What a step does."""

    RUN = 0  # a task or fold of the schedule
    MEET = 1  # waits until another rank has begun this run, before the first push to it
    PUSH = 2  # copies a tile into another rank's memory
    FOLD = 3  # folds what was pushed, inside a collective
    START = 4  # hands a movement between hosts to the copy engine
    END = 5  # waits for every tile that was pushed here
    MOVED = 6  # waits until the copy engine has made a movement, which a step of another rank comes after


@dataclass(eq=False, slots=True)
class Draft:
    """A step in the making.

    Args:
        kind: what it does.
        row: the row that it belongs to; -1 for none.
        item: the number of its transfer or piece there.
        memory: where it is taken.
        touches: what it uses.
        processor: whose lane it is in.
        target: the memory that it writes into, of a push.
        key: its place among all steps.
        needs: other steps, and for each whether its run before this one is meant.
        index: its place in its lane.
        told: whether a step of another lane waits for it.
        starts: whether it only starts what a copy engine does.
        phase: of a movement's step, how many folds and pushes of its row it comes after, one after the other.
    """

    kind: StepKind
    row: int
    item: int
    memory: int
    touches: tuple[Touch, ...] = ()
    processor: int = -1
    target: int = -1
    key: Key = (0, 0, 0, 0, 0)
    needs: list[tuple[Draft, bool]] = field(default_factory=list)
    index: int = 0
    told: bool = False
    starts: bool = False
    phase: int = 0

    @property
    def counter(self) -> int:
        """What is counted when it has ended: steps of its lane, or (-1 - row) what the copy engine has made."""
        return -1 - self.row if self.starts else self.processor

    @property
    def place(self) -> int:
        """What that counter is when it begins."""
        return 0 if self.starts else self.index


def step_table(schedule: Schedule, drafts: Sequence[Draft], rank_of: Mapping[int, int]) -> StepTable:
    """Give finished drafts as columns.

    Args:
        schedule: whose steps they are.
        drafts: the steps of all lanes.
        rank_of: a number for the rank of each memory whose lanes are known.
    """
    begins: list[tuple[tuple[int, ...], Draft, bool]] = [(draft.key, draft, False) for draft in drafts]
    ends = [((draft.key[2], 1, draft.key[2], 1, 0), draft, True) for draft in drafts if draft.starts]
    number: dict[Draft, int] = {}
    end: dict[Draft, int] = {}
    for place, (_, draft, is_end) in enumerate(sorted([*begins, *ends], key=itemgetter(0))):
        (end if is_end else number)[draft] = place
    end = number | end
    columns = {processor: column for column, processor in enumerate(sorted({draft.processor for draft in drafts}))}
    lane, index = np.full(len(begins) + len(ends), -1, np.int64), np.full(len(begins) + len(ends), -1, np.int64)
    for draft, place in number.items():
        lane[place], index[place] = columns[draft.processor], draft.index
    waits = [(number[draft], end[need], int(before)) for draft in drafts for need, before in draft.needs]
    uses: list[tuple[int, ...]] = []
    moved: dict[int, dict[int, tuple[int, int]]] = {}  # by row and rank, where a movement starts and ends
    for draft in drafts:
        if draft.starts:
            moved.setdefault(draft.row, {})[rank_of[draft.memory]] = number[draft], end[draft]
            waits.append((end[draft], number[draft], 0))
        else:
            uses += [(touch[0], *(number[draft],) * 4) for touch in draft.touches]
    for row, shares in moved.items():
        _add_movement(schedule, row, {m: shares[r] for m, r in rank_of.items() if r in shares}, waits, uses)
    tables = (np.asarray(table, np.int64).reshape(-1, width) for table, width in ((waits, 3), (uses, 5)))
    return StepTable(len(columns), lane, index, *tables)


def _add_movement(
    schedule: Schedule,
    row: int,
    share: Mapping[int, tuple[int, int]],
    waits: list[tuple[int, int, int]],
    uses: list[tuple[int, ...]],
) -> None:
    """Add what a movement of copy engines uses, and that its end at a rank comes after the senders have started.

    Args:
        schedule: the schedule.
        row: the movement.
        share: where it starts and where it ends at the rank of each memory, as far as it is known.
        waits: are added to.
        uses: are added to.
    """
    begins, sources, targets, *_ = schedule.transfer
    pushes, memory = slice(begins[row], begins[row + 1]), schedule.instances.memory
    ends = sources[pushes], targets[pushes]
    told: set[tuple[int, int]] = set()
    # Numbers alone: of a movement between n ranks there are n * n pushes, and none needs to be made an object.
    for sent, got, near, far in zip(*map(np.ndarray.tolist, (*ends, memory[ends[0]], memory[ends[1]])), strict=True):
        source, target = share.get(near), share.get(far)
        start, end = source or target or (0, 0)
        if source is not None:
            uses.append((sent, start, start, end, (target or source)[1]))
        if target is not None:
            uses.append((got, target[0], start, target[1], target[1]))
            if (target[1], start) not in told:
                told.add((target[1], start))
                waits.append((target[1], start, 0))
    for piece in schedule.pieces.get(row, ()):
        found = share.get(piece.memory)
        if found is not None:
            start, end = found
            uses += [(instance, start, start, end, end) for instance in (piece.target, *piece.parts)]


def users_of(touches: Iterable[Sequence[Touch]]) -> Users:
    """Give what uses each instance, from what each step touches."""
    users: Users = {}
    for number, used in enumerate(touches):
        for instance, space, writes in used:
            users.setdefault(instance, {}).setdefault(space, ([], []))[not writes].append(number)
    return users


def conflicts(earlier: Users, later: Users) -> dict[int, set[int]]:
    """Give, by step of the later row, the steps of the earlier one that it has to wait for."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for instance in earlier.keys() & later.keys():
        for first, second in _meeting(earlier[instance], later[instance]):
            (writers, readers), (rewriters, rereaders) = earlier[instance][first], later[instance][second]
            for then in rewriters:
                found[then].update(writers, readers)
            for then in rereaders if writers else ():
                found[then].update(writers)
    return found


def _meeting(earlier: Spaces, later: Spaces) -> Iterator[tuple[IndexSpace, IndexSpace]]:
    """Give what some touch and what others touch, as far as the two share an element."""
    if len(earlier) * len(later) < FEW:
        yield from ((first, second) for first in earlier for second in later if meets(first, second))
        return
    spaces = [*earlier, *(space for space in later if space not in earlier)]
    yield from ((space, space) for space in earlier if space in later and not space.is_empty)
    for one, other in crossing(spaces):
        for first, second in ((spaces[one], spaces[other]), (spaces[other], spaces[one])):
            if first in earlier and second in later:
                yield first, second


def prune_waits(lane: Iterable[Draft], lengths: dict[int, int]) -> list[tuple[Wait, ...]]:
    """Give the waits of each step of a lane that no earlier one implies, those of the run before included."""
    known: dict[int, int] = {}
    found: list[tuple[Wait, ...]] = []
    for _ in range(2):  # the second time with what the lane knows from the run before
        found = []
        for op in lane:
            wanted: dict[int, int] = {}
            for need, before in op.needs:
                if need.counter != op.processor:
                    value = need.place + 1 - (lengths[need.counter] if before else 0)
                    wanted[need.counter] = max(value, wanted.get(need.counter, value))
            kept = {counter: value for counter, value in wanted.items() if value > known.get(counter, value - 1)}
            known.update(kept)
            found.append(tuple(sorted(kept.items())))
        known = {counter: value - lengths[counter] for counter, value in known.items()}
    return found
