"""Replays: a schedule bound to one rank's processors, instances and peers, to be run again and again."""

from __future__ import annotations

import threading
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.runtime.failure import TaskFailed
from maniple.runtime.interruption import uninterrupted
from maniple.runtime.kernels import bind_fold
from maniple.runtime.movement import bind_movement
from maniple.runtime.schedule import InstanceKind, RowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.engine import Incoming, Movement, Outgoing
    from maniple.runtime.rank import RankRuntime
    from maniple.runtime.schedule import Schedule

__all__: list[str] = []


class Run:
    """One run of a replay, perhaps still going on at this rank.

    Args:
        replay: what runs.
        number: the submission, counted over all replays of the rank; also the account of its bytes.
        slot: which of the replay's two sets of counters it uses.
        left: shares of processors and movements that have not ended.
    """

    def __init__(self, replay: Replay, number: int, slot: int, left: int) -> None:
        self.replay = replay
        self.number = number
        self.slot = slot
        self.left = left

    def wait(self) -> None:
        """Block until this rank's share is done.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        runtime = self.replay.runtime
        with runtime.finished:
            while self.left:
                runtime.check()
                runtime.finished.wait()


class Replay:
    """The rows of a schedule that one rank runs, bound to storage and peers.

    A processor runs its rows in the schedule's order, so a row waits only for rows of other processors and for
    movements: those are counted. Two runs may be under way at once; each has its own set of counters, and a run may
    only be submitted when the one before the last has ended. Dependences on the run before (an instance that is
    still read) are counted in the same way.

    Args:
        schedule: what to run.
        runtime: the rank.
        lasting: ids of the regions whose valid instances outlive the schedule.
    """

    def __init__(self, schedule: Schedule, runtime: RankRuntime, lasting: Collection[int]) -> None:
        self.schedule = schedule
        self.runtime = runtime
        self.lasting = frozenset(lasting)
        rows = range(len(schedule))
        memory = runtime.memory.id
        self._here = [memory in schedule.memories(row) for row in rows]
        self._after: list[list[int]] = [[] for _ in rows]
        self._after_next: list[list[int]] = [[] for _ in rows]
        self._full = [0] * len(schedule)
        first = self._count_dependences()
        self._pending = (first, list(self._full))
        self._active = [False, False]
        self._accounts = [0, 0]
        self._runs: list[Run | None] = [None, None]
        self._submitted = 0
        self.times = tuple(([0] * len(schedule), [0] * len(schedule)) for _ in range(2))
        local = sorted(p.id for p in schedule.machine.processors if p.memory == memory)
        order = schedule.order
        self._rows = {
            processor: sorted((r for r in rows if schedule.processor[r] == processor), key=lambda r: int(order[r]))
            for processor in local
        }
        self._wake = {processor: threading.Condition(runtime.lock) for processor in local}
        for condition in self._wake.values():
            runtime.watch(condition)
        self._movements: tuple[dict[int, Movement], ...] = ({}, {})
        self._pushes: tuple[tuple[list[Outgoing], list[Incoming]], ...] = (([], []), ([], []))
        self._programs: dict[int, list[tuple[int, Callable[[], object], bool, bool]]] = {}
        self._version = -1

    def _count_dependences(self) -> list[int]:
        """Keep the dependences that two threads of this rank share; return the counts of the very first run."""
        schedule = self.schedule
        place = schedule.processor
        first = [0] * len(schedule)
        for pairs, after, counted in (
            (schedule.edges(), self._after, True),
            (schedule.carries(), self._after_next, False),
        ):
            for before, row in pairs:
                ordered = place[before] >= 0 and place[before] == place[row]
                if self._here[before] and self._here[row] and not ordered:
                    after[before].append(row)
                    self._full[row] += 1
                    first[row] += counted
        return first

    def here(self, row: int) -> bool:
        """Say whether this rank takes part in a row."""
        return self._here[row]

    def submit(self) -> Run:
        """Start the next run; waits first until the run before the last has ended.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.prepare()
        with uninterrupted():
            return self.commit()

    def prepare(self) -> None:
        """Do all of a submission that may wait or fail; what is under way is as before if it does.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        runtime = self.runtime
        if runtime.current is not self:
            runtime.drain()
            runtime.current = self
        slot = self._submitted % 2
        before = self._runs[slot]
        if before is not None:
            before.wait()
        runtime.check()
        self._bind()

    def commit(self) -> Run:
        """Start the run that `prepare` made ready; neither waits nor fails, and must not be interrupted."""
        runtime = self.runtime
        slot = self._submitted % 2
        self._submitted += 1
        work = [processor for processor, program in self._programs.items() if program]
        run = Run(self, runtime.next_submission(), slot, len(work) + len(self._movements[slot]))
        self._runs[slot] = run
        runtime.last = run
        self._accounts[slot] = run.number
        if runtime.engine is not None:
            runtime.engine.submit(*self._pushes[slot])
        with runtime.lock:
            self._active[slot] = True
            for row in self._movements[slot]:
                if not self._pending[slot][row]:
                    self._start(row, slot)
        for processor in work:
            runtime.processors[processor].submit(partial(self._share, processor, run), 0)
        return run

    def _share(self, processor: int, run: Run) -> None:
        """Run one processor's rows of one run, in their order."""
        slot = run.slot
        pending = self._pending[slot]
        begun, ended = self.times[slot]
        row = -1
        try:
            for row, call, gated, shared in self._programs[processor]:
                if gated:
                    if pending[row]:
                        self._await(processor, row, pending)
                    pending[row] = self._full[row]
                begun[row] = perf_counter_ns()
                call()
                ended[row] = perf_counter_ns()
                if shared:
                    self._complete(row, slot)
        except BaseException as error:  # noqa: BLE001  (whatever a task's body raises is the task's failure)
            self.runtime.fail(TaskFailed.of(self.schedule, row, self.runtime.world.place(), error))
            return
        self._one_less(run)

    def _await(self, processor: int, row: int, pending: list[int]) -> None:
        wake = self._wake[processor]
        with wake:
            while pending[row]:
                self.runtime.check()
                wake.wait()

    def _complete(self, row: int, slot: int) -> None:
        with self.runtime.lock:
            self._count_down(self._after[row], slot)
            self._count_down(self._after_next[row], 1 - slot)

    def _count_down(self, rows: list[int], slot: int) -> None:
        pending = self._pending[slot]
        for row in rows:
            pending[row] -= 1
            if not pending[row]:
                processor = int(self.schedule.processor[row])
                if processor >= 0:
                    self._wake[processor].notify()
                elif self._active[slot]:
                    self._start(row, slot)

    def _start(self, row: int, slot: int) -> None:
        engine = self.runtime.engine
        if engine is not None:
            self._pending[slot][row] = self._full[row]
            self.times[slot][0][row] = perf_counter_ns()
            engine.start(self._movements[slot][row], self._accounts[slot])

    def _moved(self, row: int, slot: int) -> None:
        self.times[slot][1][row] = perf_counter_ns()
        self._complete(row, slot)
        run = self._runs[slot]
        if run is not None:
            self._one_less(run)

    def _one_less(self, run: Run) -> None:
        with self.runtime.finished:
            run.left -= 1
            if not run.left:
                self._active[run.slot] = False
                self.runtime.finished.notify_all()

    def _bind(self) -> None:
        """Bind every row of this rank to storage; again only when lasting storage has moved."""
        memory = self.runtime.memory
        schedule = self.schedule
        if self._version == memory.version:
            return
        self.runtime.drain()
        lasting = [
            instance.kind == InstanceKind.MAIN and schedule.regions[instance.region].id in self.lasting
            for instance in schedule.instances
        ]
        for number, instance in enumerate(schedule.instances):
            if lasting[number] and instance.memory == memory.id:
                memory.keep(schedule.regions[instance.region], instance.rect)
        if self._version < 0:
            self._storage = {
                number: (instance.rect, memory.allocate(schedule.regions[instance.region], instance.rect))
                for number, instance in enumerate(schedule.instances)
                if instance.memory == memory.id and not lasting[number]
            }
        for number, instance in enumerate(schedule.instances):
            if lasting[number] and instance.memory == memory.id:
                self._storage[number] = memory.keep(schedule.regions[instance.region], instance.rect)
        self._version = memory.version
        for processor, rows in self._rows.items():
            self._programs[processor] = [
                (row, self._call(row), bool(self._full[row]), bool(self._after[row] or self._after_next[row]))
                for row in rows
            ]
        for slot in range(2):
            self._bind_movements(slot)

    def _view(self, instance: int, rect: IndexSpace) -> torch.Tensor:
        covered, storage = self._storage[instance]
        return storage[rect.slices(covered.lo)]

    def _call(self, row: int) -> Callable[[], object]:
        """Bind one task or fold."""
        schedule = self.schedule
        accesses = schedule.accesses(row)
        if schedule.kind[row] == RowKind.FOLD:
            target, *parts = (self._view(access.instance, access.rect) for access in accesses)
            return bind_fold(schedule.folds[row], target, parts, accesses[0].rect)
        launch = schedule.launches[int(schedule.launch[row])]
        if launch.binder is None:
            msg = f"{schedule.label(row)} has no body: the schedule was made for planning"
            raise TypeError(msg)
        views: list[torch.Tensor | None] = [None] * len(launch.requirements)
        for access in accesses:
            views[access.slot] = self._view(access.instance, access.rect)
        cores = schedule.machine.processors[int(schedule.processor[row])].cores
        return launch.binder(int(schedule.point[row]), views, cores)

    def _bind_movements(self, slot: int) -> None:
        outgoing, incoming = self._pushes[slot]
        outgoing.clear()
        incoming.clear()
        self._movements[slot].clear()
        schedule = self.schedule
        rows = [row for row in range(len(schedule)) if schedule.processor[row] < 0 and self._here[row]]
        for row in sorted(rows, key=lambda row: int(schedule.order[row])):
            movement, out, into = bind_movement(
                row,
                schedule.transfers(row),
                schedule.pieces.get(row, ()),
                self._view,
                lambda instance: schedule.instances[instance].memory,
                self.runtime.memory.id,
            )
            movement.finished = partial(self._moved, row, slot)
            self._movements[slot][row] = movement
            outgoing += out
            incoming += into
