"""The program loader: lowers and binds the programs of a trainer, each once for a batch size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, final

from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.step_run import LoadedProgram
from maniple.weight_flow import WeightFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.step_program import Program
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

# Programs for batches smaller than the graph's that stay loaded.
KEPT_SIZES = 4


@final
class ProgramLoader:
    """Loads programs of a graph under a plan.

    Args:
        graph: the graph.
        plan: how it is cut and placed.
        machine: what it runs on.
        optimizer: how parameters are updated.
        weights: where they live.
        runtime: of this rank.
        loaded: by what a program does and its batch size, those that are loaded; newer ones are added.
        compiled: whether neighbours that the plan maps alike are chains, which torch compiles.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        machine: Machine,
        optimizer: AbstractOptimizer,
        weights: Mapping[str, Weight],
        runtime: RankRuntime,
        loaded: dict[tuple[str, int], LoadedProgram],
        *,
        compiled: bool = False,
    ) -> None:
        self._graph, self._plan, self._machine, self._optimizer = graph, plan, machine, optimizer
        self._weights, self._runtime, self._loaded = dict(weights), runtime, loaded
        self._cache, self._compiled = FragmentCache(machine), compiled
        self.flow: WeightFlow | None = None
        """What is under way of steps, where they follow each other without a flush."""

    def __call__(self, what: str, size: int) -> LoadedProgram:
        """Give a program, lowered and bound once per batch size.

        Args:
            what: ``step``, ``evaluate``, ``parameters`` or ``states``.
            size: samples.
        """
        checked = self._runtime.debugging
        key = (f"{what}, checked" if checked else what, size)
        newest = self.flow.newest() if self.flow is not None and what in {"evaluate", "parameters"} else {}
        if newest:  # of what takes turns
            key = (f"{key[0]} {sorted(region.id for region in newest.values())}", size)
        found = self._loaded.get(key)
        if found is not None:
            return found
        held = {name: replace(weight, value=newest.get(name, weight.value)) for name, weight in self._weights.items()}
        graph = self._graph if size == self._graph.batch else self._graph.with_batch(size)
        plan = self._plan if graph is self._graph else self._plan.for_graph(graph)
        made = graph, plan, self._machine, held, self._runtime.regions
        expansion = Expansion(*made, checked=checked, compiled=self._compiled)
        builds: dict[str, Callable[[], Program]] = {
            "step": partial(expansion.training_step, self._optimizer),
            "evaluate": expansion.evaluation,
            "parameters": expansion.fetch_weights,
            "states": expansion.fetch_states,
        }
        program = builds[what]()
        schedule = lower(program, self._cache, self._runtime.known(self._machine))
        replay = self._runtime.load(schedule, program.lasting)
        loaded = self._loaded[key] = LoadedProgram(
            replay,
            program,
            expansion.inputs,
            expansion.results,
            expansion.clock,
            expansion.hyper,
            flow=self._flow(replay, expansion),
        )
        self._forget_sizes()
        return loaded

    def _flow(self, replay: Replay, expansion: Expansion) -> WeightFlow | None:
        """What steps of a program have under way together, where it has no flush."""
        if expansion.run is None or replay.cycle is None:
            return None
        weights = {tensor.name: (self._weights[tensor.name], tensor.id) for tensor in expansion.graph.parameters}
        hyper = next(iter(expansion.run.numbers(self._optimizer)), None)
        return WeightFlow(replay, replay.cycle, expansion.run, weights, hyper, self._runtime.memories)

    def vary(self) -> AbstractOptimizer:
        """Let go of the steps that are loaded, with nothing under way; further ones take numbers that enter each step.

        Returns:
            The optimizer as it is then.
        """
        self._optimizer = self._optimizer.varying()
        for key in [key for key in self._loaded if key[0].startswith("step")]:
            self._runtime.retire([self._loaded.pop(key).replay])
        self("step", self._graph.batch)
        return self._optimizer

    def _forget_sizes(self) -> None:
        """Let go of the storage of smaller batches, all but the newest few: each size has instances of its own."""
        smaller = [key for key in self._loaded if key[1] != self._graph.batch]
        for key in smaller[:-KEPT_SIZES]:
            self._runtime.drain()
            self._runtime.retire([self._loaded.pop(key).replay])
