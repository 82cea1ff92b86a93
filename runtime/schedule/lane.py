"""Lanes: the steps that each processor takes to run a schedule, in order, and what each step waits for. Pure.

A lane holds a processor's tasks and folds, and its share of the movements between memories of one host: a push is a
step of the sending rank, a fold inside a collective a step of the rank that it happens on. All lanes follow one order,
in which every step comes after what it waits for, so lanes never wait for each other in a circle. Nobody but the lane
takes its steps, in order, so "step 3 of p1's lane is done" is one counter: p1's count of steps taken has reached 4. A
wait that an earlier wait of the same lane implies is left out.

Each of two ranks adds to a sum that both look at, and takes its half: an all-reduce of two pieces.

    ====  =============  ===========  =============  ===========
    step  lane of p0     waits for    lane of p1     waits for
    ====  =============  ===========  =============  ===========
    0     contribute[0]               contribute[1]
    1     meet rank 1                 meet rank 0
    2     push piece 1                push piece 0
    3     fold piece 0   p1's step 2  fold piece 1   p0's step 2
    4     push piece 0                push piece 1
    5     look[0]        p1's step 4  look[1]        p0's step 4
    6     update[0]                   update[1]
    7     end                         end
    ====  =============  ===========  =============  ===========

Nothing may be pushed before the run before has used what was there. Step 2 would wait for the other lane's step 3 of
the run before, and step 4 for its step 5; both are implied, by steps 5 of the run before and 3 of this one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.schedule.draft import Draft, prune_waits, step_table
from maniple.runtime.schedule.draft import StepKind as StepKind
from maniple.runtime.schedule.memory.lifetime import Lifetimes, lifetimes
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.step_table import ComparedUses, StepUses, joined, moved_uses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from maniple.runtime.schedule.draft import Wait
    from maniple.runtime.schedule.schedule import Column, Flags, Schedule
    from maniple.runtime.schedule.step_table import Table

__all__: list[str] = []

MOST_NEIGHBOURS = 4
"""So many ranks to which tiles go are looked at, those that get most; what goes to others is held a little longer."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a lane.

    Args:
        kind: what it does.
        row: the row that it belongs to; -1 for none.
        item: the number of its transfer or piece in the row; for MEET the other rank; else -1.
        waits: the counters to wait for.
        lands: rows of which a tile has arrived here once the waits are over.
        told: whether a step of another lane waits for it.
    """

    kind: StepKind
    row: int
    item: int
    waits: tuple[Wait, ...]
    lands: tuple[int, ...]
    told: bool


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one rank.

    Args:
        steps: by processor of this rank.
        lengths: steps of each processor of this host.
        engine: rows that the copy engine moves, in order.
        lifetimes: when the instances are alive whose places are planned.
    """

    steps: dict[int, tuple[Step, ...]]
    lengths: dict[int, int]
    engine: tuple[int, ...]
    lifetimes: Lifetimes


