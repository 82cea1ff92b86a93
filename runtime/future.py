"""Futures: values that tasks will return, the same on every rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgpack

from maniple.regions.error import RequestError, RunError

if TYPE_CHECKING:
    from maniple.runtime.rank import RankRuntime

__all__: list[str] = []


class Future:
    """The value that one task will return; a plain number, string, truth value, None, or a list of these.

    Args:
        runtime: the rank.
        name: what errors call it.
        owner: the rank that runs the task.
        processor: the processor that runs it.
    """

    def __init__(self, runtime: RankRuntime, name: str, owner: int, processor: int) -> None:
        self._runtime = runtime
        self.name = name
        self.owner = owner
        self.processor = processor
        self.ready = threading.Event()
        self.value: object = None
        self.shared = False

    def fulfil(self, value: object) -> None:
        """Give the value; the task's own thread calls this."""
        self.value = value
        self.ready.set()

    def get(self) -> Any:
        """Wait for the value and give it, the same on every rank.

        Raises:
            RunError: the task failed, or returned what no message can carry.
        """
        if not self.shared:
            share(self._runtime, [self])
        return self.value


class FutureMap(Mapping[tuple[int, ...], Any]):
    """The values of an index launch by point; the first look at one brings all of them to every rank.

    Args:
        runtime: the rank.
        futures: by point.
    """

    def __init__(self, runtime: RankRuntime, futures: dict[tuple[int, ...], Future]) -> None:
        self._runtime = runtime
        self._futures = futures

    def __getitem__(self, color: tuple[int, ...] | int) -> Any:
        """Wait for all points and give the value of one."""
        chosen = (color,) if isinstance(color, int) else color
        future = self._futures.get(chosen)
        if future is None:
            points = ", ".join(map(str, self._futures))
            msg = f"the launch had no point {chosen}; it had {points}"
            raise RequestError(msg)
        if not future.shared:
            share(self._runtime, list(self._futures.values()))
        return future.get()

    def placed(self) -> dict[tuple[int, ...], str]:
        """Say where each point runs, such as `p1 of node 0 (rank 0)`."""
        world = self._runtime.world
        return {
            color: f"p{future.processor} of node {future.owner // world.ranks_per_node} (rank {future.owner})"
            for color, future in self._futures.items()
        }

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Give the points."""
        return iter(self._futures)

    def __len__(self) -> int:
        """Count the points."""
        return len(self._futures)


def share(runtime: RankRuntime, futures: Sequence[Future]) -> None:
    """Wait for values and give every rank all of them.

    Raises:
        RunError: a task failed, or returned what no message can carry.
    """
    runtime.refuse_inside_a_task("future.get")
    mine = []
    for number, future in enumerate(futures):
        if future.owner == runtime.world.rank:
            runtime.await_event(future.ready)
            mine.append([number, future.value])
    try:
        packed = cast("bytes", msgpack.packb(mine))
    except (TypeError, ValueError) as error:
        msg = (
            f"{futures[0].name} returned a value that no message can carry: {error}; "
            "return plain numbers, strings or lists of them, and write tensors to regions"
        )
        raise RunError(msg) from error
    for part in runtime.world.control.gather(packed):
        for number, value in msgpack.unpackb(part, strict_map_key=True):
            futures[number].value = value
    for future in futures:
        future.shared = True
