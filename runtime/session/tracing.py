"""Tracing: which launches of a program are recorded, replayed, held back, or none of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from maniple.process.error import RequestError, nearest
from maniple.runtime.program.future import Future
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.session.automatic import AutomaticTracing
from maniple.runtime.session.trace import Recording, Replaying, Trace

if TYPE_CHECKING:
    from types import TracebackType

    from maniple.runtime.execution.dynamic import DynamicLaunches
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.program.launch_execution import Call
    from maniple.runtime.program.operation import Operation
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.session.automatic import Candidate

__all__: list[str] = []

MISMATCHES = ("error", "rerecord")


class Traced(AbstractContextManager[None]):
    """A block of a program that is recorded once and replayed from then on, in one thread's turn.

    Args:
        tracing: the program's traces.
        name: of this one.
        on_mismatch: `error` or `rerecord`.
    """

    def __init__(self, tracing: Tracing, name: str, on_mismatch: str) -> None:
        self._tracing = tracing
        self.turn = tracing.turn
        self._name = name
        self._on_mismatch = on_mismatch

    def __enter__(self) -> None:
        """Begin a run of the block.

        Raises:
            RequestError: another thread makes launches or waits for some; or inside another trace.
        """
        around = self.turn.mine  # what it was taken for breaks nothing off, and gives it back
        try:
            self.turn.take()
            self._tracing.begin(self._name, self._on_mismatch)
        except BaseException:
            if self.turn.mine and not around:
                self._end(whole=False)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record what was launched inside, or start its replay."""
        try:
            self._end(whole=kind is None)
        except BaseException:
            if self.turn.mine:  # Ctrl-C came before anything was done there; it does not come twice
                self._end(whole=False)
            raise

    def _end(self, *, whole: bool) -> None:
        """End the block, of which all launches were made or not, and give the turn back."""
        try:
            if whole:
                self._tracing.end(self._name)
            else:
                self._tracing.break_off()
        except BaseException:
            self._tracing.break_off()  # nothing, where that was done
            raise
        finally:
            self.turn.give()

    @in_turn
    def replay(self) -> None:
        """Replay the recording as it is, with the values of the latest run; no launch is made again.

        What changes from run to run must lie in regions. The program neither builds the launches nor has them compared,
        so this is the cheapest way to run a long sequence of small tasks.

        Raises:
            RequestError: there is no recording.
            RunError: a task failed, here or on another rank.
        """
        self._tracing.replay(self._name)


