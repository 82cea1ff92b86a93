"""Replays: a schedule bound to one rank's processors, instances and peers, to be run again and again."""

from __future__ import annotations

from array import array
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.process.gc_pause import pause_gc
from maniple.process.interruption import hold_interrupts
from maniple.runtime.devices.processor import run_as_task
from maniple.runtime.execution.device_lane import DeviceLane
from maniple.runtime.execution.poison import may_be_awaited, place_of
from maniple.runtime.execution.run import Share
from maniple.runtime.lanes.binding import Binder, Storage
from maniple.runtime.lanes.cycle import Cycle, Moment
from maniple.runtime.lanes.lane_programs import Calls, LanePrograms
from maniple.runtime.lanes.lane_step import StepFailed
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.schedule.lane import Layout

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maniple.runtime.analysis.capacity import Resident
    from maniple.runtime.devices.event import Event
    from maniple.runtime.execution.run import Run
    from maniple.runtime.execution.services import Services
    from maniple.runtime.lanes.lane_program import LaneProgram
    from maniple.runtime.lanes.lane_step import Pause
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.storage.push import Incoming, Movement, Outgoing

__all__: list[str] = []

# A lane that was over sooner than this may be taken by the program's own thread, which is then not interrupted.
ANYWHERE_NS = 10_000_000


