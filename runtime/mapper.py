"""Mappers: the questions that the runtime asks about placement, and the checks of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from maniple.runtime.machine import Machine

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class LaunchView:
    """What a mapper is told of a launch.

    Args:
        name: the task's name; of an operator `conv2d.forward`, of a weight `conv2d.weight.update`.
        colors: the points of the launch domain, row-major.
        machine: the machine.
        suggested: the processor that a plan gives each point; None where there is no plan.
    """

    name: str
    colors: tuple[tuple[int, ...], ...]
    machine: Machine
    suggested: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a mapper is told of one point of a launch.

    Args:
        launch: the launch.
        index: which point of it, in the order of `launch.colors`.
        rank: the rank that the point was sharded to.
        processors: the processors of that rank, from which to choose.
        variants: the variants that the task has, such as `("cpu",)`.
    """

    launch: LaunchView
    index: int
    rank: int
    processors: tuple[int, ...]
    variants: tuple[str, ...]

    @property
    def color(self) -> tuple[int, ...]:
        """The point of the launch domain."""
        return self.launch.colors[self.index]


class Mapper:
    """Placement policy: answers change how fast a program runs, never what it computes.

    Every method has a default that follows the plan where there is one and spreads points in blocks elsewhere;
    override one and inherit the rest. Answers must depend on the arguments alone (every rank asks the same questions
    and must hear the same answers; the runtime compares them), and each is checked before it is used.
    """

    def shard(self, launch: LaunchView) -> Sequence[int]:
        """Choose the rank of every point of a launch.

        Returns:
            A rank per point, in the order of `launch.colors`.
        """
        machine = launch.machine
        if launch.suggested is not None:
            return [machine.rank_of(processor) for processor in launch.suggested]
        owners = [processor.id for processor in machine.processors]
        count = len(launch.colors)
        return [machine.rank_of(owners[index * len(owners) // count]) for index in range(count)]

    def select_processor(self, task: TaskView) -> int:
        """Choose the processor of one point, among `task.processors`."""
        if task.launch.suggested is not None:
            return task.launch.suggested[task.index]
        machine = task.launch.machine
        owners = [processor.id for processor in machine.processors]
        choice = owners[task.index * len(owners) // len(task.launch.colors)]
        return choice if choice in task.processors else task.processors[task.index % len(task.processors)]

    def select_variant(self, task: TaskView) -> str:
        """Choose the variant of one point, among `task.variants`."""
        return task.variants[0]

    def order(self, task: TaskView) -> int:
        """Choose a priority among tasks that are ready on one processor at one time; greater runs first."""
        del task
        return 0


@dataclass(frozen=True, slots=True)
class Mapping:
    """The checked answers for one launch, per point.

    Args:
        processors: where each point runs.
        variants: which variant it runs.
        priorities: its priority among ready tasks.
    """

    processors: tuple[int, ...]
    variants: tuple[str, ...]
    priorities: tuple[int, ...]


def map_launch(mapper: Mapper, launch: LaunchView, variants: tuple[str, ...]) -> Mapping:
    """Ask a mapper about a launch and check what it says.

    Raises:
        RequestError: an answer is illegal; names the callback, the answer, and what was legal.
    """
    machine = launch.machine
    ranks = sorted({memory.rank for memory in machine.memories if machine.processors_of(memory.id)})
    answer = mapper.shard(launch)
    if not isinstance(answer, Sequence):
        raise _illegal(mapper, "shard", launch.name, repr(answer), f"a sequence of {len(launch.colors)} ranks")
    shards = list(answer)
    if len(shards) != len(launch.colors):
        raise _illegal(mapper, "shard", launch.name, f"{len(shards)} ranks", f"{len(launch.colors)}, one per point")
    processors, chosen, priorities = [], [], []
    for index, rank in enumerate(shards):
        _check(mapper, "shard", launch, index, rank, _among(ranks), f"ranks {ranks}")
        owned = tuple(p.id for p in machine.processors if machine.rank_of(p.id) == rank)
        task = TaskView(launch, index, rank, owned, variants)
        processor = mapper.select_processor(task)
        _check(mapper, "select_processor", launch, index, processor, _among(owned), f"processors {list(owned)}")
        variant = mapper.select_variant(task)
        _check(mapper, "select_variant", launch, index, variant, variants.__contains__, f"variants {list(variants)}")
        priority = mapper.order(task)
        _check(mapper, "order", launch, index, priority, lambda answer: isinstance(answer, int), "an integer")
        processors.append(processor)
        chosen.append(variant)
        priorities.append(priority)
    return Mapping(tuple(processors), tuple(chosen), tuple(priorities))


def _among(choices: Collection[int]) -> Callable[[object], bool]:
    """Accept whole numbers of a collection; 1.0 and True are none, though they are equal to one."""
    return lambda answer: isinstance(answer, int) and not isinstance(answer, bool) and answer in choices


def _check(
    mapper: Mapper,
    callback: str,
    launch: LaunchView,
    index: int,
    answer: object,
    legal: Callable[[object], bool],
    choices: str,
) -> None:
    if not legal(answer):
        point = ",".join(map(str, launch.colors[index]))
        raise _illegal(mapper, callback, f"{launch.name}[{point}]", repr(answer), choices)


def _illegal(mapper: Mapper, callback: str, where: str, answer: str, legal: str) -> RequestError:
    return RequestError(f"mapper {type(mapper).__name__}.{callback} answered {answer} for {where}; legal: {legal}")
