"""Traces: sequences of launches that are taken down once and replayed from then on.

Recording and replaying follow Lee et al., "Dynamic Tracing: Memoization of Task Graphs for Dynamic Task-Based
Runtimes" (SC 2018): the first run is analysed launch by launch and taken down; later runs are only compared with the
recording, and run from a template that was lowered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from maniple.process.error import RequestError
from maniple.process.interruption import hold_interrupts
from maniple.runtime.analysis.template import Template, lower
from maniple.runtime.observe.timeline import Kind
from maniple.runtime.program.body import TaskBinder
from maniple.runtime.program.future import Future, FutureMap
from maniple.runtime.program.launch_execution import Calls, Frames
from maniple.runtime.program.value_table import ValueTable
from maniple.runtime.schedule.launch import Launch
from maniple.runtime.session.comparison import comparison

if TYPE_CHECKING:
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.control.turn import Turn
    from maniple.runtime.execution.dynamic import DynamicLaunches
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.program.future import Program
    from maniple.runtime.program.launch_execution import Call
    from maniple.runtime.program.operation import Domain, Operation
    from maniple.runtime.program.task import Task
    from maniple.runtime.session.comparison import Take

__all__: list[str] = []

T = TypeVar("T")
F = TypeVar("F", Future, FutureMap)

# A trace whose regions come in ever new states keeps this many templates; Legion's default is the same.
KEPT_TEMPLATES = 16

# So many parts of launches are told by identity while a trace is taken down.
KEPT_PARTS = 256


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """One launch of a recording.

    Args:
        operation: as the program stated it.
        launch: as it was mapped; its bodies take their values from the recording's frames.
        take: gives the values of a launch like it.
    """

    operation: Operation
    launch: Launch
    take: Take


def _past_the_end(task: Task[..., Any], domain: Domain | None, args: Sequence[object]) -> None:
    """Take nothing: every launch of the recording was made."""


class Recording:
    """Launches that are taken down while they run; equal parts of them are kept once, for long traces repeat a few."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.frames = Frames([Calls(), Calls()])
        self.values: list[tuple[object, ...]] = []
        self._known: dict[object, Any] = {}
        self._same: dict[int, tuple[object, Any]] = {}
        self._takes: dict[object, tuple[Operation, Take]] = {}

    def take_down(self, operation: Operation, launch: Launch, kinds: Sequence[type]) -> None:
        """Add a launch, stripped of the values of this run.

        Args:
            operation: as the program stated it.
            launch: as it was mapped.
            kinds: the types of its values.
        """
        points, requirements = self._once(launch.points), self._once(launch.requirements)
        binder = launch.binder
        if isinstance(binder, TaskBinder):
            bodies, frames = self._once(binder.bodies), self.frames
            binder = TaskBinder(
                binder.task, points, requirements, bodies, frames, len(self.records), binder.debug, binder.fields
            )
        self.values.append(operation.values)
        source = self._once(launch.provenance)
        stripped = Launch(launch.name, points, requirements, binder, provenance=source)
        key = operation.key()
        if key not in self._takes:
            like = operation.without_values()
            self._takes[key] = (like, comparison(like, kinds))
        like, take = self._takes[key]
        self.records.append(Record(like, stripped, take))

    def _once(self, part: T) -> T:
        """Give the first of equal parts; one that is given again, as launches of a loop are, is not hashed again."""
        same = self._same.get(id(part))
        if same is None:
            if len(self._same) >= KEPT_PARTS:
                self._same.clear()
            same = self._same[id(part)] = part, self._known.setdefault(part, part)
        found: T = same[1]
        return found


@dataclass(eq=False, slots=True)
class _Loaded:
    """A template bound to this rank.

    Args:
        template: what runs.
        replay: the same, bound.
        turn: which of the frames its next run uses.
        version: that of the regions right after its last run.
    """

    template: Template
    replay: Replay
    turn: int = 0
    version: int = -1


