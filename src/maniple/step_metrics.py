"""Metrics of steps: a line of JSON for each, through whatever the program writes them with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, final

from maniple.operators.lowering.launch_form import tile_flops

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Writer = Callable[[str], object]
"""Takes a line, with its end."""


def model_flops(graph: Graph) -> float:
    """The floating-point operations of a step at the graph's batch: forward and backward, each operator once and uncut.

    What a plan computes again or twice, at halos and in replicas, does not count, nor do the updates.
    """
    total = 0.0
    for node in graph.nodes:
        bound = graph.bound(node)
        forward, backward = tile_flops(node.operator, bound.table(bound.degrees({})))
        total += float(forward.sum() + backward.sum())
    return total


def peak_flops(plan: Plan, machine: Machine) -> float:
    """The operations that the processors of a plan can do in a second, by the machine's word."""
    return sum(machine.processor(number).flops_per_s for number in plan.processors_used())


@final
@dataclass(frozen=True)
class StepMetrics:
    """Writes the metrics of steps.

    Args:
        write: takes a line; None where another rank writes.
        flops: operations of a sample.
        peak: operations a second of all processors.
        every: so many steps apart.
    """

    write: Writer | None
    flops: float
    peak: float
    every: int

    def tell(self, number: int, loss: float, samples: int, seconds: float) -> None:
        """Write the line of a step.

        Args:
            number: of the step, from 0.
            loss: its mean loss.
            samples: of its batch.
            seconds: from the end of the step before to its own.
        """
        if self.write is None or number % self.every or seconds <= 0:
            return
        rate = samples / seconds
        line = {
            "step": number,
            "loss": loss if isfinite(loss) else None,
            "samples": samples,
            "seconds": seconds,
            "samples_per_s": rate,
            "model_flops_per_s": rate * self.flops,
            "model_flop_utilisation": rate * self.flops / self.peak,
        }
        self.write(json.dumps(line) + "\n")