class Tracing:
    """The traces of a program, and what the one around its present place makes of the next launch.

    Args:
        rank: the rank.
        dynamic: the path of launches that are not replayed.
        start: maps a launch and starts it there.
        before: done before a trace is looked for: frees what the program has dropped.
        checking: whether launches are checked one by one, so that none is recorded or replayed.
    """

    def __init__(
        self,
        rank: RankRuntime,
        dynamic: DynamicLaunches,
        start: Callable[[Operation, Call], None],
        before: Callable[[], None],
        checking: Callable[[], bool],
    ) -> None:
        self.traces: dict[str, Trace] = {}
        self.automatic: AutomaticTracing | None = None
        self.turn = rank.turn
        self._rank = rank
        self._dynamic = dynamic
        self._start = start
        self._before = before
        self._checking = checking
        self._open: str | None = None  # the name of the trace around the program's present place
        self._on_mismatch = ""
        self._recording: Recording | None = None
        self.replaying: Replaying | None = None  # asked first about every launch
        self._candidate: Candidate | None = None  # what is replayed, where no name is open
        dynamic.measure_while(lambda: self._recording is not None or self.automatic is not None)

    def admit(self, operation: Operation, args: Sequence[object]) -> Call | None:
        """Make up one's mind about a launch that no replay took; a call if it begins a repeated sequence.

        Args:
            operation: the launch.
            args: its arguments as they were given.

        Raises:
            RequestError: it differs from the recording of the trace around it.
        """
        if self._candidate is not None:
            self._give_up()
        elif self.replaying is not None:
            self._diverge(self.replaying, operation)
        if self.automatic is None or self._open is not None or self._rank.recovery.poison:
            return None  # one that reads poison is refused at once, so none is held back
        found = self.automatic.begun_by(operation)
        if found is None:
            return None
        replaying = self._begin(found)
        future = replaying.future(Future, self._dynamic, operation.task, operation.domain, args)
        return None if future is None else replaying.calls[0]

    def note_launch(self, operation: Operation, launch: Launch, call: Call, *, memoize: bool) -> None:
        """Take note of a launch that was started by itself; one that must not be kept spoils the recording."""
        if not memoize:
            self._recording = None
            self._interrupt()
        elif self._recording is not None:
            self._recording.take_down(operation, launch, tuple(map(type, operation.values)))
        elif self.automatic is not None and self._open is None:
            self.automatic.note(operation, launch)
            call.begin = self.automatic.interrupt

    def begin(self, name: str, on_mismatch: str) -> None:
        """Record the launches that follow, or replay them.

        Args:
            name: of the trace.
            on_mismatch: `error` or `rerecord`.

        Raises:
            RequestError: inside another trace, or the choice is none.
        """
        if on_mismatch not in MISMATCHES:
            raise RequestError(f"trace {name!r}: unknown on_mismatch {on_mismatch!r}{nearest(on_mismatch, MISMATCHES)}")
        self._rank.refuse_inside_a_task(f"trace {name!r}")
        self._before()
        plain = self._checking()
        self.pause(f"trace {name!r}")
        self._open, self._on_mismatch = name, on_mismatch
        known = self.traces.get(name)
        if known is not None and not plain:
            self.replaying = Replaying(known, self.turn, lambda: self.pause("a value of a launch"))
        elif not plain:
            self._recording = Recording()

    def end(self, name: str) -> None:
        """Keep what was recorded, or start the replay.

        Raises:
            RequestError: the launches differ from the recording; none of this run was started.
        """
        try:
            if self.replaying is not None and not self.replaying.complete:
                self._diverge(self.replaying, None)
        except BaseException:
            self.break_off()
            raise
        self._open = None
        self._close(name)

    def break_off(self) -> None:
        """Start one by one what a replay holds back, and keep nothing of a recording: an exception left the block."""
        try:
            self._resume()
        finally:
            self._recording = None
            self._open = None

    def replay(self, name: str) -> None:
        """Replay a recording with the values of its latest run.

        Raises:
            RequestError: there is none, or launches are checked one by one at present.
        """
        self._rank.refuse_inside_a_task(f"a replay of {name!r}")
        self._before()
        self.pause(f"a replay of {name!r}")
        known = self.traces.get(name)
        if known is None:
            held = nearest(name, tuple(self.traces)) if self.traces else ""
            raise RequestError(f"trace {name!r} has no recording{held}: make its launches once inside it")
        if self._checking():
            raise RequestError(
                f"trace {name!r} is replayed under debug(), which checks launches: make them in `with` it"
            )
        known.again()

    def _close(self, name: str) -> None:
        replaying, self.replaying = self.replaying, None
        recording, self._recording = self._recording, None
        if replaying is not None:
            replaying.run()
        elif recording is not None:
            if name in self.traces:
                self.traces.pop(name).discard()
            self.traces[name] = Trace(name, recording, self._rank, self._dynamic)

    def pause(self, what: str) -> None:
        """Have nothing held back, for the program waits.

        Args:
            what: for what.

        Raises:
            RequestError: inside a trace, whose launches start together; or inside a task.
        """
        self._rank.refuse_inside_a_task(what)
        if self._open is not None:
            msg = (
                f"{what} was asked for inside trace {self._open!r}, whose launches start together at its end; "
                "ask after the with block"
            )
            raise RequestError(msg)
        self._give_up()
        self._interrupt()

    def _interrupt(self) -> None:
        if self.automatic is not None:
            self.automatic.interrupt()

    def switch(self, *, automatic: bool) -> None:
        """Look for repeated launches from now on, or stop to."""
        self.pause("automatic tracing")
        if automatic and self.automatic is None:
            self._rank.endings.hold_back(self._give_up)
            self.automatic = AutomaticTracing(self._rank, self._dynamic)
        elif not automatic:
            self.automatic = None

    def forget(self, regions: Sequence[int]) -> None:
        """Forget the traces of regions that are no more."""
        for name, trace in list(self.traces.items()):
            if any(trace.uses(region) for region in regions):
                self.traces.pop(name).discard()
        if self.automatic is not None:
            for region in regions:
                self.automatic.forget(region)

    def _diverge(self, replaying: Replaying, got: Operation | None) -> None:
        """Record again, or refuse, a run of a trace that differs from its recording."""
        if self._on_mismatch == "rerecord":
            self._recording = Recording()
            self._resume()
            return
        self.replaying = None
        replaying.abandon()
        raise replaying.mismatch(got)

    def _resume(self) -> None:
        """Start one by one the launches that a replay holds back."""
        replaying, self.replaying = self.replaying, None
        if replaying is not None:
            held = replaying.release()
            if held:
                self._rank.check()
            for operation, call in held:
                self._start(operation, call)

    def _begin(self, candidate: Candidate) -> Replaying:
        """Expect a repeated sequence."""
        self._candidate = candidate
        self.replaying = Replaying(
            candidate.trace,
            self.turn,
            lambda: self.pause("a value of a launch"),
            lambda replaying: self._finish(candidate, replaying),
        )
        return self.replaying

    @in_turn
    def _finish(self, candidate: Candidate, replaying: Replaying) -> None:
        """Start a repeated sequence that is complete, and expect it again."""
        self.replaying = self._candidate = None
        replaying.run()
        if self.automatic is not None:
            self.automatic.judge(candidate, finished=True)
        self._begin(candidate)

    def _give_up(self) -> None:
        """Start one by one the launches of a sequence that did not become complete."""
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            return
        if self.automatic is not None:
            self.automatic.interrupt()
            if self.replaying is not None and self.replaying.calls.values:
                self.automatic.judge(candidate, finished=False)
        self._resume()
