"""The runtime of one rank: it owns the parts that run a program, and ends them."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, NoReturn

from maniple.process.error import ManipleError, RequestError
from maniple.process.malloc_tuning import keep_freed
from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.endings import Endings
from maniple.runtime.control.exit_hook import end_badly, is_broken_off
from maniple.runtime.control.waiting import Waiting
from maniple.runtime.control.world import is_current
from maniple.runtime.devices.processor import inside_task
from maniple.runtime.execution import recording
from maniple.runtime.execution.barrier import Barrier
from maniple.runtime.execution.engine import DEFAULT_CREDIT_BYTES
from maniple.runtime.execution.loading import load
from maniple.runtime.execution.recorder import Journal
from maniple.runtime.execution.recovery import Recovery
from maniple.runtime.execution.resources import Resources
from maniple.runtime.execution.under_way import UnderWay
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.storage.scratch import ScratchTable

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection

    from maniple.runtime.control.world import World
    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


class RankRuntime:
    """Everything of one rank that runs.

    It owns; its parts do, and each alone changes what it holds:

        waiting      the first failure, and the waits that it ends
        resources    processors, memories, and the ways between them
        under_way    the runs and rows that have begun and not ended
        recovery     what failed, and what is poisoned by it
        journal      what records
        endings      what is left to do at the program's end
        regions      what regions there are
        scratch      what bodies take beside their arguments

    Args:
        world: the ranks that take part; a world has one runtime per rank for as long as it lives.
        credit_bytes: bound of the bytes in flight to one other rank.
    """

    def __init__(self, world: World, credit_bytes: int = DEFAULT_CREDIT_BYTES) -> None:
        self.world = world
        self.turn = world.turn
        self.waiting = Waiting(world)
        self.resources = Resources(world, self.waiting, credit_bytes)
        self.under_way = UnderWay(self.waiting)
        world.headway.name(self.under_way.doing)
        self.endings = Endings()
        self.journal = Journal()
        self.regions = RegionTable()
        self.scratch = ScratchTable()
        barrier = Barrier(world, self.resources.progress)
        self.recovery = Recovery(world, barrier, self.under_way.drain, self.endings.release)
        self.memories = self.resources.memories
        self.processors = self.resources.processors
        self.debugging = False
        """Whether tasks are checked."""
        self._programs = 0
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
            if not found.waiting.told:
                found.check()
            found.close()
            found = None
        if found is None:
            found = _RUNTIMES[world] = cls(world)
            if world.record is not None:
                recording.start(found)
        return found

    @property
    def error(self) -> BaseException | None:
        """The first failure; None while there was none."""
        return self.waiting.error

    def switch_debugging(self, *, on: bool) -> None:
        """Have tasks checked from now on, or no more."""
        self.debugging = on

    def next_program(self) -> int:
        """Number a trainer; every rank numbers the same ones alike."""
        self._programs += 1
        return self._programs

    def start_processors(self, machine: Machine) -> None:
        """Start this rank's processors of a machine, and have its memories, once nothing is under way.

        Raises:
            RequestError: a GPU, and there is none.
            RunError: a task failed, here or on another rank.
        """
        self.drain()
        keep_freed()
        self.resources.start_processors(machine)

    def known(self, machine: Machine) -> frozenset[int] | None:
        """Give the memories of which this rank lays out what is done: its own and those that it shares; none: all."""
        shared = self.world.shared
        mine = frozenset(machine.memories_of(self.world.rank))
        return None if self.world.size == 1 else mine if shared is None else mine | shared.ranks

    def load(self, schedule: Schedule, lasting: Collection[int]) -> Replay:
        """Bind a schedule to this rank; see `loading.load`."""
        self.start_processors(schedule.machine)
        return load(schedule, self, lasting)

    def retire(self, replays: Collection[Replay]) -> None:
        """Let go of replays that will not run again, and of their storage."""
        self.under_way.retire(replays)

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts, in all memories of this rank."""
        return self.resources.kept_bytes()

    def admit(self, what: str) -> None:
        """Let the program go on to do something; asked once, before any of it is said or done.

        Args:
            what: what messages call it.

        Raises:
            RequestError: this thread is a processor's.
            TaskFailed: a task failed, of which a program of one rank has not heard.
            RunError: a failure ended the run, here or on another rank.
        """
        if inside_task():
            self._refuse(what)
        if self.recovery.noted:
            self.recovery.hear()
        self.waiting.check()

    def refuse_inside_a_task(self, what: str) -> None:
        """Refuse what only the program may do: a body that waited for its own processor would wait for ever.

        Raises:
            RequestError: this thread is a processor's.
        """
        if inside_task():
            self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        msg = f"{what} was called inside a task's body; launch, read and wait in the program, outside of tasks"
        raise RequestError(msg)

    def fail(self, error: BaseException) -> None:
        """Record the first failure, wake everybody who waits, and have the other ranks stopped."""
        self.waiting.fail(error)

    def check(self) -> None:
        """Raise the failure, if there was one."""
        self.waiting.check()

    def drain(self) -> None:
        """Block until nothing is under way at this rank.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.under_way.drain()

    def await_event(self, event: threading.Event) -> None:
        """Do what this thread may do of what is under way, and block until an event is set.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.resources.help()
        self.waiting.await_event(event)

    def _end(self) -> None:
        """At the end of the program: let what was launched finish, and do not end well if it failed unseen."""
        if is_current(self.world) and not is_broken_off() and not self.waiting.told:
            try:
                self.endings.release()
                self.drain()
                self.check()
                self.recovery.agree()
                self.endings.call_all()
                if self.world.record is not None:
                    recording.save(self, self.world.record)
            except RankStopped:
                pass
            except ManipleError as error:
                end_badly(self.world.control, error)
        self.resources.close_ways()

    def close(self) -> None:
        """End all threads of this rank, and forget it; what is under way is dropped."""
        if _RUNTIMES.get(self.world) is self:
            del _RUNTIMES[self.world]
        atexit.unregister(self._end)
        self.waiting.close()
        self.resources.close()


# From when a runtime is made until it is closed: its threads keep it, and it keeps its world.
_RUNTIMES: dict[World, RankRuntime] = {}