class Trace:
    """A recorded sequence of launches.

    Args:
        name: what the program calls it.
        recording: the launches.
        rank: the rank.
        dynamic: the program's regions, and the path of its other launches.
    """

    def __init__(self, name: str, recording: Recording, rank: RankRuntime, dynamic: DynamicLaunches) -> None:
        self.name = name
        self.records = tuple(recording.records)
        self.launches = tuple(record.launch for record in self.records)
        self.takes: tuple[Take, ...] = (*(record.take for record in self.records), _past_the_end)
        self._values = recording.values  # of the latest run
        self._packed: bytes | None = None
        self._told = b""
        self._text = f"trace {name!r}: {len(self.records)} launches again"
        self._frames = recording.frames
        self._rank = rank
        self._dynamic = dynamic
        self._loaded: list[_Loaded] = []  # the last one run comes first
        requirements = (requirement for record in self.records for requirement in record.launch.requirements)
        self._regions: dict[int, LogicalRegion] = {r.region.id: r.region for r in requirements}

    def uses(self, region: int) -> bool:
        """Whether a launch of it names a region."""
        return region in self._regions

    def again(self) -> None:
        """Start a replay with the values of the run before; none of the program's launches are made or compared.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.run(Calls(self.launches, self._values))

    def run(self, calls: Calls, *, hears: bool = True) -> None:
        """Start a replay; returns at once unless two are under way, or the regions were used otherwise since.

        Args:
            calls: the run; every launch was made.
            hears: whether the program may hear of a failure here, where this run is then not started.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        rank = self._rank
        if hears:
            rank.admit("trace")
            rank.recovery.check(self.launches)
        else:
            rank.check()
        calls.serial = rank.recovery.next_serial()
        table = self._frames.table
        if table is None or calls.values is not self._values:
            table = self._lay_out(calls.values)
        if rank.world.size > 1:
            rank.world.control.call(self._text, self._told, soon=False)
        loaded = self._loaded[0] if self._loaded else None
        states = None
        if loaded is None or loaded.version != self._dynamic.version:
            states = self._dynamic.settle(self._regions.values())
            loaded = self._applicable(states)
            self._dynamic.make_room(f"trace {self.name!r}", loaded.template.hulls(), loaded.replay.besides)
        # Templates share the frames: where another one ran before, everything has ended.
        self._frames.turn = loaded.turn
        loaded.replay.prepare()
        with hold_interrupts():
            if self._packed is not None:
                calls.table = table.place(self._packed, self._frames.turn)
            self._frames.enter(calls)
            loaded.turn = self._frames.turn
            rank.recovery.follow(calls.serial, self.launches)
            run = loaded.replay.commit(calls.serial)
            if states is not None:
                template = loaded.template
                self._dynamic.succeed({number: template.after(number, state) for number, state in states.items()})
                loaded.version = self._dynamic.version if template.recurrent else -1
        recorder = rank.journal.recorder
        if recorder is not None:
            for number, record in enumerate(self.records):
                recorder.teller("program", record.launch.name, "launch", (run.number, number))(Kind.LAUNCHED)

    def _lay_out(self, values: list[tuple[object, ...]]) -> ValueTable:
        """Lay out the values of a run for compiled bodies, and for other ranks to compare; gives how."""
        table = self._frames.table
        if table is None:
            table = self._frames.table = ValueTable(values)
        self._values, self._packed = values, table.pack(values)
        if self._rank.world.size > 1:
            self._told = table.digest(values, self._packed)
        return table

    def _applicable(self, states: dict[int, Any]) -> _Loaded:
        """Find a template for regions in these states, or lower one, and put it first."""
        for position, loaded in enumerate(self._loaded):
            if loaded.template.applies(states):
                self._loaded.insert(0, self._loaded.pop(position))
                return loaded
        template = lower(self.launches, states, self._dynamic.machine, self._dynamic.near)
        replay = self._rank.load(template.schedule, self._regions)
        self._loaded.insert(0, _Loaded(template, replay))
        for old in self._loaded[KEPT_TEMPLATES:]:
            self._rank.retire([old.replay])
        del self._loaded[KEPT_TEMPLATES:]
        return self._loaded[0]

    def discard(self) -> None:
        """Let go of the templates and their storage; the trace will not run again."""
        self._rank.retire([loaded.replay for loaded in self._loaded])
        self._loaded.clear()


