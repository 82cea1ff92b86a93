"""A program for `maniple calibrate`: sends tiles of many sizes between two ranks, by the path that training uses.

A chain of operators goes back and forth between two processors, so every edge is a copy, forward and backward. The
times of the copies are those of the timeline: from the start at the sender to the landing at the receiver, both on the
clock of one host. With one rank it measures how soon one small task follows another.

A GPU's lane hears of a tile and submits what waits for it, which no copy's time has. So between GPUs a hop is what it
adds to a step, beside the same chain on one processor:

    p0   linear   .      relu   .     ...                      linear  relu  relu  relu  ...
    p1   .        relu   .      relu  ...   14 hops, there and back    (no hop)
"""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from maniple.operators.graph.graph import Graph
from maniple.operators.training.descent import SGD
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.trainer import Trainer

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.control.world import World
    from maniple.runtime.observe.timeline import Span, Timeline

__all__: list[str] = []

SIZES = tuple(1 << power for power in range(4, 22, 3))
"""Elements (float32) of the tiles that are sent: 64 bytes to 2 MiB."""
STEPS, LINKS = 12, 6


def chain(elements: int) -> Graph:
    """A chain of pointwise operators on that many elements."""
    g = Graph("chain")
    x, y = g.input("x", (elements, 1)), g.input("y", (elements,), dtype="int64")
    h = g.linear(x, out_features=1)
    for _ in range(LINKS):
        h = g.relu(h)
    g.loss(g.cross_entropy(h, y))
    return g


def in_turns(graph: Graph, machine: Machine, count: int) -> Plan:
    """The plan by which the operators of a chain run on the first processors of a machine in turn.

    Args:
        graph: the chain.
        machine: the machine.
        count: how many processors.
    """
    operators = tuple((node.name, whole(graph, node, place % count)) for place, node in enumerate(graph.nodes))
    return complete(Problem(graph, machine), "manual", operators)


def hops(world: World) -> tuple[list[int], list[float]]:
    """The bytes of tiles, and the seconds that a hop of each between two processors adds to a step.

    Args:
        world: of at least two ranks with a GPU each; devices that stand in for GPUs are given less to do.
    """
    from maniple.gpu_probe import step_seconds

    machine, found = Machine.detect(world), list[float]()
    sizes, steps = (SIZES, STEPS) if world.device == "cuda" else (SIZES[::5], 1)
    for elements in sizes:
        graph = chain(elements)
        there, here = (step_seconds(graph, in_turns(graph, machine, count), world, steps) for count in (2, 1))
        found.append(max(1e-9, (there - here) / (2 * (len(graph.nodes) - 1))))
    return [4 * elements for elements in sizes], found


def probe(machine: Machine, elements: int) -> list[Timeline]:
    """Run the chain, its operators on the machine's processors in turn; give the timelines of its steps."""
    import torch

    graph = chain(elements)
    plan = in_turns(graph, machine, len(machine.processors))
    found = []
    with Trainer(graph, plan, optimizer=SGD(lr=0.0)) as trainer:
        for _ in range(STEPS):
            trainer.step(x=torch.ones(elements, 1), y=torch.zeros(elements, dtype=torch.int64))
            found.append(trainer.timeline())
    return found[2:]


def copy_seconds(timelines: list[Timeline]) -> float:
    """The median seconds of a copy, from when both ends are ready until it has landed.

    A receiver's share begins when it may be written, long before the sender has computed what it sends:

        receiver  [ready ................. landed]
        sender          [computes][sends]
                                  <- counted ->
    """
    found: list[int] = []
    for timeline in timelines:
        shares: dict[int, list[Span]] = {}
        for span in timeline.spans:
            if span.category == "copy":
                shares.setdefault(span.begin.row, []).append(span)
        found += [
            max(span.end_ns for span in spans) - max(span.start_ns for span in spans) for spans in shares.values()
        ]
    return float(statistics.median(found)) / 1e9


def launch_seconds(timelines: list[Timeline]) -> float:
    """The median seconds from the start of one small task to the start of the next."""
    gaps: list[int] = []
    for timeline in timelines:
        starts = sorted(span.start_ns for span in timeline.spans if span.category == "task")
        gaps += [after - before for before, after in pairwise(starts)]
    return float(statistics.median(gaps)) / 1e9


def main() -> None:
    """Measure, and print one JSON object on rank 0."""
    from maniple.process import environment
    from maniple.runtime.control import world

    machine = Machine.detect()
    if len(machine.memories) < 2:
        print(json.dumps({"launch_s": launch_seconds(probe(machine, 1))}))  # noqa: T201  (the result of the program)
        return
    if machine.processors[0].kind == "gpu":
        sizes, seconds = hops(world.current())
    else:
        sizes = [4 * elements for elements in SIZES]
        seconds = [copy_seconds(probe(machine, elements)) for elements in SIZES]
    if not environment.own_rank():
        told = {"bytes": sizes, "seconds": seconds, "machine": machine.to_json()}
        print(json.dumps(told))  # noqa: T201  (the result of the program)


if __name__ == "__main__":
    main()
