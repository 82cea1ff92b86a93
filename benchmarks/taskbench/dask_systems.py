"""Dask: a dictionary of tasks by key, run by two one-thread worker processes, or by two threads of this process."""

from __future__ import annotations

import time
from abc import abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Any, Self, final

import dask
from dask.threaded import get
from distributed import Client, LocalCluster, wait

from taskbench.kernel import produce
from taskbench.system import NODES, System

if TYPE_CHECKING:
    from types import TracebackType

    from taskbench.graph import TaskGraph


class Dask(System):
    """What both kinds share: the dictionary, which is made before the time starts."""

    def __init__(self) -> None:
        self._runs = count()

    def prepare(self, graph: TaskGraph) -> None:
        """Keep the graph, and compile the kernel where it will run."""
        self._graph = graph
        self.run(0)

    def run(self, iterations: int) -> float:
        """Run it once, under keys of its own."""
        graph, number = self._graph, next(self._runs)
        tasks: dict[str, tuple[Any, ...]] = {}
        for step, point in graph.tasks():
            sources = graph.inputs(step, point)
            keys = [f"{number}-{step - 1}-{source}" for source in sources]
            base = graph.iterations(step, point, iterations)
            tasks[f"{number}-{step}-{point}"] = (produce, step, point, base, graph.pairs, sources, *keys)
        sinks = [f"{number}-{step}-{point}" for step, point in graph.sinks]
        begun = time.perf_counter()
        self._get(tasks, sinks)
        return time.perf_counter() - begun

    @abstractmethod
    def _get(self, tasks: dict[str, tuple[Any, ...]], keys: list[str]) -> None:
        """Run tasks until some of them are done."""


@final
class DaskThreads(Dask):
    """Dask's threaded scheduler."""

    def __enter__(self) -> Self:
        """Nothing to start: the pool is made with the first run, and stays."""
        return self

    def _get(self, tasks: dict[str, tuple[Any, ...]], keys: list[str]) -> None:
        get(tasks, keys, num_workers=NODES)


@final
class DaskDistributed(Dask):
    """Dask's distributed scheduler; results stay on the workers, as in Task Bench's own program for Dask."""

    def __enter__(self) -> Self:
        """Start scheduler and workers."""
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
        self._cluster = LocalCluster(n_workers=NODES, threads_per_worker=1, processes=True, dashboard_address=None)
        self._client = Client(self._cluster)
        return self

    def _get(self, tasks: dict[str, tuple[Any, ...]], keys: list[str]) -> None:
        futures = self._client.get(tasks, keys, sync=False)
        wait(futures)
        for future in futures:
            if future.status == "error":
                future.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._client.close()
        self._cluster.close()