class Replaying:
    """A trace beside the launches that the program makes now; none starts before all have matched.

    Args:
        trace: the recording.
        turn: which thread makes the program.
        held: called when a value is asked for of a launch that has not started.
        whole: called when every launch of the recording was made.
    """

    def __init__(
        self, trace: Trace, turn: Turn, held: Callable[[], object], whole: Callable[[Replaying], object] | None = None
    ) -> None:
        self.trace = trace
        self._turn = turn
        self.calls = Calls(trace.launches, begin=self._begin_if_waiting)
        self.waiting = True
        self._held = held
        self._whole = whole
        self._records, self._takes = trace.records, trace.takes
        self._made = self.calls.values
        self._thread = get_ident()

    def future(
        self, kind: type[F], program: Program, task: Task[..., Any], domain: Domain | None, args: Sequence[object]
    ) -> F | None:
        """Take in a launch and give its future; None if it is not the next one of the recording, or another thread's.

        A replay calls this for each of thousands of launches: all that it does is here and in the comparison. A traced
        block has the turn; a sequence that is held back has not, so each launch of it takes the turn.

        Raises:
            RequestError: another thread made a launch at the same time, or waited for some.
        """
        if get_ident() != self._thread:
            return None
        made = self._made
        place = len(made)
        values = self._takes[place](task, domain, args)
        if values is None:
            return None
        if self._whole is None:
            made.append(values)
        else:
            self._hold_back(values, self._whole)
        return kind(program, self.calls, place)

    def _hold_back(self, values: Any, whole: Callable[[Replaying], object]) -> None:
        """Take in a launch of a sequence that is held back, in turn: one that is refused is not among them."""
        turn, made = self._turn, self._made
        mine = turn.mine
        try:
            turn.take()
            ended = not self.waiting
            if not ended:
                made.append(values)
                if len(made) == len(self._records):
                    whole(self)
        finally:
            if not mine:
                turn.give()
        if ended:  # another thread did, after this launch was compared
            raise self._turn.refusal()

    def _begin_if_waiting(self) -> None:
        if self.waiting:
            self._held()

    @property
    def complete(self) -> bool:
        """Whether every launch of the recording was made."""
        return len(self.calls.values) == len(self._records)

    def run(self) -> None:
        """Start what was made: all of the recording."""
        try:
            self.trace.run(self.calls, hears=self._whole is None)  # launches held back were made before
        except BaseException:
            self.abandon()
            raise
        self.waiting = False

    def release(self) -> list[tuple[Operation, Call]]:
        """Give up the replay; returns what was made so far, to be started in another way."""
        self.waiting = False
        made = zip(self._records, self.calls.values, strict=False)
        return [(record.operation.with_values(values), self.calls[i]) for i, (record, values) in enumerate(made)]

    def abandon(self) -> None:
        """Give up what was made so far for good: its futures will have no value."""
        self.waiting = False
        self.calls.give_up()

    def mismatch(self, got: Operation | None) -> RequestError:
        """Describe the first launch that differs.

        Args:
            got: the launch; None if the trace ended instead.
        """
        position = len(self.calls.values)
        recorded = self._records[position].operation if position < len(self._records) else None
        renewed = ""
        if recorded is not None and got is not None and recorded.task is not got.task:
            renewed = " (a task made anew under the same name)" if recorded.task.name == got.task.name else ""
        return RequestError(
            f"trace {self.trace.name!r}: launch {position + 1} differs from the recording\n"
            f"  recorded: {_describe(recorded)}\n"
            f"  now:      {_describe(got)}{renewed}\n"
            "make the same launches in every run of a trace, give another sequence another name, "
            'or record again with on_mismatch="rerecord"'
        )


def _describe(operation: Operation | None) -> str:
    return "the end of the trace" if operation is None else f"{operation}, launched at {operation.provenance}"
