"""Parsl: apps whose inputs are futures, run by the high-throughput executor's two worker processes."""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING, Any, Self, final

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

from taskbench.system import NODES, System

if TYPE_CHECKING:
    from types import TracebackType

    from taskbench.graph import TaskGraph


def point(step: int, column: int, base: int, pairs: int, sources: tuple[int, ...], *found: Any) -> Any:
    """Run one task; Parsl sends the function itself, so what it uses is imported where it runs."""
    from taskbench.kernel import produce

    return produce(step, column, base, pairs, sources, *found)


@final
class ParslProcesses(System):
    """Parsl's HTEX: an interchange, a manager, and a worker per core."""

    def __enter__(self) -> Self:
        """Start them."""
        self._folder = tempfile.TemporaryDirectory(prefix="taskbench-parsl-")
        executor = HighThroughputExecutor(
            label="htex",
            address="127.0.0.1",
            max_workers_per_node=NODES,
            cores_per_worker=1,
            provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
        )
        config = Config(executors=[executor], run_dir=self._folder.name, strategy="none", usage_tracking=0)
        self._kernel = parsl.load(config)
        self._app = parsl.python_app(point, data_flow_kernel=self._kernel, executors=["htex"])
        return self

    def prepare(self, graph: TaskGraph) -> None:
        """Keep the graph, and compile the kernel where it will run."""
        self._graph = graph
        self.run(0)

    def run(self, iterations: int) -> float:
        """Launch all tasks, each on the futures of what it reads, and wait."""
        graph = self._graph
        begun = time.perf_counter()
        made: dict[tuple[int, int], Any] = {}
        for step, column in graph.tasks():
            sources = graph.inputs(step, column)
            base = graph.iterations(step, column, iterations)
            found = (made[step - 1, source] for source in sources)
            made[step, column] = self._app(step, column, base, graph.pairs, sources, *found)
        for task in graph.sinks:
            made[task].result()
        return time.perf_counter() - begun

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._kernel.cleanup()
        parsl.clear()
        self._folder.cleanup()
