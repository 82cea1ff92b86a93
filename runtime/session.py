"""Sessions: a running program of regions and tasks on one rank, launched in program order."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from maniple.regions.error import RequestError, RunError
from maniple.regions.index_space import IndexSpace
from maniple.regions.privilege import READ, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.runtime.argument import comparable, regions, resolve, shown
from maniple.runtime.body import TaskBinder
from maniple.runtime.coherence import serialised
from maniple.runtime.digest import digest
from maniple.runtime.footprint import present, whole
from maniple.runtime.future import Future, FutureMap
from maniple.runtime.handle import Region
from maniple.runtime.interruption import uninterrupted
from maniple.runtime.issue import Issuer, LiveRegion
from maniple.runtime.kernels import torch_dtype
from maniple.runtime.launch import Launch, Point, Requirement
from maniple.runtime.mapper import LaunchView, Mapper, map_launch
from maniple.runtime.program_analysis import ProgramAnalysis

if TYPE_CHECKING:
    from maniple.runtime.analysis import Node
    from maniple.runtime.issue import Issued
    from maniple.runtime.machine import Machine
    from maniple.runtime.program_analysis import AnalysedUse
    from maniple.runtime.rank import RankRuntime
    from maniple.runtime.task import Task

__all__: list[str] = []


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
        self.machine = machine
        self.mapper = mapper
        self.debugging = False
        self._dropped: deque[int] = deque()
        self._issuer = Issuer(runtime)
        self._analysis = ProgramAnalysis(machine)
        self._live: dict[int, LiveRegion] = {}
        runtime.employ(machine)

    def region(
        self,
        shape: Sequence[int] | IndexSpace,
        dtype: str = "float32",
        name: str | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Region:
        """Make a region.

        Args:
            shape: extents, at least 1 each, () for a scalar; or an index space, dense or sparse.
            dtype: such as `float32`.
            name: what errors call it.
            fields: instead of a dtype, the name and dtype of each field.
        """
        space = shape if isinstance(shape, IndexSpace) else _extents(name, shape)
        if space.is_empty:
            msg = f"region {name or ''}: expected an index space with at least one point, got {space}"
            raise RequestError(msg)
        types = {"": dtype} if fields is None else dict(fields)
        if not types:
            msg = f"region {name or ''}: expected at least one field, got none"
            raise RequestError(msg)
        self._tell(f"region {name or ''} of {space}, {', '.join(f'{f} {t}'.strip() for f, t in types.items())}", ())
        chosen = name or "region"
        made = [
            self.runtime.regions.region(f"{chosen}.{field}" if field else chosen, space.bounds, kind)
            for field, kind in types.items()
        ]
        self._free_dropped()
        handle = Region(self, tuple(made), space, None if fields is None else tuple(types))
        for logical in made:
            self._live[logical.id] = LiveRegion(logical, self._analysis.add(logical))
            # The collector may run on any thread and at any time, so it only leaves a note.
            weakref.finalize(handle, self._dropped.append, logical.id).atexit = False
        return handle

    def _free_dropped(self) -> None:
        """Free the regions that the program can no longer name, once their tasks are done."""
        for _ in range(len(self._dropped)):
            number = self._dropped.popleft()
            live = self._live[number]
            if live.busy():
                self._dropped.append(number)
                continue
            del self._live[number]
            self._analysis.drop(number)
            self.runtime.memory.forget(live.region)

    def launch(self, task: Task[..., Any], *args: object, mapper: Mapper | None = None) -> Future:
        """Launch one task.

        Args:
            task: the task.
            args: for each parameter a value, or for one with a privilege a region or a tile `X[P][color]`.
            mapper: placement of this launch.
        """
        futures = self._launch(task, ((),), args, mapper, _provenance())
        return futures[()]

    def index_launch(
        self, task: Task[..., Any], domain: Rect | Sequence[int] | int, *args: object, mapper: Mapper | None = None
    ) -> FutureMap:
        """Launch a task per point of a domain; the points must not interfere.

        Args:
            task: the task.
            domain: a partition's `colors`, or extents.
            args: for each parameter a value, or for one with a privilege `X[P]` (point i gets tile i) or a region
                (every point gets all of it).
            mapper: placement of this launch.

        Raises:
            RequestError: arguments that do not fit, points that interfere, or a read before the first write.
        """
        if isinstance(domain, int):
            domain = (domain,)
        bounds = domain if isinstance(domain, Rect) else Rect.of_shape(tuple(domain))
        if bounds.is_empty:
            msg = f"task {task.name}: the launch domain {bounds} is empty"
            raise RequestError(msg)
        return FutureMap(self.runtime, self._launch(task, tuple(bounds.points()), args, mapper, _provenance()))

    def _launch(
        self,
        task: Task[..., Any],
        colors: tuple[tuple[int, ...], ...],
        args: Sequence[object],
        mapper: Mapper | None,
        provenance: str,
    ) -> dict[tuple[int, ...], Future]:
        for region in regions(args):
            self._own(region)
        values, requirements = resolve(task, colors, args)
        view = LaunchView(task.name, colors, self.machine)
        mapping = map_launch(mapper or self.mapper, view, tuple(task.variants))
        points = tuple(Point(color, processor) for color, processor in zip(colors, mapping.processors, strict=True))
        futures = {
            point.color: Future(
                self.runtime, f"{task.name}{point}", self.machine.rank_of(point.processor), point.processor
            )
            for point in points
        }
        bodies = tuple(task.variants[variant] for variant in mapping.variants)
        outcomes = tuple(futures[point.color].fulfil for point in points)
        binder = TaskBinder(task, values, colors, bodies, outcomes, self.debugging)
        launch = Launch(task.name, points, requirements, binder, provenance=provenance)
        self._tell(
            f"launch {task} over {len(points)} points: {mapping.processors} {', '.join(map(shown, values))}",
            (task.version, mapping.variants, mapping.priorities, colors, *map(comparable, values)),
        )
        parts = serialised(launch)
        if len(parts) > 1:
            self._analysis.check_written(launch)
        for part, chosen in parts:
            self.issue(part, [mapping.priorities[point] for point in chosen])
        return futures

    def _tell(self, text: str, values: Sequence[object]) -> None:
        """Tell what the program does, to be compared between ranks; alone there is nobody to tell."""
        self.runtime.refuse_inside_a_task(text.split(maxsplit=1)[0])
        if self.runtime.world.size > 1:
            self.runtime.world.control.call(text, digest(values))

    def _own(self, region: Region) -> None:
        """Refuse a region of another program; its number may be that of one of ours."""
        if region.session is not self:
            msg = f"{region} belongs to another program, perhaps one that ended with an error; make the region again"
            raise RequestError(msg)

    def issue(self, launch: Launch, priorities: Sequence[int] | None = None) -> None:
        """Analyse a mapped launch and start what of it runs here.

        Raises:
            RequestError: points that interfere, or a read before the first write; nothing was started.
        """
        self.runtime.check()
        with uninterrupted():
            self.runtime.current = None
            found = self._analysis.launch(launch)
            try:
                self._start(launch, found, priorities)
            except BaseException as error:
                # The analysis counts the launch as done already, so nothing after it would be right.
                self.runtime.fail(RunError(f"launch {launch.name} could not be started: {error}"))
                raise

    def _start(self, launch: Launch, found: Sequence[AnalysedUse], priorities: Sequence[int] | None) -> None:
        """Make, link and start the rows of an analysed launch that run here."""
        rows: list[Issued] = []
        nodes: list[list[tuple[LiveRegion, Node]]] = [[] for _ in launch.points]
        views: list[list[torch.Tensor | None]] = [[None] * len(launch.requirements) for _ in launch.points]
        here = self.runtime.memory.id
        for slot, use in enumerate(found):
            live = self._live[use.region]
            rows += self._issuer.movements(live, use.moves, use.first)
            for point, node, access in use.accesses:
                if self.machine.memory_of(launch.points[point].processor) == here:
                    nodes[point].append((live, node))
                    views[point][slot] = live.view(self.runtime, access.instance, access.rect)
        rows += self._tasks(launch, nodes, views, priorities)
        for use in found:
            self._issuer.link(self._live[use.region], use.edges)
        self._issuer.release(rows)
        for use in found:
            self._live[use.region].bound(self.runtime.memory, use.evicted)
            self._live[use.region].tidy()

    def _tasks(
        self,
        launch: Launch,
        nodes: Sequence[list[tuple[LiveRegion, Node]]],
        views: Sequence[Sequence[torch.Tensor | None]],
        priorities: Sequence[int] | None,
    ) -> list[Issued]:
        rows: list[Issued] = []
        for number, point in enumerate(launch.points):
            if self.machine.memory_of(point.processor) != self.runtime.memory.id or launch.binder is None:
                continue
            call = launch.binder(number, views[number], self.machine.processors[point.processor].cores)
            guarded = self.runtime.guard(call, launch, number)
            rows.append(
                self._issuer.task(point.processor, guarded, nodes[number], priorities[number] if priorities else 0)
            )
        return rows

    def fill(self, region: Region, value: float) -> None:
        """Write one value to every element of a region, in the memory of every processor.

        A whole region gets it without any instance: one that is made later has the value from the start.
        """
        logical, whole = region.logical, region.space == region.logical.bounds
        self._own(region)
        self._tell(f"fill {region} with {value!r}", (logical.id,))

        def write(view: torch.Tensor) -> None:
            view.fill_(value)

        self._set("fill", region, write, fills=whole)
        if whole:
            self.runtime.memory.fill(logical, value)

    def write(self, region: Region, values: torch.Tensor) -> None:
        """Write a tensor to a region; every rank passes the same one, so nothing moves.

        Raises:
            RequestError: another shape or dtype.
        """
        wanted = torch_dtype(region.logical.dtype)
        if tuple(values.shape) != region.shape or values.dtype != wanted:
            msg = (
                f"{region}: expected a tensor of shape {region.shape} and dtype {wanted}, "
                f"got {tuple(values.shape)} and {values.dtype}"
            )
            raise RequestError(msg)
        self._own(region)
        held = values.detach().clone()
        self._tell(f"write {region}", (held,))
        self._set("write", region, lambda view: view.copy_(held), fills=False)

    def _set(self, what: str, region: Region, write: Callable[[torch.Tensor], object], *, fills: bool) -> None:
        """Issue a launch that writes a region in the memory of every processor."""
        points = self._everywhere(())
        requirement = Requirement(region.logical, WRITE_DISCARD, (region.space,) * len(points), fills=fills)
        # A fill is shown all that an instance has room for. Nothing here may hold the handle: it says what is alive.
        space = region.logical.bounds if fills else region.space

        def binder(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], None]:
            (view,) = views
            if view is None:
                return lambda: None
            array, _, store = present(view, space, WRITE_DISCARD, debug=False)

            def call() -> None:
                write(array)
                if store is not None:
                    store()

            return call

        self.issue(Launch(what, points, (requirement,), binder))

    def read(self, region: Region) -> torch.Tensor:
        """Bring a whole region to every rank, wait, and give a copy; between the elements of a sparse one are zeros."""
        self._own(region)
        found: list[torch.Tensor] = []
        arrived = threading.Event()
        points = tuple(Point((rank,), point.processor) for rank, point in enumerate(self._everywhere(())))
        space = region.space
        requirement = Requirement(region.logical, READ, (space,) * len(points))

        def binder(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], None]:
            def copy() -> None:
                if views[0] is not None:
                    found.append(whole(views[0], space))
                arrived.set()

            return copy

        self._tell(f"read {region}", ())
        self.issue(Launch("read", points, (requirement,), binder))
        self.runtime.await_event(arrived)
        return found[0]

    def _everywhere(self, color: tuple[int, ...]) -> tuple[Point, ...]:
        """Place one replica of a point in every memory that has a processor."""
        owners = [self.machine.processors_of(memory.id) for memory in self.machine.memories]
        return tuple(Point(color, owned[0], replica) for replica, owned in enumerate(o for o in owners if o))

    def fence(self) -> None:
        """Wait until everything launched so far is done at this rank.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.runtime.refuse_inside_a_task("fence")
        self._issuer.drain()

    @contextmanager
    def debug(self) -> Iterator[None]:
        """Check, for launches inside, that no task writes an argument that it declared as read."""
        before, self.debugging = self.debugging, True
        try:
            yield
        finally:
            self.debugging = before


def _extents(name: str | None, shape: Sequence[int]) -> Rect:
    """Give the index space of some extents."""
    if isinstance(shape, int) or any(type(extent) is not int or extent < 1 for extent in shape):
        msg = f"region {name or ''}: expected extents >= 1 in a tuple, got {shape!r}"
        raise RequestError(msg)
    return Rect.of_shape(tuple(shape))


def _provenance() -> str:
    """Give the source line that called into this module."""
    frame = sys._getframe(1)  # noqa: SLF001  (the documented way to find a caller without building a traceback)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
