"""What must happen before what in two consecutive runs of a schedule, as the executor may rely on it and no further.

Every row has, in each memory where it takes part, a start and an end there. The executor orders, in each memory alone,

    end of a row       -> start of a row that depends on it        (edges; carried ones into the next run)
    end of a row       -> start of the processor's next row        (the order of its processor, run after run)

and between memories only what a push carries: it is sent after its source is ready and its target is released.

    row: push 0 -> 1    start@0 ---> end@1      (what lands was sent)
                        start@1 ---> end@0      (what is sent was released)

A collective has folds in between: pushes that feed a fold come before those that send its result on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from maniple.regions.index_space import meets
from maniple.runtime.schedule.schedule import Access, Schedule

RUNS = 2


class HappensBefore:
    """Reachability between starts and ends, as one bit set of descendants for each.

    Args:
        schedule: what runs twice.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        rows = range(len(schedule))
        self.memories = [schedule.memories(row) for row in rows]
        self.after: list[list[int]] = []
        self._starts: dict[tuple[int, int, int], int] = {}
        self._ends: dict[tuple[int, int, int], int] = {}
        for run in range(RUNS):
            for row in rows:
                for memory in self.memories[row]:
                    start, end = self._node(), self._node()
                    self._starts[run, row, memory], self._ends[run, row, memory] = start, end
                    self.after[start].append(end)
        for run in range(RUNS):
            for row in rows:
                self._pushes(run, row)
            for before, then in schedule.edges():
                self._depend(run, before, run, then)
            if run:
                for before, then in schedule.carries():
                    self._depend(run - 1, before, run, then)
        self._processors()
        self.reach = self._closure()

    def _node(self) -> int:
        self.after.append([])
        return len(self.after) - 1

    def _depend(self, run: int, before: int, later: int, then: int) -> None:
        for memory in set(self.memories[before]) & set(self.memories[then]):
            self.after[self._ends[run, before, memory]].append(self._starts[later, then, memory])

    def _processors(self) -> None:
        schedule = self.schedule
        for processor in schedule.machine.processors:
            own = [row for row in range(len(schedule)) if schedule.processor[row] == processor.id]
            own.sort(key=lambda row: int(schedule.order[row]))
            for (run, row), (later, then) in pairwise([(run, row) for run in range(RUNS) for row in own]):
                memory = processor.memory
                self.after[self._ends[run, row, memory]].append(self._starts[later, then, memory])

    def _pushes(self, run: int, row: int) -> None:
        schedule = self.schedule
        folds = {}
        for number, piece in enumerate(schedule.pieces.get(row, ())):
            folds[number] = self._node()
            self.after[self._starts[run, row, piece.memory]].append(folds[number])
            self.after[folds[number]].append(self._ends[run, row, piece.memory])
        sends: list[int] = []
        for push in schedule.transfers(row):
            source, target = schedule.instances[push.source].memory, schedule.instances[push.target].memory
            sent = self._node()
            sends.append(sent)
            self.after[self._starts[run, row, source]].append(sent)
            self.after[self._starts[run, row, target]].append(sent)
            self.after[sent] += [self._ends[run, row, source], self._ends[run, row, target]]
            if push.after >= 0:
                self.after[folds[push.after]].append(sent)
            if push.follows >= 0:
                self.after[sends[push.follows]].append(sent)
            if push.feeds >= 0:
                self.after[sent].append(folds[push.feeds])

    def _closure(self) -> list[int]:
        count = len(self.after)
        waiting = [0] * count
        for later in self.after:
            for node in later:
                waiting[node] += 1
        ready = [node for node in range(count) if not waiting[node]]
        sequence = []
        while ready:
            node = ready.pop()
            sequence.append(node)
            for later in self.after[node]:
                waiting[later] -= 1
                if not waiting[later]:
                    ready.append(later)
        assert len(sequence) == count, "the executor would wait in a circle"
        reach = [0] * count
        for node in reversed(sequence):
            for later in self.after[node]:
                reach[node] |= reach[later] | 1 << later
        return reach

    def ordered(self, run: int, before: int, later: int, then: int, memory: int) -> bool:
        """Whether one row has ended in a memory before another starts there."""
        return bool(self.reach[self._ends[run, before, memory]] >> self._starts[later, then, memory] & 1)

    def conflicts(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Pairs of uses of one instance of which one writes what the other uses, in program order.

        Gives (instance, run, row, later run, row there).
        """
        schedule = self.schedule
        uses: dict[int, list[tuple[int, Access]]] = {}
        for row in range(len(schedule)):
            for access in schedule.accesses(row):
                uses.setdefault(access.instance, []).append((row, access))
        for instance, found in sorted(uses.items()):
            for a, (row, access) in enumerate(found):
                for b, (other, second) in enumerate(found):
                    if not (access.writes or second.writes) or not meets(access.rect, second.rect):
                        continue
                    yield instance, 0, row, 1, other
                    if a < b and row != other:
                        yield instance, 0, row, 0, other

    def races(self) -> list[str]:
        """A line for each pair that the executor may run in the wrong order, or at once."""
        schedule = self.schedule
        return sorted(
            {
                f"{schedule.label(row)} (row {row}) and {schedule.label(other)} (row {other}) of "
                f"{'the next' if later else 'the same'} run: "
                f"{schedule.regions[schedule.instances[instance].region].name} instance {instance} in memory "
                f"{schedule.instances[instance].memory}"
                for instance, run, row, later, other in self.conflicts()
                if not self.ordered(run, row, later, other, schedule.instances[instance].memory)
            }
        )
