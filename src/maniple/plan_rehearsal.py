"""Rehearsals of plans: their training steps, lowered and bound as a trainer does it, run for their time alone.

Nothing of a rehearsal stays: its weights are let go of, and it is no trainer that is counted, reported or checked for
a loss that is no number. Every rank makes the same ones and runs them in the same order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from maniple.holder import AbstractHolder
from maniple.hyper import Hyper
from maniple.operators.graph.state import initial_values
from maniple.operators.lowering.weight import drop_weights, fill_states, weights, write_weights
from maniple.operators.plan.version_semantics import optimizer_under
from maniple.operators.training.descent import SGD
from maniple.process.interruption import hold_interrupts
from maniple.program_loader import ProgramLoader
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.strategies.cost_model.timed_body import draw
from maniple.torch_compilation import checked_compilation

if TYPE_CHECKING:
    import torch

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.control.world import World
    from maniple.step_run import LoadedProgram

__all__: list[str] = []

RATE = 1e-9
"""A learning rate with which weights stay what they are: the same batch many times over must not blow up."""


@final
class PlanRehearsal(AbstractHolder):
    """A step of a graph under a plan, ready to be run.

    Args:
        graph: the graph.
        plan: the plan; it flushes.
        optimizer: what updates the weights; None: descent with momentum.
        world: the ranks.

    Raises:
        RequestError: it cannot run, on all ranks alike; `RoomError`: some memory cannot hold it beside what is there.
        RunError: a task failed, here or on another rank.
    """

    def __init__(self, graph: Graph, plan: Plan, optimizer: AbstractOptimizer | None, world: World) -> None:
        machine = host_machine(world, plan.processors_used())
        plan.validate(graph, machine)
        named = tuple(tensor.name for tensor in graph.parameters)
        updates = optimizer_under(plan, optimizer or SGD(lr=RATE, momentum=0.9), named)
        self._runtime = runtime = RankRuntime.of(world)
        runtime.start_processors(machine)
        self._weights = weights(graph, plan, machine, updates, runtime.regions)
        self._loaded: dict[tuple[str, int], LoadedProgram] = {}
        made = graph, plan, machine, updates, self._weights, runtime
        load = ProgramLoader(*made, self._loaded, compiled=checked_compilation(None, world))
        try:
            self._step = load("step", graph.batch)
            self._step.replay.keep()
            memories = runtime.memories
            write_weights(self._weights, memories, graph.lasting, lambda one, rect: initial_values(graph, one, rect, 0))
            fill_states(self._weights, memories, updates)
        except BaseException:
            self._let_go()
            raise
        self._batch = draw_batch(graph)
        self._numbers = Hyper(updates, lambda: None)
        self._steps = 0

    def run(self) -> float:
        """Run a step, and give the seconds that it took until all of it was done at this rank."""
        step, memories = self._step, self._runtime.memories
        began = time.perf_counter()
        step.replay.prepare()
        with hold_interrupts():
            step.feed(self._batch, memories, 0, self._steps, self._numbers.table(self._steps + 1))
            self._steps += 1
            run = step.replay.commit()
        run.wait()
        for port in step.results.values():
            port.clear()
        return time.perf_counter() - began

    def close(self) -> None:
        """Let go of what it holds."""
        self._runtime.drain()
        self._let_go()

    def _let_go(self) -> None:
        self._runtime.retire([loaded.replay for loaded in self._loaded.values()])
        self._loaded.clear()
        drop_weights(self._weights, self._runtime.memories)


def draw_batch(graph: Graph) -> dict[str, torch.Tensor]:
    """Numbers for each input of a graph, the same on every rank; whole ones name rows that there are.

    Args:
        graph: the graph.
    """
    rows: dict[int, int] = {}
    for node in graph.nodes:
        for place, operand in enumerate(node.operands):
            if operand is not None:
                named = node.operator.rows_named(place)
                rows[operand] = min(rows.get(operand, named), named)
    return {tensor.name: draw(tensor.shape, tensor.dtype, rows.get(tensor.id, 1)) for tensor in graph.inputs}