class Replay:
    """The lanes of a schedule that one rank runs, bound to storage and peers.

    A processor takes the steps of its lane in order; what a step waits for are counters, of processors of this rank, of
    this host, or of movements that the copy engine makes between hosts. Counters only grow, so a second run may be
    submitted while the first is under way; a third waits until the first has ended.

    A rank that begins a run publishes a table of where its instances lie. Who pushes to it first waits for that, then
    writes straight into them.

    Args:
        schedule: what to run.
        rank: the rank.
        lasting: ids of the regions whose valid instances outlive the schedule.
    """

    @pause_gc()
    def __init__(self, schedule: Schedule, rank: Services, lasting: Collection[int]) -> None:
        self._world, self._waiting, self._under_way = rank.world, rank.waiting, rank.under_way
        self._recovery, self._journal = rank.recovery, rank.journal
        resources = self._resources = rank.resources
        here = {number: resources.memories[number] for number in schedule.machine.memories_of(self._world.rank)}
        devices = any(processor.kind == "gpu" for processor in schedule.machine.processors)
        # Where a rank has devices, tiles go through the copy engine, which knows their streams.
        shared = None if devices else self._world.shared
        near = frozenset[int]() if shared is None else shared.ranks
        self.schedule, exchanges = resources.exchanges(schedule, near)
        self._storage = Storage(schedule.at(near.union(here)), here, lasting, near)
        self.lanes = Layout(schedule, here, near, self._storage.temporary).lanes()
        self._storage.plan(self.lanes.lifetimes)
        self._progress = resources.progress
        self._progress.find_counters(schedule.machine)
        self._binder = Binder(self._storage, self.lanes, shared, resources.binding, exchanges)
        self._here: list[bool] = schedule.takes_part(here).tolist()
        self._devices = {
            processor: DeviceLane(
                resources.processors[processor], resources.milestones, self._start_behind, self._storage.schedule
            )
            for processor in self.lanes.steps
            if processor in resources.milestones
        }
        self.cycle = Cycle(schedule) if schedule.rings or any(each.lag for each in schedule.launches) else None
        """Which run is next, where values live over several."""
        if self.cycle is not None and self._devices:
            raise RequestError(
                "plan: semantics.weights: pipelines without a flush run on processors of hosts, not on GPUs"
            )
        # One process may have all stages: the last is so many runs behind the first.
        slots = 2 if self.cycle is None or self._world.size > 1 else 2 + self.cycle.longest
        self._runs: list[Run | None] = [None] * slots
        calls = Calls(self._meet, self._start, self._skip, self._await_move)
        hosts = [processor for processor in self.lanes.steps if processor not in self._devices]
        self._working = [processor for processor, steps in self.lanes.steps.items() if steps]
        self._bound = LanePrograms(self.lanes, hosts, self._binder, self._progress, self, calls, self.cycle)
        self._submitted = 0
        none = array("q", bytes(8 * len(schedule) + 8))  # one more, for what belongs to no row
        self.times = tuple((none[:], none[:]) for _ in range(slots))
        self._moving: list[tuple[dict[int, Movement], list[Outgoing], list[Incoming]]] = [({}, [], [])] * slots
        self._moved_runs = dict.fromkeys(self.lanes.engine, 0)
        self._programs: Mapping[int, LaneProgram] = {}
        self._gives = True
        self._now: dict[int, Run] = {}
        self._reserved = shared is None or not schedule.total_bytes
        self.failure: TaskFailed | None = None
        """The first failure of a run of a trainer's; from then on no task of it runs."""
        self.besides: Mapping[int, Sequence[Resident]] = {}
        """Of all ranks, what a run takes beside what outlives it."""

    @property
    def halted(self) -> bool:
        """Whether a failure has ended all that runs at this rank."""
        return self._waiting.error is not None

    def take_besides(self, besides: Mapping[int, Sequence[Resident]]) -> None:
        """Take note of what a run takes, on all ranks, beside what outlives it; by memory."""
        self.besides = besides

    def needs(self) -> dict[int, int]:
        """Give the bytes that a run takes in each memory of this rank."""
        return self._binder.needs()

    def keep(self) -> None:
        """Allocate what outlives the schedule, whole, so that it need not grow once it is written."""
        self._storage.keep()

    def here(self, row: int) -> bool:
        """Say whether this rank takes part in a row."""
        return self._here[row]

    def pieces(self) -> list[tuple[tuple[str, ...], str, bool]]:
        """What device lanes here put into their streams: the labels, why it is not captured, and whether it is."""
        found = [piece for lane in self._devices.values() for piece in lane.pieces()]
        return [(tuple(map(self.schedule.label, rows)), eager, captured) for rows, eager, captured in found]

    def submit(self) -> Run:
        """Start the next run, unless the rank has failed; waits first until the run before the last has ended.

        Raises:
            RequestError: memory that ranks share is too small.
            RunError: a task failed, here or on another rank.
        """
        self._waiting.check()
        self.prepare()
        with hold_interrupts():
            return self.commit()

    def prepare(self, *, gives: bool = True) -> None:
        """Do all of a submission that may wait or fail; what is under way is as before if it does.

        Whoever submits has asked whether the rank has failed; only what this waits for is looked at again.

        Args:
            gives: whether the run begins with something that is new; see `Cycle`.

        Raises:
            RequestError: memory that ranks share is too small.
            RunError: a task failed, here or on another rank.
        """
        if self._under_way.current is not self:
            self._under_way.enter(self)
        before = self._runs[self._submitted % len(self._runs)]
        if before is not None:
            before.finish()
        if self.failure is not None:
            raise self.failure.again()
        if not self._reserved:
            self._reserve()
        if self._storage.stale():
            self._under_way.drain()
            self._bind()
        if self.cycle is not None:
            self._gives = gives
            moment, slot = self.cycle.next(gives=gives), self._submitted % len(self._runs)
            self._programs = self._bound.of(moment)
            self._moving[slot] = self._bound.movements(slot, moment, self._note_move)

    def commit(self, serial: int = 0) -> Run:
        """Start the run that `prepare` made ready; neither waits nor fails, and must not be interrupted.

        Args:
            serial: its number in a program of launches, if it is part of one.
        """
        slot = self._submitted % len(self._runs)
        work = self._working
        movements, outgoing, incoming = self._moving[slot]
        run = self._under_way.begin(self, slot, len(work) + len(movements), serial)
        if self.lanes.engine:
            run.base.update({-1 - row: self._submitted for row in self.lanes.engine})
        run.programs = self._programs
        if self.cycle is not None:
            run.moment = self.cycle.next(gives=self._gives)
            self.cycle.advance(gives=self._gives)
        self._submitted += 1
        self._runs[slot] = run
        resources = self._resources
        if resources.engine is not None and movements:
            resources.engine.submit(outgoing, incoming, movements.values())
        self._progress.begin(run.number, self._storage.table)
        for processor in work:
            share = Share(self, processor, run)
            anywhere = processor == work[0] and self._may_run_anywhere(processor)
            resources.processors[processor].enqueue(share, 0, share.take_without_waiting if anywhere else None)
        return run

    def await_end(self, run: Run) -> None:
        """Do what this thread may do of a run, and block until it has ended here.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self._resources.help()
        for lane in self._devices.values():
            lane.attend(run)
        if run.left:
            self._waiting.await_done(lambda: not run.left)

    def _may_run_anywhere(self, processor: int) -> bool:
        """Say whether a lane may be taken by any thread: its steps are compiled, and were over soon the last time."""
        if processor in self._devices:
            return self._devices[processor].settled
        program = self._programs.get(processor)
        return program is not None and program.compiled and program.lasted_ns < ANYWHERE_NS

    def take(self, processor: int, run: Run, *, begin: bool, without_waiting: bool) -> Pause | None:
        """Take the steps of one processor's lane.

        Args:
            processor: whose lane.
            run: the run.
            begin: whether this is the first time.
            without_waiting: see `LaneProgram.advance`.

        Returns:
            None at the end; else what says whether the lane can go on.
        """
        try:
            if processor in self._devices:
                self._now[processor] = run
                publish, ended = self._progress.publisher(processor), partial(self._one_less, run)
                with run_as_task():
                    self._devices[processor].take(run, publish, ended, attended=without_waiting)
                return None
            if begin:
                self._now[processor] = run
                run.programs[processor].begin(run.number, run.base, *self.times[run.slot])
            pause = run.programs[processor].advance(without_waiting=without_waiting)
            if pause is not None:
                return pause
        except StepFailed as failed:
            self.fail(failed.row, failed.__cause__ or failed)
            return None
        except BaseException as error:  # noqa: BLE001  (whatever a task's body raises is the task's failure)
            self._waiting.fail(error)
            return None
        shared, wire = self._world.shared, self._binder.wires[processor]
        if shared is not None:
            shared.wrote(wire.take(), run.number)
        self._one_less(run)
        return None

    def fail(self, row: int, error: BaseException) -> None:
        """Fail the rank with what a row raised; -1 stands for a step of no row."""
        if row >= 0 and error is not self._waiting.error and not isinstance(error, TaskFailed):
            error = self._name_failure(row, error)
        self._waiting.fail(error)

    def _name_failure(self, row: int, error: BaseException) -> TaskFailed:
        return TaskFailed.of(self.schedule, row, self._world.place(), error)

    def has_reached(self, processor: int, row: int) -> bool:
        """Say whether a failure has reached the task of a row, in the run that a processor is at."""
        run = self._now[processor]
        point = int(self.schedule.point[row])
        if point < 0:
            return False
        if not run.serial:
            return run.reach(self.failure)
        index = int(self.schedule.launch[row])
        return self._recovery.has_reached(run.serial, index, self.schedule.launches[index].points[point])

    def note(self, processor: int, row: int, error: BaseException) -> bool:
        """Note that the body of a row raised; says whether the lane can go on all the same.

        It cannot where the row is no task, or one that others may wait for by means of their own, or a task of a step
        of several ranks: those hear of nothing before the step's end.
        """
        run = self._now[processor]
        point = int(self.schedule.point[row]) if row >= 0 else -1
        if point < 0 or error is self._waiting.error or not self._goes_on(run):
            return False
        index, failure = int(self.schedule.launch[row]), self._name_failure(row, error)
        launch = self.schedule.launches[index]
        if may_be_awaited(launch):
            return False
        if run.serial:
            self._recovery.note(place_of(run.serial, index, launch.points[point]), failure)
            return True
        with self._waiting.lock:
            self.failure = self.failure or failure
            run.reach(self.failure)
        return True

    def _goes_on(self, run: Run) -> bool:
        return self._recovery.possible if run.serial else self._world.size == 1

    def is_troubled(self, processor: int) -> bool:
        """Say whether tasks of the run that a processor is at may have to be left out."""
        return bool(self._recovery.noted) if self._now[processor].serial else self.failure is not None

    def _meet(self, processor: int, rank: int) -> int:
        """Wait until another rank has begun this run, and push to where it says that its instances are."""
        run = self._now[processor]
        table, program = self._progress.meet(rank, run.number), run.programs[processor]
        if program.met.get(rank) == table:
            return table
        turn, idle = (run.moment.turn, self.cycle.idle(run.moment)) if self.cycle is not None else (0, frozenset[int]())
        for index, call in self._binder.pushes(processor, rank, table, turn, idle).items():
            program.push(index, call)
        program.met[rank] = table
        return table

    def _start(self, processor: int, row: int) -> None:
        """Hand a movement between hosts to the copy engine."""
        self._start_behind(self._now[processor], row, ())

    def _skip(self, processor: int, row: int) -> None:
        """Have a movement between hosts count as made: there is nothing to move in this run."""
        with self._waiting.finished:
            self._moved_runs[row] = self._now[processor].base[-1 - row] + 1
            self._waiting.finished.notify_all()

    def _start_behind(self, run: Run, row: int, events: tuple[Event, ...]) -> None:
        """Hand a movement to the copy engine, to be made after events."""
        self.times[run.slot][0][row] = perf_counter_ns()
        if self._resources.engine is not None:
            self._resources.engine.start(self._moving[run.slot][0][row], run.number, events)

    def _note_move(self, slot: int, row: int) -> None:
        """Note that the copy engine has moved a row: between which times, if a device did."""
        moved, (begun, ended) = self._moving[slot][0][row], self.times[slot]
        ended[row] = perf_counter_ns()
        if moved.ended_ns:
            begun[row], ended[row] = moved.begun_ns, moved.ended_ns
        run = self._runs[slot]
        if run is not None:
            with self._waiting.finished:
                self._moved_runs[row] = run.base[-1 - row] + 1
                self._waiting.finished.notify_all()
            self._one_less(run)

    def _await_move(self, row: int, value: int) -> bool:
        """Wait until the copy engine has moved a row so often; its thread needs the core, so nothing spins.

        Raises:
            RunError: the run was stopped or has failed.
        """
        if self._world.stepper is not None:
            return self._moved_runs[row] >= value
        with self._progress.blocking(), self._waiting.finished:
            while self._moved_runs[row] < value:
                self._waiting.give_up()
                self._waiting.finished.wait()
        return True

    def _one_less(self, run: Run) -> None:
        with self._waiting.finished:
            if run.end_one():
                self._journal.ran(run)
                self._waiting.finished.notify_all()

    def _reserve(self) -> None:
        """Have all ranks reserve the memory that they share, and refuse on all what one of them cannot get.

        Raises:
            RequestError: a rank did not get what it needs.
        """
        refusal = ""
        arena = None if self._world.shared is None else self._world.shared.arena
        try:
            if arena is not None:
                arena.reserve(self._storage.shared_sizes())
        except RequestError as error:
            refusal = f"{self._world.place()}: {error}"
        told = [text.decode() for text in self._world.control.gather(refusal.encode()) if text]
        if told:
            raise RequestError(told[0])
        self._reserved = True

    @pause_gc()
    def _bind(self) -> None:
        """Bind every step of this rank to storage; again only when lasting storage has moved."""
        self._storage.bind()
        self._bound.renew()
        for processor, lane in self._devices.items():
            lane.bind(self.lanes.steps[processor], self._binder.call, self._bound.wait)
        if self.cycle is None:
            self._programs = self._bound.of(Moment())
            for slot in range(len(self._runs)):
                self._moving[slot] = self._bound.movements(slot, Moment(), self._note_move)
