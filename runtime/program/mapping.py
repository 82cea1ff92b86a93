"""Mappings: what a mapper answered for a launch, asked for and checked."""

from __future__ import annotations

from collections.abc import Mapping as Lookup
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.runtime.program.mapper import CopyView, TaskMapping, TaskOptions, TaskView, TunableView

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.mapper import LaunchView, Mapper

__all__: list[str] = []

DEFAULT_OPTIONS = TaskOptions()


@dataclass(frozen=True, slots=True)
class Mapping:
    """The checked answers for one launch, per point.

    Args:
        processors: where each point runs.
        variants: which variant it runs.
        priorities: its priority among ready tasks.
        layouts: the order of axes asked for, by point and region argument; empty if none was.
        options: how the tasks are handled.
        memoize: whether a trace may keep all this.
    """

    processors: tuple[int, ...]
    variants: tuple[str, ...]
    priorities: tuple[int, ...]
    layouts: tuple[tuple[tuple[int, ...] | None, ...], ...] = ()
    options: TaskOptions = DEFAULT_OPTIONS
    memoize: bool = True


class Board:
    """The processors of a machine by rank, as often looked at as points are mapped.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.by_rank: dict[int, tuple[int, ...]] = {}
        for processor in machine.processors:
            rank = machine.rank_of(processor.id)
            self.by_rank[rank] = (*self.by_rank.get(rank, ()), processor.id)
        self.ranks = sorted(self.by_rank)
        self.kinds = [processor.kind for processor in machine.processors]


def map_launch(mapper: Mapper, launch: LaunchView, variants: Lookup[str, str], board: Board | None = None) -> Mapping:
    """Ask a mapper about a launch and check what it says.

    Args:
        mapper: whom to ask.
        launch: what about.
        variants: the kind of processor that each variant of the task runs on, by name.
        board: the machine's processors, where somebody has them at hand.

    Raises:
        RequestError: an answer is illegal; names the callback, the answer, and what was legal.
    """
    board = board or Board(launch.machine)
    options = mapper.task_options(launch)
    if not isinstance(options, TaskOptions):
        raise _illegal(mapper, "task_options", launch.name, repr(options), "TaskOptions(...)")
    memoize = mapper.memoize(launch)
    if not isinstance(memoize, bool):
        raise _illegal(mapper, "memoize", launch.name, repr(memoize), "True or False")
    shards = _shards(mapper, launch, board)
    kinds = {kind: tuple(name for name, where in variants.items() if where == kind) for kind in set(board.kinds)}
    processors: list[int] = []
    chosen: list[TaskMapping] = []
    priorities: list[int] = []
    for index, rank in enumerate(shards):
        owned = board.by_rank[rank]
        processor = mapper.select_processor(TaskView(launch, index, rank, owned))
        if not _is_among(owned, processor):
            raise _illegal_point(mapper, "select_processor", launch, index, processor, f"processors {list(owned)}")
        legal = kinds[board.kinds[processor]]
        if not legal:
            raise _no_variant(launch, index, processor, board, variants)
        task = TaskView(launch, index, rank, owned, processor, legal)
        chosen.append(_task_mapping(mapper, task, board))
        priority = mapper.order(task)
        if not isinstance(priority, int):
            raise _illegal_point(mapper, "order", launch, index, priority, "an integer")
        processors.append(processor)
        priorities.append(priority)
    if launch.must_epoch and len(set(processors)) < len(processors):
        legal_places = f"a processor of its own for each of {len(processors)} points that run at the same time"
        raise _illegal(mapper, "select_processor", launch.name, repr(processors), legal_places)
    layouts = tuple(mapping.layouts for mapping in chosen)
    return Mapping(
        tuple(processors),
        tuple(mapping.variant for mapping in chosen),
        tuple(priorities),
        layouts if any(layouts) else (),
        options,
        memoize,
    )


def _shards(mapper: Mapper, launch: LaunchView, board: Board) -> list[int]:
    answer = mapper.shard(launch)
    if not isinstance(answer, Sequence):
        raise _illegal(mapper, "shard", launch.name, repr(answer), f"a sequence of {len(launch.colors)} ranks")
    shards = list(answer)
    if len(shards) != len(launch.colors):
        raise _illegal(mapper, "shard", launch.name, f"{len(shards)} ranks", f"{len(launch.colors)}, one per point")
    for index, rank in enumerate(shards):
        if not _is_among(board.ranks, rank):
            raise _illegal_point(mapper, "shard", launch, index, rank, f"ranks {board.ranks}")
    return shards


def _task_mapping(mapper: Mapper, task: TaskView, board: Board) -> TaskMapping:
    launch, index = task.launch, task.index
    answer = mapper.map_task(task)
    if not isinstance(answer, TaskMapping):
        raise _illegal_point(mapper, "map_task", launch, index, answer, "TaskMapping(variant, ...)")
    if answer.variant not in task.variants:
        raise _illegal_point(mapper, "map_task", launch, index, answer.variant, f"variants {list(task.variants)}")
    memory = board.machine.memory_of(task.processor)
    if answer.memory is not None and answer.memory != memory:
        legal = f"memory {memory}, that of processor {task.processor}"
        raise _illegal_point(mapper, "map_task", launch, index, f"memory {answer.memory}", legal)
    if answer.layouts:
        axes = [use.requirement.region.bounds.ndim for use in launch.uses]
        fits = len(answer.layouts) == len(axes) and all(
            order is None or sorted(order) == list(range(count))
            for order, count in zip(answer.layouts, axes, strict=True)
        )
        if not fits:
            legal = f"for each region argument None or an order of its axes; they have {axes}"
            raise _illegal_point(mapper, "map_task", launch, index, f"layouts {answer.layouts}", legal)
    return answer


def rank_sources(mapper: Mapper, copy: CopyView) -> tuple[int, ...]:
    """Ask a mapper how far memories are from one that needs values.

    Raises:
        RequestError: the answer is illegal.
    """
    answer = mapper.select_sources(copy)
    fits = isinstance(answer, Sequence) and len(answer) == len(copy.sources)
    if not fits or any(not isinstance(far, int) or isinstance(far, bool) or far < 0 for far in answer):
        where = f"{copy.region} in memory {copy.target}"
        legal = f"{len(copy.sources)} distances of at least 0, one per memory"
        raise _illegal(mapper, "select_sources", where, repr(answer), legal)
    return tuple(answer)


def ask_tunable(mapper: Mapper, tunable: TunableView) -> bool | float | str:
    """Ask a mapper for a tunable value.

    Raises:
        RequestError: the answer is of another type than the default.
    """
    answer = mapper.select_tunable(tunable)
    if type(answer) is not type(tunable.default):
        legal = f"{type(tunable.default).__name__}, as the default {tunable.default!r} is"
        raise _illegal(mapper, "select_tunable", repr(tunable.name), repr(answer), legal)
    return answer


def _is_among(choices: Collection[int], answer: object) -> bool:
    """Accept whole numbers of a collection; 1.0 and True are none, though they are equal to one."""
    return isinstance(answer, int) and not isinstance(answer, bool) and answer in choices


def _no_variant(
    launch: LaunchView, index: int, processor: int, board: Board, variants: Lookup[str, str]
) -> RequestError:
    has = ", ".join(f"{name!r} for {kind}" for name, kind in variants.items())
    place = f"p{processor}, a {board.kinds[processor]} processor"
    return RequestError(
        f"task {launch.name}[{_describe_point(launch, index)}] was placed on {place}, "
        f"for which it has no variant; it has {has}: register one, or place it elsewhere"
    )


def _describe_point(launch: LaunchView, index: int) -> str:
    return ",".join(map(str, launch.colors[index]))


def _illegal_point(
    mapper: Mapper, callback: str, launch: LaunchView, index: int, answer: object, legal: str
) -> RequestError:
    shown = answer if callback == "map_task" and isinstance(answer, str) and " " in answer else repr(answer)
    return _illegal(mapper, callback, f"{launch.name}[{_describe_point(launch, index)}]", str(shown), legal)


def _illegal(mapper: Mapper, callback: str, where: str, answer: str, legal: str) -> RequestError:
    return RequestError(f"mapper {type(mapper).__name__}.{callback} answered {answer} for {where}; legal: {legal}")
