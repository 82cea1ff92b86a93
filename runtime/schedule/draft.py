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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.schedule.step_table import StepTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.schedule.step_table import Column, Flags, StepUses, Table

__all__: list[str] = []

Key = tuple[int, int, int, int, int]

Moved = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Wait = tuple[int, int]
"""What to wait for: a counter (a processor's, or -1 - row for a movement of the copy engine's) and the value that it
must reach, counted from its value when the run began."""


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
        number: its place among the drafts of all rows.
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
    number: int = -1
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


def step_table(
    schedule: Schedule, drafts: Sequence[Draft], uses: StepUses, rank_of: Column, planned: Collection[int]
) -> StepTable:
    """Give finished drafts as columns.

    Args:
        schedule: whose steps they are.
        drafts: the steps of all lanes.
        uses: what those of rows use, by their numbers.
        rank_of: the number of the rank of each memory; -1 where its lanes are not known.
        planned: the instances whose uses are told.
    """
    begins: list[tuple[tuple[int, ...], Draft, bool]] = [(draft.key, draft, False) for draft in drafts]
    ends = [((draft.key[2], 1, draft.key[2], 1, 0), draft, True) for draft in drafts if draft.starts]
    number: dict[Draft, int] = {}
    end: dict[Draft, int] = {}
    for place, (_, draft, is_end) in enumerate(sorted([*begins, *ends], key=itemgetter(0))):
        (end if is_end else number)[draft] = place
    rows = np.unique(np.asarray([draft.row for draft in end], np.int64))
    moved = np.full((len(rows), int(rank_of.max(initial=0)) + 1, 2), -1, np.int64)
    for draft, place in end.items():
        moved[np.searchsorted(rows, draft.row), rank_of[draft.memory]] = number[draft], place
    waits = [(place, number[draft], 0) for draft, place in end.items()]
    end = number | end
    columns = {processor: column for column, processor in enumerate(sorted({draft.processor for draft in drafts}))}
    lane, index = np.full(len(begins) + len(ends), -1, np.int64), np.full(len(begins) + len(ends), -1, np.int64)
    places = np.full(1 + max((draft.number for draft in drafts), default=0), -1, np.int64)
    for draft, place in number.items():
        lane[place], index[place] = columns[draft.processor], draft.index
        if not draft.starts and draft.number >= 0:
            places[draft.number] = place
    waits += [(number[draft], end[need], int(before)) for draft in drafts for need, before in draft.needs]
    wanted = np.zeros(len(schedule.instances), dtype=np.bool_)
    wanted[list(planned)] = True
    sent, arrived = _movements(schedule, rows, moved, rank_of, wanted)
    taken = wanted[uses.instance] & (places[uses.step] >= 0)
    steps = places[uses.step[taken]]
    own = np.stack((uses.instance[taken], steps, steps, steps, steps), axis=1)
    every = np.concatenate([np.asarray(waits, np.int64).reshape(-1, 3), arrived])
    return StepTable(len(columns), lane, index, every, np.concatenate([own, sent]))


