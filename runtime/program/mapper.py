"""Mappers: the questions that the runtime asks about how a program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.validity import Validity
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Requirement

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class UseView:
    """What a mapper is told of one region argument of a launch.

    Args:
        requirement: the region, the privilege, and the rectangle of each point.
        state: what of the region is valid where before the launch.
    """

    requirement: Requirement
    state: Validity

    def bytes(self, index: int) -> int:
        """How much of the region a point uses."""
        return self.requirement.rects[index].volume * self.requirement.region.itemsize

    def resident_bytes(self, index: int, memory: int) -> int:
        """How much of what a point reads is valid in a memory."""
        held = self.state.valid.get(memory)
        if held is None or not self.requirement.privilege.reads:
            return 0
        return (held & self.requirement.rects[index]).volume * self.requirement.region.itemsize


@dataclass(frozen=True, slots=True)
class LaunchView:
    """What a mapper is told of a launch.

    Args:
        name: the task's name; of an operator `conv2d.forward`, of a weight `conv2d.weight.update`.
        colors: the points of the launch domain, row-major.
        machine: the machine.
        suggested: the processor that a plan gives each point; None where there is no plan.
        uses: the region arguments, where the launch is a program's.
        must_epoch: whether all points run at the same time, and so on processors of their own.
    """

    name: str
    colors: tuple[tuple[int, ...], ...]
    machine: Machine
    suggested: tuple[int, ...] | None = None
    uses: tuple[UseView, ...] = ()
    must_epoch: bool = False


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a mapper is told of one point of a launch.

    Args:
        launch: the launch.
        index: which point of it, in the order of `launch.colors`.
        rank: the rank that the point was sharded to.
        processors: the processors of that rank, from which to choose.
        processor: the chosen one, once it is; -1 before.
        variants: the variants that the task has for it, such as `("cpu", "numba")`; none before.
    """

    launch: LaunchView
    index: int
    rank: int
    processors: tuple[int, ...]
    processor: int = -1
    variants: tuple[str, ...] = ()

    @property
    def color(self) -> tuple[int, ...]:
        """The point of the launch domain."""
        return self.launch.colors[self.index]


@dataclass(frozen=True, slots=True)
class CopyView:
    """What a mapper is told before values are copied.

    Args:
        region: name of the region.
        target: the memory that needs values.
        sources: the memories that may have them: all.
        machine: the machine.
    """

    region: str
    target: int
    sources: tuple[int, ...]
    machine: Machine


@dataclass(frozen=True, slots=True)
class TunableView:
    """What a mapper is told when the program asks it for a value.

    Args:
        name: what the program calls the value.
        default: what it would take.
        machine: the machine.
    """

    name: str
    default: bool | float | str
    machine: Machine


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How the tasks of a launch are handled, whatever their place.

    Args:
        check: whether arguments that are declared as read are compared before and after, as under `debug()`.
        profile: whether they are measured, for `report_profiling`.
        keep: whether all answers for a launch stand for later ones that differ in nothing but values, so that the
            mapper is not asked about those.
    """

    check: bool = False
    profile: bool = False
    keep: bool = False


@dataclass(frozen=True, slots=True)
class TaskMapping:
    """How one point runs.

    Args:
        variant: one of the task's for the processor.
        memory: where its instances are; None for the processor's memory, the only legal one so far.
        layouts: for each region argument the order of axes in memory, outermost first; None for what there is, which
            by default is that of the axes. An instance keeps the layout that it was made with.
    """

    variant: str
    memory: int | None = None
    layouts: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """What was measured of one task on one processor since the last snapshot.

    Args:
        name: the task's name.
        processor: where it ran.
        count: how many points ran there.
        seconds: what they took in all.
    """

    name: str
    processor: int
    count: int
    seconds: float


class Mapper:
    """Placement policy: answers change how fast a program runs, never what it computes.

    Every method has a default that follows the plan where there is one and spreads points in blocks elsewhere;
    override one and inherit the rest. A mapper may remember what it was asked, but nothing else may enter its
    answers: every rank asks the same questions in the same order and must hear the same, and the runtime compares
    them. Each answer is checked before it is used. A replayed launch asks nothing.
    """

    def task_options(self, launch: LaunchView) -> TaskOptions:
        """Choose how the tasks of a launch are handled."""
        del launch
        return TaskOptions()

    def memoize(self, launch: LaunchView) -> bool:
        """Say whether a trace may keep the answers for a launch; a trace with one that it may not is never replayed."""
        del launch
        return True

    def shard(self, launch: LaunchView) -> Sequence[int]:
        """Choose the rank of every point of a launch.

        Returns:
            A rank per point, in the order of `launch.colors`.
        """
        machine = launch.machine
        if launch.suggested is not None:
            return [machine.rank_of(processor) for processor in launch.suggested]
        count, processors = len(launch.colors), len(machine.processors)
        return [machine.rank_of(index * processors // count) for index in range(count)]

    def select_processor(self, task: TaskView) -> int:
        """Choose the processor of one point, among `task.processors`."""
        if task.launch.suggested is not None:
            return task.launch.suggested[task.index]
        choice = task.index * len(task.launch.machine.processors) // len(task.launch.colors)
        return choice if choice in task.processors else task.processors[task.index % len(task.processors)]

    def map_task(self, task: TaskView) -> TaskMapping:
        """Choose the variant of one point, among `task.variants`, and where and how its instances lie."""
        return TaskMapping(task.variants[0])

    def order(self, task: TaskView) -> int:
        """Choose a priority among tasks that are ready on one processor at one time; greater runs first."""
        del task
        return 0

    def select_sources(self, copy: CopyView) -> Sequence[int]:
        """Say how far each memory is from one that needs values; the nearest that has them is copied from.

        Asked once for each region and target. Sources that are equally near share the work.

        Returns:
            A distance of at least 0 for each of `copy.sources`.
        """
        memories = copy.machine.memories
        host = memories[copy.target].host
        return [0 if s == copy.target else 1 if memories[s].host == host else 2 for s in copy.sources]

    def select_tunable(self, tunable: TunableView) -> bool | float | str:
        """Choose a value that the program asked for with `tunable(name, default)`; of the default's type."""
        return tunable.default

    def report_profiling(self, profile: tuple[TaskProfile, ...]) -> None:
        """Take measurements of the launches whose options asked for them: the same on every rank.

        They are exchanged at every `fence()`. Replays are not among them, for no mapper is asked about those.
        """


def check_mapper(mapper: object, who: str) -> None:
    """Refuse what is given for a mapper and is none.

    Args:
        mapper: what was given; None for the default.
        who: what it was given to, as the message begins.

    Raises:
        RequestError: it is no object of a class that derives from `Mapper`.
    """
    if mapper is None or isinstance(mapper, Mapper):
        return
    msg = f"{who}: expected an object of a class that derives from mp.Mapper, got {mapper!r}"
    if isinstance(mapper, type):
        msg += f"; make one: {mapper.__name__}()"
    elif isinstance(mapper, str):
        msg += "; names are for `maniple run --mapper` and mp.register_mapper"
    raise RequestError(msg)
