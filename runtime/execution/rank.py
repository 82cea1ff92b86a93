"""The runtime of one rank: its processors, its memories, its copy engine, and what is under way."""

from __future__ import annotations

import atexit
import threading
from dataclasses import astuple
from typing import TYPE_CHECKING

from maniple.regions.error import ManipleError, RequestError
from maniple.runtime.analysis.capacity import Resident, check_schedule, passing, roomy
from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.exit_hook import broken_off, end_badly
from maniple.runtime.control.loopback import LoopbackHub
from maniple.runtime.control.world import is_current
from maniple.runtime.devices.processor import CpuProcessor, GpuProcessor, inside_task
from maniple.runtime.devices.registry import open_device
from maniple.runtime.execution import activity, recording
from maniple.runtime.execution.device_lane import Milestones
from maniple.runtime.execution.engine import DEFAULT_CREDIT_BYTES, CopyEngine
from maniple.runtime.execution.mailbox import Mailbox
from maniple.runtime.execution.recorder import silent
from maniple.runtime.execution.recovery import Recovery
from maniple.runtime.execution.replay import Replay, Run
from maniple.runtime.lanes.progress import Progress
from maniple.runtime.process.inventory import available_cores
from maniple.runtime.process.malloc_tuning import keep_freed
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.storage.memory import Memory
from maniple.runtime.storage.scratch import ScratchTable
from maniple.runtime.transports import record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.control.world import World
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.execution.recorder import Recorder, Tell
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.machine_part import Processor as MachineProcessor
    from maniple.runtime.program.variant import Variant
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.transports.transport import Transport

__all__: list[str] = []

PATIENCE_S = 0.1  # how often a wait for a value looks for a failure elsewhere; the value itself wakes it at once


