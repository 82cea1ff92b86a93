"""The dynamic path of a program: launches that are analysed and started as they come."""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from maniple.process.error import RequestError, RunError
from maniple.process.interruption import hold_interrupts
from maniple.runtime.analysis.fragment import HostDistance
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.analysis.template import close, enter
from maniple.runtime.execution.ready_queue import BoundLaunch, LiveRegion, ReadyQueue
from maniple.runtime.execution.recorder import silent
from maniple.runtime.execution.recovery import Attempt
from maniple.runtime.program.body import BoundTask
from maniple.runtime.program.mapper import CopyView, Mapper
from maniple.runtime.program.mapping import rank_sources
from maniple.runtime.program.mapping_cache import KEPT
from maniple.runtime.program.profiler import Profiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Mapping as Lookup

    import torch

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Near, Validity
    from maniple.runtime.analysis.capacity import Resident
    from maniple.runtime.analysis.dependence import Node
    from maniple.runtime.analysis.program_analysis import AnalysedUse
    from maniple.runtime.execution.ready_row import ReadyRow
    from maniple.runtime.execution.recorder import Tell
    from maniple.runtime.execution.services import Services
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.launch_execution import Call
    from maniple.runtime.program.mapping import Mapping
    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []


class DynamicLaunches:
    """The regions of a program at one rank, and the launches that use them one by one.

    `version` grows whenever what is valid where may have changed, so that whoever looked need not look again.

    Args:
        rank: the rank, which has the processors of the machine.
        machine: the machine whose processors run the launches.
        mapper: says which copies are the nearest.
    """

    def __init__(self, rank: Services, machine: Machine, mapper: Mapper) -> None:
        self.runtime = rank
        self.machine = machine
        self.profiler = Profiler()
        self._mapper = mapper
        self._distance = HostDistance.of(machine)
        self.analysis = ProgramAnalysis(machine, memories=rank.resources.memories)
        self.version = 0
        self._recorded: Callable[[], bool] = bool
        self._waiting, self._under_way, self._recovery = rank.waiting, rank.under_way, rank.recovery
        self._resources, self._here = rank.resources, rank.resources.memories
        in_order = rank.world.deterministic
        self._queue = ReadyQueue(machine, rank.resources, rank.waiting, rank.journal, in_order=in_order)
        self._under_way.attend(self._queue)
        self._memories = [processor.memory for processor in machine.processors]
        self._bound: dict[int, BoundLaunch] = {}
        self._moved = 0
        self._live: dict[int, LiveRegion] = {}
        self._layouts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._dropped: deque[int] = deque()

    def measure_while(self, recorded: Callable[[], bool]) -> None:
        """Have bodies measured while launches are taken down, to be replayed later; something says whether they are."""
        self._recorded = recorded

    def add(self, region: LogicalRegion, handle: object) -> None:
        """Start to follow a region, until nobody holds its handle any more and its tasks are done."""
        self._live[region.id] = LiveRegion(region, self.analysis.add(region, near=self.near(region)))
        # The collector may run on any thread and at any time, so it only leaves a note.
        weakref.finalize(handle, self._dropped.append, region.id).atexit = False

    def near(self, region: LogicalRegion) -> Near:
        """Give the distance between memories, as the mapper sees it for a region."""
        if type(self._mapper).select_sources is Mapper.select_sources:
            return self._distance
        tables: dict[int, tuple[int, ...]] = {}
        sources = tuple(memory.id for memory in self.machine.memories)

        def far(target: int, source: int) -> int:
            if target not in tables:
                found = rank_sources(self._mapper, CopyView(region.name, target, sources, self.machine))
                if self.runtime.world.size > 1:
                    self.runtime.world.control.call(f"sources of {region} for memory {target}: {found}")
                tables[target] = found
            return tables[target][source]

        return far

    def live(self, region: int) -> LiveRegion:
        """Give what this rank knows of a region."""
        return self._live[region]

    def free_dropped(self) -> list[int]:
        """Free the regions that the program can no longer name, once nothing that uses them is under way."""
        freed = []
        replaying = self._under_way.replaying
        for _ in range(len(self._dropped)):
            number = self._dropped.popleft()
            live = self._live[number]
            if replaying or live.busy():
                self._dropped.append(number)
                continue
            del self._live[number]
            self.analysis.drop(number)
            for memory in self._here.values():
                memory.forget(live.region)
            self._layouts = {place: order for place, order in self._layouts.items() if place[0] != number}
            freed.append(number)
            self._bound.clear()
        return freed

    def await_room(self) -> None:
        """Wait, before a launch, while too much that was launched is not done; not where ranks take turns.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self._recovery.possible:
            self._queue.await_room()

    def issue(
        self,
        launch: Launch,
        mapping: Mapping | None = None,
        call: Call | None = None,
        *,
        serial: int = 0,
        together: bool = False,
        again: bool = False,
    ) -> None:
        """Analyse a mapped launch and start what of it runs here; the rank was asked whether it may.

        Args:
            launch: the launch.
            mapping: what the mapper said of it, if it was asked.
            call: the values that its bodies take, if they take any.
            serial: its number in the program; 0 for what the runtime launches itself, which writes nothing.
            together: whether its tasks must run at the same time.
            again: whether its points and requirements are objects of an earlier launch.

        Raises:
            RequestError: points that interfere, or a read before the first write; nothing was started.
        """
        if self._under_way.current is not None:
            self._under_way.leave()
        with hold_interrupts():
            found = self.analysis.launch(launch, again=again)
            self.version += 1
            if serial:
                self._recovery.follow(serial, (launch,))
            try:
                self._start(launch, found, mapping, call, 0 if together else serial, together=together)
            except BaseException as error:
                # The analysis counts the launch as done already, so nothing after it would be right.
                self._waiting.fail(RunError(f"launch {launch.name} could not be started: {error}"))
                raise

    def _start(
        self,
        launch: Launch,
        found: Sequence[AnalysedUse],
        mapping: Mapping | None,
        call: Call | None,
        serial: int,
        *,
        together: bool,
    ) -> None:
        """Make, link and start the rows of an analysed launch that run here."""
        rows: list[ReadyRow] = []
        found = self._make_room(found)
        nodes: list[list[tuple[LiveRegion, Node]]] = [[] for _ in launch.points]
        bound = self._bound.get(id(launch)) if call is not None else None
        fits = bound is not None and bound.fits(found, self._live, self._here)
        views: list[list[torch.Tensor | None]] = [[None] * len(launch.requirements) for _ in launch.points]
        local = [self._memories[point.processor] in self._here for point in launch.points]
        for slot, use in enumerate(found):
            live = self._live[use.region]
            if use.moves:
                rows += self._queue.movements(live, use.moves, use.first)
            for point, node, access in use.accesses:
                if local[point]:
                    nodes[point].append((live, node))
                    if not fits:
                        views[point][slot] = live.view(self._here, access.instance, access.rect)
        if bound is None or not fits:
            bound = self._bind(launch, found, views, local)
            if call is not None:
                self._keep(bound)
        tasks = self._tasks(bound, nodes, mapping, call, serial)
        for use in found:
            self._queue.link(self._live[use.region], use.edges)
        self._queue.line_up(rows, tasks, together=together)
        self._queue.release([*rows, *tasks])
        for use in found:
            self._live[use.region].release_bound(self._here, use.evicted)
            self._live[use.region].tidy()
        moved = sum(memory.version for memory in self._here.values())
        if moved != self._moved:
            self._moved = moved
            self._bound.clear()  # or views would keep storage that was given up

    def _make_room(self, found: Sequence[AnalysedUse]) -> Sequence[AnalysedUse]:
        """Evict what gives up room on a device of this rank, and wait until it has; give what is left to do.

        Elsewhere memory is promised and used later, so that old and new may be there together for a while.
        """
        leaving = [use for use in found if use.evicted >= 0 and self._on_device(use)]
        if leaving:
            self._evict(leaving)
        return [use for use in found if use not in leaving] if leaving else found

    def make_room(
        self, name: str, hulls: Lookup[tuple[int, int], Rect], besides: Lookup[int, Sequence[Resident]]
    ) -> None:
        """Evict what a recorded sequence of launches does not use, where it needs the room; nothing is under way.

        Args:
            name: what messages call it.
            hulls: by (region, memory) what its instances of valid values cover.
            besides: by memory, what a run of it takes there beside those.

        Raises:
            RequestError: a memory is too small; nothing was evicted.
            RunError: a task failed, here or on another rank.
        """
        leaving = self.analysis.make_room(name, hulls, besides)
        if leaving:
            self._evict(leaving)

    def _evict(self, leaving: Sequence[AnalysedUse]) -> None:
        """Copy what is nowhere else, and let go of the rest."""
        rows = [row for use in leaving for row in self._queue.movements(self._live[use.region], use.moves, use.first)]
        for use in leaving:
            self._queue.link(self._live[use.region], use.edges)
        self._queue.release(rows)
        self._under_way.await_rows()
        self._bound.clear()  # views are kept there
        for use in leaving:
            self._live[use.region].release_bound(self._here, use.evicted)
            self._live[use.region].tidy()

    def _on_device(self, use: AnalysedUse) -> bool:
        memory = self._here.get(self._live[use.region].analysis.extents[use.evicted][0])
        return memory is not None and memory.device is not None

    def _bind(
        self,
        launch: Launch,
        found: Sequence[AnalysedUse],
        views: Sequence[Sequence[torch.Tensor | None]],
        local: Sequence[bool],
    ) -> BoundLaunch:
        """Tie the bodies that run here to views."""
        bodies: list[tuple[int, int, Callable[[], object]]] = []
        for number, point in enumerate(launch.points):
            if local[number] and launch.binder is not None:
                cores = self.machine.processors[point.processor].cores
                with self._resources.binding(point.processor):
                    bodies.append((number, point.processor, launch.binder(number, views[number], cores)))
        held: list[tuple[int, int, int, torch.Tensor]] = []
        # A fill uses an instance only where there is one, and contributions have instances of their own.
        if any(requirement.fills or requirement.privilege.reduces for requirement in launch.requirements):
            return BoundLaunch(launch, tuple(bodies), None)
        for slot, use in enumerate(found[: len(launch.requirements)]):
            owned: dict[int, int] = {}  # in each memory the first of the accesses
            for place, (number, _, _) in enumerate(use.accesses):
                if local[number]:
                    owned.setdefault(self._memories[launch.points[number].processor], place)
            for memory, own in owned.items():
                storage = self._live[use.region].storage(self._here[memory], use.accesses[own][2].instance)
                if storage is None:
                    return BoundLaunch(launch, tuple(bodies), None)
                held.append((slot, own, memory, storage))
        return BoundLaunch(launch, tuple(bodies), tuple(held))

    def _keep(self, bound: BoundLaunch) -> None:
        if bound.held is not None:
            if len(self._bound) >= KEPT:
                self._bound.clear()
            self._bound[id(bound.launch)] = bound

    def _tasks(
        self,
        bound: BoundLaunch,
        nodes: Sequence[list[tuple[LiveRegion, Node]]],
        mapping: Mapping | None,
        call: Call | None,
        serial: int,
    ) -> list[ReadyRow]:
        rows: list[ReadyRow] = []
        launch = bound.launch
        tell: Tell = silent
        journal = None if self.runtime.journal.recorder is None else self.runtime.journal
        for number, processor, body in bound.bodies:
            measured = None
            if number not in bound.heard and self._recorded():
                run = _give_values(body, call)
                measured = self.runtime.scratch.watch(launch, number, self._resources.processors[processor], run)
                if measured is run:
                    bound.heard.add(number)
                    measured = None
            if serial and self._recovery.possible and call is not None and isinstance(body, BoundTask):
                guarded: Callable[[], object] = Attempt(self._recovery, body, call, launch, serial, measured)
            else:
                guarded = self._recovery.guard(measured or _give_values(body, call), launch, number)
            measure = None
            if mapping is not None and mapping.options.profile:
                if self._resources.processors[processor].device is None:
                    guarded = self.profiler.measure(guarded, launch.name, processor)
                else:
                    measure = self.profiler.make_listener(launch.name, processor)
            if journal is not None:
                tell = journal.teller(f"p{processor}", partial(launch.label, number), "task")
            priority = 0 if mapping is None else mapping.priorities[number]
            rows.append(self._queue.task(processor, guarded, nodes[number], priority, tell, measure))
        return rows

    def lay_out(self, launch: Launch, mapping: Mapping, mapper: Mapper) -> None:
        """Have the instances of a launch made with the layouts that its mapper chose.

        Raises:
            RequestError: an instance exists with another layout.
        """
        for point, layouts in zip(launch.points, mapping.layouts, strict=True):
            memory = self.machine.memory_of(point.processor)
            for requirement, layout in zip(launch.requirements, layouts or (), strict=bool(layouts)):
                if layout is None:
                    continue
                region = requirement.region
                held = self._layouts.get((region.id, memory))
                if held is None and self._live[region.id].has_instance(memory):
                    held = tuple(range(region.bounds.ndim))
                if held not in {None, layout}:
                    raise RequestError(
                        f"mapper {type(mapper).__name__}.map_task answered layout {layout} for {launch.name}, region "
                        f"{region.name} in memory {memory}; legal: {held}, which its instance has there, or None"
                    )
                self._layouts[region.id, memory] = layout
                if memory in self._here:
                    self._here[memory].lay_out(region, layout)

    def settle(self, regions: Iterable[LogicalRegion]) -> dict[int, Validity]:
        """Wait until nothing is under way here and nothing of these regions is left to fold; say what is valid where.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        states = {}
        for region in regions:
            launch = close(region, self.analysis.regions[region.id].validity, self.machine)
            if launch is not None:
                self.issue(launch)
            states[region.id] = self.analysis.regions[region.id].validity
        self._under_way.drain()
        return states

    def succeed(self, states: Lookup[int, Validity]) -> None:
        """Take over what a replay leaves valid where; nothing of these regions was under way before it."""
        self.version += 1
        for region, validity in states.items():
            live = self._live[region]
            live.forget()
            enter(live.analysis, validity)
            live.resume(self._here)
            self.analysis.note_replay(region)


def _give_values(body: Callable[[], object], call: Call | None) -> Callable[[], object]:
    """Tie a user's body to the values of its call."""
    return partial(body.run, call) if call is not None and isinstance(body, BoundTask) else body