class Layout:
    """Lays out the lanes of one host as one of its ranks needs them.

    A dependence between rows holds between those of their steps that use the same elements of the same instance.

    Args:
        schedule: what runs.
        here: this rank's memories.
        near: the memories of this host into which this rank can write, and whose ranks can write into its own; none
            where no two ranks of the run share memory, and copy engines move all tiles.
        planned: the instances here whose places are planned.
    """

    def __init__(
        self, schedule: Schedule, here: Collection[int], near: Collection[int], planned: Collection[int] = ()
    ) -> None:
        self.planned = planned
        self.here = frozenset(here)
        self.near = frozenset(near)
        # Ranks that share memory have one each.
        apart = [frozenset((memory,)) for memory in self.near - self.here] if self.near else self._far(schedule)
        self.ranks = sorted((self.here, *apart), key=min)
        known = sorted(self.here.union(*apart))
        self.schedule = schedule = schedule.at(known)
        self._numbers = np.full(len(schedule.machine.memories), -1, dtype=np.int64)
        for number, rank in enumerate(self.ranks):
            self._numbers[sorted(rank)] = number
        self.owned = {memory: schedule.machine.processors_of(memory) for memory in known}
        self.mine = [processor for memory in known if memory in self.here for processor in self.owned[memory]]
        self._order: list[int] = schedule.order.tolist()
        self._rows = np.flatnonzero(taken := schedule.takes_part(known))
        """The rows in which a memory that is known takes part."""
        self._pairs = [_among(taken, *pairs) for pairs in (schedule.successors, schedule.carried)]
        self._drafts, firsts = self._steps_of_rows()
        self.uses = self._uses(firsts)
        self.first_after = self._first_after()
        self._following = schedule.rotation.following if schedule.rings else {}

    def _far(self, schedule: Schedule) -> list[frozenset[int]]:
        """Give the memories of other ranks, as far as it matters when what is planned comes and has gone.

        Those are the neighbours to whom single tiles of what is planned go: what one of them waits for tells that a
        tile has left. The share in a collective ends here with all tiles that go and come.
        """
        machine, got, (starts, source, target, *_) = schedule.machine, Counter[int](), schedule.transfer
        sent = np.repeat(schedule.kind == RowKind.COPY, np.diff(starts)) & np.isin(source, sorted(self.planned))
        sizes = np.repeat(schedule.bytes, np.diff(starts))[sent].tolist()
        for memory, size in zip(schedule.instances.memory[target[sent]].tolist(), sizes, strict=True):
            if schedule.listed is None or memory in schedule.listed:
                got[machine.memories[memory].rank] += size
        for memory in self.here:
            got.pop(machine.memories[memory].rank, None)
        found = sorted(got, key=lambda rank: (-got[rank], rank))[:MOST_NEIGHBOURS]
        return [frozenset(machine.memories_of(rank)) for rank in found]

    def lanes(self) -> Lanes:
        """Lay out the lanes."""
        schedule = self.schedule
        within, carried = self._pairs
        # That a row waits for its own run before goes without saying.
        moved = np.flatnonzero(schedule.processor[self._rows] < 0)
        self._depend(within, carried=False)
        self._depend(np.concatenate([carried, np.stack((moved, moved), axis=1)]), carried=True)
        ops = sorted(self._drafts, key=lambda op: self._order[op.row])
        for op in sorted(ops, key=lambda op: (self._order[op.row], op.kind != StepKind.FOLD, op.item)):
            if op.kind != StepKind.RUN:
                self._place(op)
        ops += self._tell_moves(ops)
        ops += self._ends(ops)
        for op in ops:
            for need, _ in op.needs:
                need.told |= need.counter != op.processor
        lanes = self._lanes(ops)
        engine = [op for op in ops if op.kind == StepKind.START and op.memory in self.here]
        host = [processor for memory in self.here | self.near for processor in self.owned[memory]]
        lengths = {processor: len(lanes[processor]) for processor in host}
        steps = self._steps(lanes, {**lengths, **{op.counter: 1 for op in engine}})
        alive = lifetimes(step_table(schedule, ops, self.uses, self._numbers, self.planned), self.planned)
        for op in ops:
            op.needs.clear()  # steps of a loop need each other, and would stay until the collector comes
        return Lanes(steps, lengths, tuple(op.row for op in engine), alive)

    def _first_after(self) -> dict[int, int]:
        """For each row the place in the order of the first row that waits for it; past the last where none does."""
        found = np.full(len(self._rows), len(self.schedule))
        first, then = self._pairs[0].T
        np.minimum.at(found, first, self.schedule.order[self._rows[then]])
        return dict(zip(self._rows.tolist(), found.tolist(), strict=True))

    def _members(self) -> Table:
        """Give (place of a row, memory) of the memories that take part in rows, ascending and each once."""
        schedule = self.schedule
        (starts, source, target, *_), (first, used, *_) = schedule.transfer, schedule.access
        rows = [np.repeat(np.arange(len(schedule)), np.diff(counted)) for counted in (starts, starts, first)]
        at = schedule.instances.memory[np.concatenate([source, target, used])]
        found = np.zeros((len(self._rows), len(schedule.machine.memories)), dtype=np.bool_)
        found[np.searchsorted(self._rows, np.concatenate(rows)), at] = True
        return np.argwhere(found)

    def _steps_of_rows(self) -> tuple[list[Draft], Column]:
        """Make the steps of all rows, as far as this rank must know of them; and say where those of each begin."""
        rows, processor = self._rows, self.schedule.processor[self._rows]
        place, memory = self._members().T
        self._shared: Flags = processor < 0
        self._shared[place[~np.isin(memory, list(self.near))]] = False
        ranks = self._numbers[memory]
        starts = (ranks >= 0) & (processor < 0)[place] & ~self._shared[place]
        # Of the memories of a rank the first one stands for it.
        self._started, first = np.unique(place[starts] * len(self.ranks) + ranks[starts], return_index=True)
        started = memory[starts][first].tolist()
        begins = np.searchsorted(self._started // len(self.ranks), np.arange(len(rows) + 1)).tolist()
        drafts, ends = list[Draft](), [0]
        order, processors = self.schedule.order[rows].tolist(), processor.tolist()
        for at, (row, shared) in enumerate(zip(rows.tolist(), self._shared.tolist(), strict=True)):
            if processors[at] >= 0:
                home = self.schedule.machine.memory_of(processors[at])
                key = (order[at], 0, 0, 0, 0)
                drafts += [Draft(StepKind.RUN, row, -1, home, processor=processors[at], key=key)] * (home in self.owned)
            elif shared:
                drafts += self._share(row)
            else:
                found = started[begins[at] : begins[at + 1]]
                drafts += [Draft(StepKind.START, row, -1, home, starts=True) for home in found]
            ends.append(len(drafts))
        for number, draft in enumerate(drafts):
            draft.number = number
        return drafts, np.asarray(ends, np.int64)

    def _share(self, row: int) -> list[Draft]:
        """Make the pushes and folds of a movement within this host."""
        schedule = self.schedule
        starts, at, *_ = schedule.pieces.columns
        homes = at[starts[row] : starts[row + 1]].tolist()
        folds = [Draft(StepKind.FOLD, row, number, home) for number, home in enumerate(homes)]
        pushes: list[Draft] = []
        starts, source, target, _, *others = schedule.transfer
        own = slice(starts[row], starts[row + 1])
        ends = [schedule.instances.memory[end[own]] for end in (source, target)]
        columns = [column.tolist() for column in (*ends, *(other[own] for other in others))]
        for number, (home, to, feeds, after, follows) in enumerate(zip(*columns, strict=True)):
            push = Draft(StepKind.PUSH, row, number, home, target=to)
            before = [folds[after]] if after >= 0 else []
            before += [pushes[follows]] if follows >= 0 else []
            for need in before:
                push.needs.append((need, False))
                push.phase = need.phase + 1
            if feeds >= 0:
                fold = folds[feeds]
                fold.needs.append((push, False))
                fold.phase = max(fold.phase, push.phase + 1 if before else 0)
            pushes.append(push)
        return [*folds, *pushes]

    def _uses(self, firsts: Column) -> StepUses:
        """Give what the steps of all rows use: of a movement within this host what pushes and folds do."""
        schedule, place = self.schedule, np.full(len(self.schedule), -1)
        place[self._rows] = np.arange(len(self._rows))
        starts, instance, space, writes, _ = schedule.access
        row = place[np.repeat(np.arange(len(schedule)), np.diff(starts))]
        rank = self._numbers[schedule.instances.memory[instance]]
        started = np.searchsorted(self._started, row * len(self.ranks) + rank)
        first = np.searchsorted(self._started, row * len(self.ranks))
        moves = schedule.processor[self._rows][row] < 0
        whole = StepUses(
            len(self._rows), row, firsts[row] + np.where(moves, started - first, 0), instance, space, writes > 0
        ).where((rank >= 0) & ~self._shared[row] & (firsts[row + 1] > firsts[row]))
        moved = (use.where(self._shared[use.row]) for use in moved_uses(schedule, place, firsts))
        return joined(whole, *moved)

    def _depend(self, pairs: Table, *, carried: bool) -> None:
        """Have the steps of rows wait for those of others, or of their run before, that use the same elements."""
        before, after = self._compared(carried=carried)
        for _, then, need in after.conflicts(before, pairs).tolist():
            self._drafts[then].needs.append((self._drafts[need], carried))

    def _compared(self, *, carried: bool) -> tuple[ComparedUses, ComparedUses]:
        """Give what steps use, as others wait for them, perhaps in the next run, and as they wait for others."""
        if not carried:
            self._after = ComparedUses.of(self.uses, self.schedule.rects)
        if not (carried and self._following):
            return self._after, self._after
        # What lies here now is something else in the next run.
        before = self.uses.renamed(self._following)
        return ComparedUses.of(before, self.schedule.rects, self._after), self._after

    def _place(self, op: Draft) -> None:
        """Choose the lane of a movement's step, and its place among the steps of all lanes.

        A push goes as soon as what it waits for is done. A fold waits for other ranks, so it comes as late as the first
        row that needs it: what does not need it overlaps with the tiles on their way. Steps of a row that need each
        other come phase by phase, on all lanes.
        """
        order = self._order
        own = order[op.row]
        needs = [need for need, before in op.needs if not before]
        place = self._rank(op) if op.kind == StepKind.START else {op.memory}
        local = [need for need in needs if need.memory in place and need.kind != StepKind.START]
        folded = [need for need in local if need.kind == StepKind.FOLD and need.row == op.row]
        if folded:
            op.processor = folded[0].processor
            op.key = (*folded[0].key[:3], op.phase, op.item)
            return
        # What sends on a tile that another rank brings waits for it as a fold does.
        if op.kind == StepKind.FOLD or op.phase:
            op.key = (self.first_after[op.row], -1, own, op.phase, op.item)
            op.processor = self._user_of(op)
            return
        moved = any(self.schedule.processor[need.row] < 0 for need in needs)
        rows = [order[need.row] for need in needs]
        op.key = (own if moved else max(rows, default=-1), 1, own, 0, op.item)
        if not local:
            local = [need for need, before in op.needs if before and need.memory in place and need.processor >= 0]
        latest = max(local, key=lambda need: (need.key, need.processor), default=None)
        op.processor = self.owned[op.memory][0] if latest is None else latest.processor

    def _rank(self, op: Draft) -> frozenset[int]:
        """Give the memories of the rank that takes a step."""
        return next(rank for rank in self.ranks if op.memory in rank)

    def _tell_moves(self, ops: Iterable[Draft]) -> list[Draft]:
        """Make the steps that tell other ranks of this host that a copy engine, which only its rank hears, is done.

        Such a step comes right before the first that waits for it, or last where only steps of the next run do.
        """
        found: dict[Draft, Draft] = {}
        for op in ops:
            for number, (need, before) in enumerate(op.needs):
                if need.kind != StepKind.START or self._rank(need) is self._rank(op):
                    continue
                if need not in found:
                    last = (len(self.schedule), 1, self._order[need.row], 0, 0)
                    found[need] = Draft(StepKind.MOVED, -1, -1, need.memory, processor=need.processor, key=last)
                    found[need].needs.append((need, False))
                told = found[need]
                if not before:
                    told.key = min(told.key, (*op.key[:3], op.key[3] - 1, need.row))
                op.needs[number] = told, before
        return list(found.values())

    def _user_of(self, fold: Draft) -> int:
        """Give the processor that first uses what is folded, where it is folded."""
        schedule = self.schedule
        starts, rows = schedule.successors
        users = [
            (self._order[row], int(schedule.processor[row]))
            for row in rows[starts[fold.row] : starts[fold.row + 1]]
            if schedule.processor[row] in self.owned[fold.memory]
        ]
        return min(users)[1] if users else self.owned[fold.memory][0]

    def _ends(self, ops: Iterable[Draft]) -> list[Draft]:
        """Make the last step of every rank, which waits until all tiles have arrived there."""
        arriving: defaultdict[int, list[Draft]] = defaultdict(list)
        for op in ops:
            if op.kind == StepKind.PUSH:
                arriving[op.target].append(op)
        return [
            Draft(
                StepKind.END,
                -1,
                -1,
                memory,
                processor=self.owned[memory][0],
                key=(len(self.schedule), 2, 0, 0, 0),
                needs=[(push, False) for push in pushes],
            )
            for memory, pushes in sorted(arriving.items())
        ]

    def _lanes(self, ops: Iterable[Draft]) -> dict[int, list[Draft]]:
        """Sort the steps of each processor, with a meeting before the first push to each rank, and number them."""
        lanes: dict[int, list[Draft]] = {processor: [] for owned in self.owned.values() for processor in owned}
        met: set[tuple[int, int]] = set()
        for op in sorted(ops, key=lambda op: op.key):
            lane = lanes[op.processor]
            if op.kind == StepKind.PUSH and (op.processor, op.target) not in met:
                met.add((op.processor, op.target))
                lane.append(Draft(StepKind.MEET, -1, op.target, op.memory, processor=op.processor))
            lane.append(op)
        for lane in lanes.values():
            for index, op in enumerate(lane):
                op.index = index
        return lanes

    def _steps(self, lanes: dict[int, list[Draft]], lengths: dict[int, int]) -> dict[int, tuple[Step, ...]]:
        """Finish this rank's lanes: keep the waits that earlier ones do not imply, and find where tiles land."""
        waits = {processor: prune_waits(lanes[processor], lengths) for processor in self.mine}
        landed: set[int] = set()
        lands: dict[Draft, tuple[int, ...]] = {}
        mine = [op for processor in self.mine for op in lanes[processor]]
        for op in sorted(mine, key=lambda op: op.key):
            arrived = {need.row for need, before in op.needs if not before and need.target in self.here}
            lands[op] = tuple(sorted(arrived - landed))
            landed |= arrived
        return {
            processor: tuple(
                Step(StepKind(op.kind), op.row, op.item, needed, lands[op], op.told)
                for op, needed in zip(lanes[processor], waits[processor], strict=True)
            )
            for processor in self.mine
        }


def _among(taken: Flags, starts: Column, after: Column) -> Table:
    """Give pairs of rows behind starts of which both rows are taken, by their places among those that are."""
    before, place = np.repeat(np.arange(len(taken)), np.diff(starts)), np.cumsum(taken) - 1
    both = taken[before] & taken[after]
    return np.stack((place[before[both]], place[after[both]]), axis=1)