class RankRuntime:
    """Everything of one rank that runs: threads for processors and for the copy engine, and storage.

    Args:
        world: the ranks that take part; a world has one runtime per rank for as long as it lives.
        credit_bytes: bound of the bytes in flight to one other rank.
    """

    def __init__(self, world: World, credit_bytes: int = DEFAULT_CREDIT_BYTES) -> None:
        self.world = world
        self.memories: dict[int, Memory] = {}
        self.regions = RegionTable()
        self.scratch = ScratchTable()
        self.processors: dict[int, Processor] = {}
        self.milestones: dict[int, Milestones] = {}
        self.lock = threading.Lock()
        self.finished = threading.Condition(self.lock)
        self.current: Replay | None = None
        self.last: Run | None = None
        self.under_way = 0
        self.error: BaseException | None = None
        self._raised_in: TracebackType | None = None
        self.recovery = Recovery(self)
        self.before_end: Callable[[], object] | None = None
        self.endings: list[Callable[[], object]] = []
        self.recorder: Recorder | None = None
        self.debugging = False
        self._told = False
        self._programs = 0
        self._submissions = 0
        self.taken: dict[int, int] = {}
        neighbours = 1 if world.shared is None else len(world.shared.ranks)
        roomy = neighbours * world.processors * world.cores <= available_cores()
        self.progress = Progress(world.shared, world.rank, roomy=roomy, patient=world.stepper is None, check=self.check)
        self._credit_bytes = credit_bytes
        self._post: Mailbox | None = None
        self.engine: CopyEngine | None = None
        if world.transport is not None:
            self._start_engine(world.transport)
        activity.attend(self)
        world.control.on_stop(self.fail)
        # Registered after the world's own ending, so run before it: what is under way ends, then the wire is let go.
        atexit.register(self._end)

    @classmethod
    def of(cls, world: World) -> RankRuntime:
        """Give the world's runtime at this rank, made on first use.

        In a world of one rank a runtime that failed is replaced, so that a notebook goes on after an error.

        Raises:
            RunError: it failed, and nobody was told before.
        """
        found = _RUNTIMES.get(world)
        if found is not None and found.error is not None and world.size == 1:
            if not found._told:  # noqa: SLF001  (of its own kind)
                found.check()
            found.close()
            found = None
        if found is None:
            found = _RUNTIMES[world] = cls(world)
            if world.record is not None:
                recording.start(found)
        return found

    def mover(self, memories: Collection[int]) -> CopyEngine | Mailbox | None:
        """Give what moves tiles of untraced launches between memories, None where nothing does.

        Args:
            memories: all that take part; if all are of this host's CPUs they share memory, else messages are sent.
        """
        shared = self.world.shared
        if (
            shared is None
            or not shared.has_bells
            or self.world.device != "cpu"
            or not shared.ranks.issuperset(memories)
        ):
            return self.engine
        if self._post is None:
            self._post = Mailbox(shared, self._credit_bytes, self.fail)
        return self._post

    def load(self, schedule: Schedule, lasting: Collection[int]) -> Replay:
        """Bind a schedule to this rank.

        Args:
            schedule: what to run; every rank loads the same.
            lasting: ids of the regions whose values outlive it.

        Raises:
            RequestError: some memory cannot hold what it needs.
        """
        self.employ(schedule.machine)
        replay = Replay(schedule, self, lasting)
        needs, scratch = (schedule.memory_bytes(), {}) if roomy(schedule) else self._check(schedule, replay.needs())
        replay.besides = {
            memory: [resident, *scratch.get(memory, ())]
            for memory, resident in passing(schedule, needs, lasting).items()
        }
        return replay

    def _check(self, schedule: Schedule, needs: dict[int, int]) -> tuple[dict[int, int], dict[int, list[Resident]]]:
        """Refuse a schedule on all ranks if a memory of one cannot hold it, the scratch of bodies included.

        Bodies are rehearsed on tensors as large as their instances, so only once those are known to fit.

        Args:
            schedule: the schedule.
            needs: bytes that a run takes in each memory of this rank.

        Returns:
            The same of all ranks, and what scratch takes besides.

        Raises:
            RequestError: says what wanted to live there.
            RunError: a task failed, here or on another rank.
        """
        told = self._by_memory({memory: [need] for memory, need in needs.items()})
        everywhere = {memory: need.integer() for memory, (need,) in told.items()}
        check_schedule(schedule, everywhere, {})
        self.scratch.rehearse(schedule, self.processors, self.await_event)
        residents = self.scratch.residents(schedule, self.processors)
        found = self._by_memory({memory: list(map(astuple, some)) for memory, some in residents.items()})
        scratch = {memory: [Resident.of(one) for one in some] for memory, some in found.items()}
        check_schedule(schedule, everywhere, scratch)
        return everywhere, scratch

    def _by_memory(self, mine: Mapping[int, Sequence[object]]) -> dict[int, tuple[record.Field, ...]]:
        """Put together what every rank says of its own memories, which it plans and measures alone."""
        gathered = self.world.control.gather(record.packed(sorted(mine.items())))
        told = (row.items(2) for part in record.parts(gathered, "needs of memories") for row in part.items())
        return {memory.integer(): found.items() for memory, found in told}

    def employ(self, machine: Machine) -> None:
        """Start this rank's processors, and have its memories; a processor whose cores differ is replaced.

        Raises:
            RequestError: a GPU, and there is none.
        """
        self.drain()
        keep_freed()
        own = machine.memories_of(self.world.rank)
        for processor in machine.processors:
            if processor.memory not in own:
                continue
            held = self.processors.get(processor.id)
            if processor.kind == "gpu":
                if not isinstance(held, GpuProcessor):
                    self._open(processor, machine)
                continue
            if held is not None and held.cores == processor.cores:
                continue
            if held is not None:
                held.close()
            self.processors[processor.id] = CpuProcessor(processor.id, processor.cores, self.fail, self.world.stepper)
            if processor.memory not in self.memories:
                arena = None if self.world.shared is None else self.world.shared.arena
                self.memories[processor.memory] = Memory(processor.memory, arena)
        if len(own) > 1 and self.engine is None:
            self._start_engine(LoopbackHub(1).endpoint(0))

    def _open(self, processor: MachineProcessor, machine: Machine) -> None:
        """Open the device behind a processor, and its memory."""
        hosts = self.world.hosts
        gpus = [other.id for other in machine.processors if other.kind == "gpu"]
        near = [other for other in gpus if hosts[machine.rank_of(other)] == hosts[self.world.rank]]
        local = near.index(processor.id)
        device = open_device(self.world.device, local, machine.memories[processor.memory].capacity_bytes)
        self.processors[processor.id] = GpuProcessor(processor.id, device, self.fail)
        self.memories[processor.memory] = Memory(processor.memory, None, device)
        self.milestones[processor.id] = Milestones(self.check, PATIENCE_S)

    def _start_engine(self, transport: Transport) -> None:
        self.engine = CopyEngine(transport, self._credit_bytes, self.fail, self.world.local, self.world.stepper)
        self.engine.begin()

    def runs(self, variant: Variant) -> bool:
        """Whether a variant runs on every processor of its kind here."""
        return variant.kind != "numba.cuda" or all(processor.compiles for processor in self.processors.values())

    def binding(self, processor: int) -> AbstractContextManager[object]:
        """Bind bodies for a processor of this rank inside."""
        return self.processors[processor].binding()

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts, in all memories of this rank."""
        return sum(memory.kept_bytes() for memory in self.memories.values())

    def fill(self, region: LogicalRegion, value: float) -> None:
        """Give instances of a region that are made here from now on a value, of all elements."""
        for memory in self.memories.values():
            memory.fill(region, value)

    def next_program(self) -> int:
        """Number a trainer; every rank numbers the same ones alike."""
        self._programs += 1
        return self._programs

    def next_submission(self) -> int:
        """Number a submission; every rank numbers the same ones alike."""
        self._submissions += 1
        return self._submissions

    def retire(self, replays: Collection[Replay]) -> None:
        """Let go of replays that will not run again, and of their storage."""
        if self.current in replays:
            self.current = None
        if self.last is not None and self.last.replay in replays and not self.last.left:
            self.last = None

    def drain(self) -> None:
        """Block until nothing is under way at this rank.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self.last is not None:
            self.last.finish()
        self.await_issued()

    def await_issued(self) -> None:
        """Block until every untraced row issued so far is done at this rank.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.await_done(lambda: not self.under_way)

    def await_done(self, done: Callable[[], bool]) -> None:
        """Block until something is done at this rank.

        Args:
            done: says so; whoever makes it so notifies `finished`.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        stepper = self.world.stepper
        if stepper is not None:
            stepper.until(lambda: done() or self.error is not None)
        with self.world.headway.waiting(), self.finished:
            while not done():
                self.check()
                self.finished.wait()

    def help(self) -> None:
        """Do on this thread, which waits, what the rank's processors have not begun and any thread may do."""
        for processor in self.processors.values():
            processor.help()

    def fail(self, error: BaseException) -> None:
        """Record the first failure, wake everybody who waits, and have the other ranks stopped."""
        with self.lock:
            first = self.error is None
            if first:
                self.error, self._raised_in = error, error.__traceback__
            self.finished.notify_all()
        if first and not isinstance(error, RankStopped):
            self.world.control.fail("", f"{type(error).__name__}: {error}")

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self.error is not None:
            self._told = True
            # One exception for all who ask; its traceback must not grow with each.
            raise self.error.with_traceback(self._raised_in)

    def guard(self, call: Callable[[], object], launch: Launch, point: int) -> Callable[[], object]:
        """Wrap a task's body so that its failure names the task."""

        def guarded() -> None:
            try:
                call()
            except BaseException as error:
                raise TaskFailed.of_launch(launch, point, self.world.place(), error) from error

        return guarded

    def teller(self, lane: str, name: Callable[[], str], category: str) -> Tell:
        """Give what notes the events of one thing, if somebody records; takes what `Recorder.teller` takes."""
        return silent if self.recorder is None else self.recorder.teller(lane, name(), category)

    def await_event(self, event: threading.Event) -> None:
        """Block until an event is set.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.help()
        if self.world.stepper is not None:
            self.world.stepper.until(lambda: event.is_set() or self.error is not None)
        with self.world.headway.waiting():
            while not event.wait(PATIENCE_S):
                self.check()
        self.check()

    def refuse_inside_a_task(self, what: str) -> None:
        """Refuse what only the program may do: a body that waited for its own processor would wait for ever.

        Raises:
            RequestError: this thread is a processor's.
        """
        if inside_task():
            msg = f"{what} was called inside a task's body; launch, read and wait in the program, outside of tasks"
            raise RequestError(msg)

    def _end(self) -> None:
        """At the end of the program: let what was launched finish, and do not end well if it failed unseen."""
        if is_current(self.world) and not broken_off() and not self._told:
            try:
                if self.before_end is not None:
                    self.before_end()
                self.drain()
                self.check()
                self.recovery.agree()
                for ending in tuple(self.endings):
                    ending()
                if self.world.record is not None:
                    recording.save(self, self.world.record)
            except RankStopped:
                pass
            except ManipleError as error:
                end_badly(self.world.control, error)
        for way in (self.engine, self._post):
            if way is not None:
                way.close()

    def close(self) -> None:
        """End all threads of this rank, and forget it; what is under way is dropped."""
        if _RUNTIMES.get(self.world) is self:
            del _RUNTIMES[self.world]
        atexit.unregister(self._end)
        with self.lock:  # a lane must not wait for one that is dropped
            self.error = self.error or RankStopped("the runtime of this rank was closed")
            self.finished.notify_all()
        for processor in self.processors.values():
            processor.close()
        self.processors.clear()
        for way in (self.engine, self._post):
            if way is not None:
                way.close()


# From when a runtime is made until it is closed: its threads keep it, and it keeps its world.
_RUNTIMES: dict[World, RankRuntime] = {}
