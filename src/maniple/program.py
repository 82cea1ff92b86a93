"""The running program: the regions and launches of this process, in the world that it was launched into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniple.mappers.registry import make_mapper
from maniple.runtime.control.world import current, is_current
from maniple.runtime.execution import recording
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.recorder import CAPACITY
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.future import Future, FutureMap
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.rectangle import Rect
    from maniple.runtime.control.world import World
    from maniple.runtime.execution.recording import Recording
    from maniple.runtime.program.handle import PartitionedRegion, Region
    from maniple.runtime.program.mapper import Mapper
    from maniple.runtime.program.task import Task
    from maniple.runtime.session.tracing import Traced

__all__: list[str] = []

_latest: list[Session] = []


def session() -> Session:
    """Give the session of this process, made on first use, and again in a world of one rank that cannot go on.

    Raises:
        RunError: something failed that the program has not heard of.
    """
    if _latest and _latest[0].runtime.waiting.error is None and is_current(_latest[0].runtime.world):
        return _latest[0]
    return _open(current())


@in_turn
def _open(world: World) -> Session:
    runtime = RankRuntime.of(world)
    if not _latest or _latest[0].runtime is not runtime:
        _latest[:] = [Session(runtime, Machine.detect(world), make_mapper(world.mapper or "default"))]
    return _latest[0]


def region(
    shape: Sequence[int] | IndexSpace,
    dtype: str | torch.dtype = "float32",
    name: str | None = None,
    fields: Mapping[str, str | torch.dtype] | None = None,
) -> Region:
    """Make a logical region.

    Args:
        shape: extents; or an index space, dense or sparse.
        dtype: such as `float32`, or torch's own.
        name: what errors call it.
        fields: instead of a dtype, the name and dtype of each field.
    """
    return session().region(shape, dtype, name, fields)


def launch(task: Task[..., Any], *args: object, mapper: Mapper | None = None) -> Future:
    """Launch one task; returns at once.

    Args:
        task: made with `task`.
        args: values, regions, or tiles `X[P][color]`.
        mapper: placement of this launch; default the session's.
    """
    if _latest and (replaying := _latest[0].tracing.replaying) is not None:
        future = replaying.future(Future, _latest[0], task, None, args)
        if future is not None:
            return future
    return session().launch(task, *args, mapper=mapper)


def index_launch(
    task: Task[..., Any],
    domain: Rect | Sequence[int] | int,
    *args: object,
    mapper: Mapper | None = None,
    must_epoch: bool = False,
) -> FutureMap:
    """Launch a task for every point of a domain; returns at once.

    Args:
        task: made with `task`.
        domain: a partition's `colors`, or extents.
        args: values, regions, or `X[P]`: point i gets tile i.
        mapper: placement of this launch; default the session's.
        must_epoch: whether all points run at the same time, each on a processor of its own.
    """
    # As Session.index_launch begins, with two calls less: replays make thousands of launches.
    if _latest and (replaying := _latest[0].tracing.replaying) is not None and not must_epoch:
        future = replaying.future(FutureMap, _latest[0], task, domain, args)
        if future is not None:
            return future
    return session().index_launch(task, domain, *args, mapper=mapper, must_epoch=must_epoch)


def fill(target: Region | PartitionedRegion, value: float) -> None:
    """Write one value to a region, in every memory, or to the tiles of `X[P]`, each where its task runs.

    Args:
        target: what to write.
        value: of every element.
    """
    session().fill(target, value)


def copy(source: Region | PartitionedRegion, target: Region | PartitionedRegion) -> None:
    """Copy a region to another, or tile by tile.

    Args:
        source: a region, or `X[P]`.
        target: a region of the same shape, or `Y[Q]` with tiles of the same shapes.
    """
    session().copy(source, target)


def fence() -> None:
    """Wait until all launches so far are done."""
    session().fence()


def trace(name: str, *, on_mismatch: str = "error") -> Traced:
    """Record the launches inside on the first run, and replay them from then on; `replay()` does it without them.

    Args:
        name: of the trace; another sequence of launches needs another name.
        on_mismatch: what happens if a launch differs from the recording: `error`, or `rerecord` it.
    """
    return session().trace(name, on_mismatch=on_mismatch)


def record(capacity: int = CAPACITY) -> AbstractContextManager[Recording]:
    """Record what happens inside, on every rank: `with mp.record() as recording: ...`, then `recording.timeline`.

    Args:
        capacity: how many events a rank keeps; the oldest go first, and the timeline says how many went.
    """
    return recording.record(RankRuntime.of(current()), capacity)


def auto_trace(*, on: bool = True) -> None:
    """Find repeated launches from now on, and replay them as if they were traced; off until it is called.

    Args:
        on: False to stop.
    """
    session().auto_trace(on=on)


def tunable(name: str, default: bool | float | str) -> bool | float | str:  # noqa: FBT001
    """Ask the mapper for a value that it may tune, such as a number of tiles; the same on every rank.

    Args:
        name: what the mapper knows it by.
        default: what a mapper that does not know it answers.
    """
    return session().tunable(name, default)


def world() -> World:
    """Give the world of this process: its rank, how many there are, and the lines between them."""
    return current()


def debug(on: bool = True) -> AbstractContextManager[None]:  # noqa: FBT001, FBT002
    """Check that tasks use their arguments as they declare: from now on, or in `with mp.debug(): ...` until its end.

    A launch fails whose task writes what it reads, or leaves out some of what it writes and does not read; a body that
    seems to have left something out runs once more, to be sure. Of a sparse argument a task sees NaN (zero in whole
    numbers) between the elements that are its own. Steps fail whose operators give a NaN. Nothing is traced meanwhile.

    Args:
        on: False to stop.
    """
    return session().debug(on=on)
