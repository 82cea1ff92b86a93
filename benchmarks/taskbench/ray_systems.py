"""Ray: an actor per core, called task by task; and the same calls as one compiled graph."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
import ray
from ray.dag import InputNode, MultiOutputNode

from taskbench.kernel import produce
from taskbench.system import NODES, System

if TYPE_CHECKING:
    from types import TracebackType

    from taskbench.graph import TaskGraph


PATIENCE_S = 600.0  # making the channels of a large graph takes a while
SLACK_BYTES = 4096  # what Ray adds to a payload when it serializes it


@ray.remote(num_cpus=0)
class Core:
    """Runs tasks one after another."""

    def produce(self, *given: Any) -> np.ndarray[Any, Any]:
        """Run one task; takes what `produce` takes."""
        return produce(*given)

    def scaled(self, base: int, step: int, point: int, factor: float, *given: Any) -> np.ndarray[Any, Any]:
        """Run one task of a compiled graph, whose one input is how many iterations a task of factor 1 does."""
        return produce(step, point, round(factor * base), *given)


class Ray(System):
    """What both kinds share: the runtime of this host, and actors that own points as Task Bench places them."""

    _users: ClassVar[int] = 0  # Ray is up once per process, however many systems use it

    def __enter__(self) -> Self:
        """Start it."""
        Ray._users += 1
        if Ray._users == 1:
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's next default; else it warns
            ray.init(num_cpus=NODES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self._cores = [Core.remote() for _ in range(NODES)]
        return self

    def _core(self, point: int) -> Any:
        return self._cores[point * NODES // self._graph.width]

    def prepare(self, graph: TaskGraph) -> None:
        """Keep the graph, and compile the kernel where it will run."""
        self._graph = graph
        self.run(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, unless another system still uses it."""
        Ray._users -= 1
        if not Ray._users:
            ray.shutdown()


@final
class RayActors(Ray):
    """A call per task, on references to what it reads; faster here than plain Ray tasks, which are placed anew."""

    def run(self, iterations: int) -> float:
        """Launch all tasks and wait."""
        graph = self._graph
        begun = time.perf_counter()
        made: dict[tuple[int, int], Any] = {}
        for step, point in graph.tasks():
            sources = graph.inputs(step, point)
            base = graph.iterations(step, point, iterations)
            found = [made[step - 1, source] for source in sources]
            made[step, point] = self._core(point).produce.remote(step, point, base, graph.pairs, sources, *found)
        ray.get([made[task] for task in graph.sinks])
        return time.perf_counter() - begun


@final
class RayCompiled(Ray):
    """The whole graph as one compiled graph, executed once per run."""

    _compiled: Any = None

    def prepare(self, graph: TaskGraph) -> None:
        """Compile it; its channels hold one payload each."""
        self._tear_down()
        self._graph = graph
        made: dict[tuple[int, int], Any] = {}
        with InputNode() as base:
            for step, point in graph.tasks():
                sources = graph.inputs(step, point)
                found = [made[step - 1, source] for source in sources]
                given = (step, point, graph.factors[step, point], graph.pairs, sources)
                made[step, point] = self._core(point).scaled.bind(base, *given, *found)
            sinks = MultiOutputNode([made[task] for task in graph.sinks])
        self._compiled = sinks.experimental_compile(_buffer_size_bytes=graph.payload + SLACK_BYTES)
        self.run(0)

    def run(self, iterations: int) -> float:
        """Execute it once."""
        begun = time.perf_counter()
        ray.get(self._compiled.execute(iterations), timeout=PATIENCE_S)
        return time.perf_counter() - begun

    def _tear_down(self) -> None:
        if self._compiled is not None:
            self._compiled.teardown()
            self._compiled = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._tear_down()
        super().__exit__(kind, error, trace)