def _movements(schedule: Schedule, rows: Column, moved: Moved, rank_of: Column, wanted: Flags) -> tuple[Table, Table]:
    """Give what copy engines use, and that what they move ends where it arrives after those who send it have started.

    Args:
        schedule: the schedule.
        rows: what they move.
        moved: by such row and rank where it starts and where it ends there; -1 where it does not, or nobody knows.
        rank_of: see `step_table`.
        wanted: whether uses of each instance are told.
    """
    starts, sources, targets, *_ = schedule.transfer
    item, place = _items(starts, rows)
    source, target = sources[item], targets[item]
    memory = schedule.instances.memory
    sent, got = rank_of[memory[source]], rank_of[memory[target]]
    begins, comes = (np.where(rank < 0, -1, moved[place, rank, 0]) for rank in (sent, got))
    every = 1 + int(moved.max(initial=0))
    # Where nobody knows of one end, what is known is that of the other.
    arrives = moved[place, got, 1]
    told = np.unique(_told(moved, place[comes >= 0], sent[comes >= 0], got[comes >= 0]) @ (every, 1))
    waits = np.stack((told // every, told % every, 0 * told), axis=1)
    some = np.flatnonzero(wanted[source] | wanted[target])
    source, target, begins, comes, arrives = (column[some] for column in (source, target, begins, comes, arrives))
    known = np.stack(((begins >= 0) & wanted[source], (comes >= 0) & wanted[target]), axis=1)
    ends = moved[place[some], sent[some], 1]
    ends, arrives = np.where(begins < 0, arrives, ends), np.where(comes < 0, ends, arrives)
    begins, comes = np.where(begins < 0, comes, begins), np.where(comes < 0, begins, comes)
    uses = np.empty((len(some), 2, 5), np.int64)
    for end, columns in enumerate(((source, begins, begins, ends, arrives), (target, comes, begins, arrives, arrives))):
        for number, column in enumerate(columns):
            uses[:, end, number] = column
    piece, instance = schedule.pieces.uses()
    of_row = np.full(len(schedule.pieces.columns[1]), -1, np.int64)
    item, place = _items(schedule.pieces.columns[0], rows)
    of_row[item] = place
    inside = wanted[instance] & (of_row[piece] >= 0)
    piece, instance = piece[inside], instance[inside]
    ranks = rank_of[schedule.pieces.columns[1][piece]]
    begins, ends = np.where(ranks[:, None] < 0, -1, moved[of_row[piece], ranks]).T
    folded = np.stack((instance, begins, begins, ends, ends), axis=1)[begins >= 0]
    return np.concatenate([uses[known], folded]), waits


def _told(moved: Moved, place: Column, sent: Column, got: Column) -> Table:
    """Give where tiles arrive and begin, once for all of one row that go from one rank to another: tiles are many.

    Args:
        moved: by row and rank where it starts and where it ends there.
        place: of each tile the row.
        sent: the rank that it leaves, or -1.
        got: the rank to which it comes.
    """
    ranks = moved.shape[1]
    seen = np.zeros((len(moved), ranks + 1, ranks), dtype=np.bool_)
    seen[place, sent + 1, got] = True
    place, sent, got = seen.nonzero()
    begins = np.where(sent > 0, moved[place, sent - 1, 0], -1)
    return np.stack((moved[place, got, 1], np.where(begins < 0, moved[place, got, 0], begins)), axis=1)


def _items(starts: Column, rows: Column) -> tuple[Column, Column]:
    """Give the items of some rows of columns behind starts, and the place of each one's row among these."""
    counts = starts[rows + 1] - starts[rows]
    place = np.repeat(np.arange(len(rows)), counts)
    return np.arange(len(place)) + np.repeat(starts[rows] - (np.cumsum(counts) - counts), counts), place


def prune_waits(lane: Iterable[Draft], lengths: dict[int, int]) -> list[tuple[Wait, ...]]:
    """Give the waits of each step of a lane that no earlier one implies, those of the run before included."""
    asked: list[dict[int, int]] = []
    for op in lane:
        wanted: dict[int, int] = {}
        for need, before in op.needs:
            counter = need.counter
            if counter != op.processor:
                value = need.place + 1 - (lengths[counter] if before else 0)
                wanted[counter] = max(value, wanted.get(counter, value))
        asked.append(wanted)
    known: dict[int, int] = {}
    found: list[tuple[Wait, ...]] = []
    for _ in range(2):  # the second time with what the lane knows from the run before
        found = []
        for wanted in asked:
            kept = {counter: value for counter, value in wanted.items() if value > known.get(counter, value - 1)}
            known.update(kept)
            found.append(tuple(sorted(kept.items())))
        known = {counter: value - lengths[counter] for counter, value in known.items()}
    return found
