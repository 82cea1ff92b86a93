"""Sessions: a running program of regions and tasks on one rank, launched in program order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Lookup
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from maniple.process.digest import digest
from maniple.process.error import RequestError
from maniple.regions.index_space import IndexSpace
from maniple.regions.privilege import READ
from maniple.runtime.execution.dynamic import DynamicLaunches
from maniple.runtime.observe.timeline import Kind
from maniple.runtime.program.future import Future, FutureMap
from maniple.runtime.program.handle import PartitionedRegion, Region
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.program.launch_execution import Call
from maniple.runtime.program.mapper import LaunchView, Mapper, TaskOptions, TunableView, UseView
from maniple.runtime.program.mapping import Board, Mapping, ask_tunable, map_launch
from maniple.runtime.program.mapping_cache import Mapped, MappedLaunches
from maniple.runtime.program.operation import Operation, Statements
from maniple.runtime.program.region_table import extents
from maniple.runtime.program.stock_task import check_copy, check_fill, copy, fill, write
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.session.debugging import Debugging
from maniple.runtime.session.tracing import Traced, Tracing
from maniple.runtime.storage.copy_kernels import check_values, torch_dtype
from maniple.runtime.storage.footprint import whole

if TYPE_CHECKING:
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.operation import Domain
    from maniple.runtime.program.task import Task

__all__: list[str] = []

F = TypeVar("F", Future, FutureMap)


class Session:
    """A program of launches on one rank; every rank runs the same one.

    Launches return at once. Dependence analysis of their region requirements decides what waits for what; a processor
    runs whatever is ready.

    Args:
        runtime: the rank.
        machine: the machine whose processors may be used.
        mapper: placement where a launch does not name a mapper.
    """

    def __init__(self, runtime: RankRuntime, machine: Machine, mapper: Mapper) -> None:
        self.runtime = runtime
        self.turn = runtime.turn
        self.machine = machine
        self.mapper = mapper
        self._debugging = False
        runtime.start_processors(machine)
        self.dynamic = DynamicLaunches(runtime, machine, mapper)
        self._board = Board(machine)
        self._stated, self._mapped = Statements(), MappedLaunches()
        self.tracing = Tracing(runtime, self.dynamic, self._start, self._free_dropped, lambda: self._debugging)
        memories = enumerate(machine.memories)
        self._replicas = tuple(Point((), machine.processors_of(held.id)[0], number) for number, held in memories)

    @in_turn
    def region(
        self,
        shape: Sequence[int] | IndexSpace,
        dtype: str | torch.dtype = "float32",
        name: str | None = None,
        fields: Lookup[str, str | torch.dtype] | None = None,
    ) -> Region:
        """Make a region.

        Args:
            shape: extents, at least 1 each, () for a scalar; or an index space, dense or sparse.
            dtype: such as `float32`, or torch's own.
            name: what errors call it.
            fields: instead of a dtype, the name and dtype of each field.
        """
        space = shape if isinstance(shape, IndexSpace) else extents(name, shape)
        if space.is_empty:
            raise RequestError(f"region {name or ''}: expected an index space with at least one point, got {space}")
        self.runtime.admit("region")
        asked = {"": dtype} if fields is None else fields
        types = {field: str(kind).removeprefix("torch.") for field, kind in asked.items()}
        if not types:
            raise RequestError(f"region {name or ''}: expected at least one field, got none")
        self._tell(lambda: f"region {name or ''} of {space}, {types}", tuple)
        chosen = name or "region"
        made = [
            self.runtime.regions.region(f"{chosen}.{field}" if field else chosen, space.bounds, kind)
            for field, kind in types.items()
        ]
        self._free_dropped()
        handle = Region(self, tuple(made), space, None if fields is None else tuple(types))
        for logical in made:
            self.dynamic.add(logical, handle)
        return handle

    def _free_dropped(self) -> None:
        freed = self.dynamic.free_dropped()
        if freed:
            self.tracing.forget(freed)
            self.runtime.recovery.forget(freed)
            self._mapped.forget(freed)
            self._stated.forget()

    def launch(self, task: Task[..., Any], *args: object, mapper: Mapper | None = None) -> Future:
        """Launch one task.

        Args:
            task: the task.
            args: for each parameter a value, or for one with a privilege a region or a tile `X[P][color]`.
            mapper: placement of this launch.
        """
        return self.future(Future, task, None, args, mapper)

    def index_launch(
        self,
        task: Task[..., Any],
        domain: Domain,
        *args: object,
        mapper: Mapper | None = None,
        must_epoch: bool = False,
    ) -> FutureMap:
        """Launch a task per point of a domain; the points must not interfere.

        Args:
            task: the task.
            domain: a partition's `colors`, or extents.
            args: for each parameter a value, or for one with a privilege `X[P]` (point i gets tile i, or the one that
                a projection names) or a region (every point gets all of it).
            mapper: placement of this launch.
            must_epoch: whether all points must run at the same time, each on a processor of its own; they may then
                wait for each other by means of their own. Not inside a trace.

        Raises:
            RequestError: arguments that do not fit, points that interfere, or a read before the first write.
        """
        return self.future(FutureMap, task, domain, args, mapper, must_epoch=must_epoch)

    def fill(self, target: Region | PartitionedRegion, value: float) -> None:
        """Write one value to every element of a region, in every memory, or of the tiles of a partition, one by one.

        A whole region gets it without any instance: one that is made later has the value from the start.
        """
        region = target.region if isinstance(target, PartitionedRegion) else target
        # A value that the type cannot hold is refused here, not in a task.
        check_fill(value, region.logical.dtype)
        if isinstance(target, PartitionedRegion):
            self.future(FutureMap, fill, target.partition.colors, (value, target))
        else:
            self.future(Future, fill, None, (value, target), everywhere=True)

    def write(self, region: Region, values: torch.Tensor) -> None:
        """Write a whole tensor to a region; every rank passes the same one, so nothing moves.

        Raises:
            RequestError: another shape or dtype.
        """
        check_values(str(region), values, region.shape, torch_dtype(region.logical.dtype))
        self.future(Future, write, None, (values.detach().clone(), region), everywhere=True)

    def copy(self, source: Region | PartitionedRegion, target: Region | PartitionedRegion) -> None:
        """Copy a region, or tile by tile where both are partitioned; shapes must agree.

        Raises:
            RequestError: only one of them is partitioned, or their shapes differ, or their types in what they can hold.
        """
        check_copy(source, target)
        if isinstance(target, PartitionedRegion):
            self.future(FutureMap, copy, target.partition.colors, (source, target))
        else:
            self.future(Future, copy, None, (source, target))

    def future(
        self,
        kind: type[F],
        task: Task[..., Any],
        domain: Domain | None,
        args: Sequence[object],
        mapper: Mapper | None = None,
        *,
        must_epoch: bool = False,
        everywhere: bool = False,
    ) -> F:
        """Have a launch taken by the replay under way, or start it; give its future.

        Replays make thousands of launches, so nothing comes before the comparison.
        """
        replaying = self.tracing.replaying
        if replaying is not None and not must_epoch:
            future = replaying.future(kind, self, task, domain, args)
            if future is not None:
                return future
        return kind(self, self._operate(task, domain, args, mapper, everywhere=everywhere, must_epoch=must_epoch))

    @in_turn
    def _operate(
        self,
        task: Task[..., Any],
        domain: Domain | None,
        args: Sequence[object],
        mapper: Mapper | None,
        *,
        everywhere: bool,
        must_epoch: bool,
    ) -> Call:
        """Start a launch that no replay took."""
        self.runtime.admit("launch")
        self.dynamic.await_room()
        if must_epoch:
            self.tracing.pause("a must-epoch launch")
        operation = self._stated.state(task, domain, args, mapper, self._own, everywhere, must_epoch)
        if not (self._debugging or must_epoch):
            call = self.tracing.admit(operation, args)
            if call is not None:
                return call
        call = Call(operation.values, len(self._replicas) if everywhere else len(operation.colors))
        self._start(operation, call)
        return call

    def _start(self, operation: Operation, call: Call) -> None:
        """Map a launch that was admitted, have it analysed, and start what of it runs here."""
        mapper = operation.mapper or self.mapper
        tell = self.runtime.journal.teller("program", lambda: operation.task.name, "launch")
        tell(Kind.LAUNCHED)
        known = None if self._debugging or operation.must_epoch else self._mapped.find(operation, mapper)
        mapped = known or self._place(operation, mapper)
        tell(Kind.MAPPED)
        launch, mapping, parts = mapped.launch, mapped.mapping, mapped.parts
        self.runtime.recovery.check((launch,))
        call.serial = self.runtime.recovery.next_serial()
        if mapping.layouts:
            self.dynamic.lay_out(launch, mapping, mapper)
        self._tell(lambda: f"launch {operation} on {mapped.places}", lambda: (mapped.digest, call.values))
        if len(parts) > 1:
            self.dynamic.analysis.check_written(launch)
        for part, ranked in parts:
            self.dynamic.issue(
                part, ranked, call, serial=call.serial, together=operation.must_epoch, again=known is not None
            )
        for requirement in launch.requirements:
            if requirement.fills:
                self.runtime.resources.fill(requirement.region, cast("float", call.values[0]))
        tell(Kind.ANALYSED)
        call.launch = launch
        if not (self._debugging or operation.must_epoch):
            self.tracing.note_launch(operation, launch, call, memoize=mapping.memoize and len(parts) == 1)
            if known is None and mapping.options.keep:
                self._mapped.keep(operation, mapper, mapped)

    def _place(self, operation: Operation, mapper: Mapper) -> Mapped:
        """Have the mapper place a launch."""
        copies = len(self._replicas) if operation.everywhere else 1
        requirements = operation.requirements(copies, fill=operation.task is fill)
        if operation.everywhere:
            points = self._replicas
            kinds = (self.machine.processors[point.processor].kind for point in points)
            variants = tuple("cuda" if kind == "gpu" else "cpu" for kind in kinds)
            mapping = Mapping((), variants, (0,) * len(points), options=TaskOptions(keep=True))
        else:
            mapping = self._map(operation, mapper, requirements)
            places = zip(operation.colors, mapping.processors, strict=True)
            points = tuple(Point(color, processor) for color, processor in places)
        return Mapped.of(operation, mapping, points, requirements, checked=self._debugging or mapping.options.check)

    def _map(self, operation: Operation, mapper: Mapper, requirements: Sequence[Requirement]) -> Mapping:
        """Ask the mapper about a launch."""
        task = operation.task
        states = self.dynamic.analysis.regions
        uses = tuple(UseView(requirement, states[requirement.region.id].validity) for requirement in requirements)
        view = LaunchView(task.name, operation.colors, self.machine, uses=uses, must_epoch=operation.must_epoch)
        kinds = {name: body.processor for name, body in task.variants.items() if self.runtime.resources.runs(body)}
        return map_launch(mapper, view, kinds, self._board)

    def _tell(self, text: Callable[[], str], values: Callable[[], Sequence[object]]) -> None:
        """Tell what the program does, to be compared between ranks; alone there is nobody to tell."""
        if self.runtime.world.size > 1:
            self.runtime.world.control.call(text(), digest(values()))

    def _own(self, region: Region) -> None:
        """Refuse a region of another program; its number may be that of one of ours."""
        if region.session is not self:
            msg = f"{region} belongs to another program, perhaps one that ended with an error; make the region again"
            raise RequestError(msg)

    @in_turn
    def trace(self, name: str, *, on_mismatch: str = "error") -> Traced:
        """Record the launches inside on the first run, and replay them from then on.

        Values may differ from run to run; tasks, domains and regions may not. Launches start together at the end,
        so no value of theirs can be had inside, and no region be read.

        Args:
            name: of the trace; another sequence of launches needs another name.
            on_mismatch: what happens if a launch differs from the recording: `error`, or `rerecord` it.

        Raises:
            RequestError: the launches differ from the recording; none of this run was started.
        """
        self.runtime.admit("trace")
        return Traced(self.tracing, name, on_mismatch)

    @in_turn
    def auto_trace(self, *, on: bool = True) -> None:
        """Look for repeated launches from now on and replay them as if they were traced, or stop to.

        A launch that begins a repeated sequence is held back until the sequence is complete, or the program does
        something else, or asks for a value.
        """
        self.tracing.switch(automatic=on)

    @in_turn
    def read(self, region: Region) -> torch.Tensor:
        """Bring a whole region to every rank, wait, and give a copy; between the elements of a sparse one are zeros."""
        self.runtime.admit("read")
        self._own(region)
        self.tracing.pause(f"read of {region}")
        found: list[torch.Tensor] = []
        arrived = threading.Event()
        points = tuple(Point((rank,), self.machine.first_of(rank)) for rank in range(self.runtime.world.size))
        requirement = Requirement(region.logical, READ, (region.space,) * len(points))

        def binder(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], None]:
            def copy() -> None:
                if views[0] is not None:
                    found.append(whole(views[0], region.space))
                arrived.set()

            return copy

        self.runtime.recovery.check((launch := Launch("read", points, (requirement,), binder),))
        self._tell(lambda: f"read {region}", tuple)
        self.dynamic.issue(launch)
        self.runtime.await_event(arrived)
        self.runtime.recovery.heed()
        return found[0]

    @in_turn
    def fence(self) -> None:
        """Wait until everything launched so far is done at this rank, and hear what failed of it on any.

        Raises:
            TaskFailed: a task failed, here or on another rank.
            RunError: the run was stopped.
        """
        self.runtime.refuse_inside_a_task("fence")
        self.tracing.pause("a fence")
        if self.runtime.world.size > 1:
            self.runtime.world.control.call("fence", soon=False)
        self.runtime.drain()
        self.runtime.check()
        self.runtime.recovery.agree()
        if self.dynamic.profiler.asked:
            self.mapper.report_profiling(self.dynamic.profiler.exchange(self.runtime.world))

    @in_turn
    def tunable(self, name: str, default: bool | float | str) -> bool | float | str:  # noqa: FBT001
        """Ask the mapper for a value that it may tune, such as a number of tiles.

        Args:
            name: what the mapper knows it by.
            default: what a mapper that does not know it answers; the answer has the same type.

        Raises:
            RequestError: the answer has another type.
        """
        self.runtime.admit("tunable")
        value = ask_tunable(self.mapper, TunableView(name, default, self.machine))
        self._tell(lambda: f"tunable {name} is {value!r}", tuple)
        return value

    @in_turn
    def debug(self, *, on: bool = True) -> Debugging:
        """Check from now on, or until the end of a `with` block, that tasks use their arguments as they declare.

        Args:
            on: False to stop.
        """
        self.runtime.admit("debug")
        return Debugging(self, on=on)

    @property
    def debugging(self) -> bool:
        """Whether tasks are checked."""
        return self._debugging

    @in_turn
    def switch_debugging(self, *, on: bool) -> None:
        """Have tasks checked from now on, those of steps too, or no more."""
        self._debugging = on
        self.runtime.switch_debugging(on=on)
