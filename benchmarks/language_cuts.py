"""Language models in 8 to 32 stages: cuts by cost beside equal numbers of layers, simulated under 1F1B.

    python benchmarks/language_cuts.py [--models llama] [--stages 8 16 32] [--steps 2048]
    python benchmarks/language_cuts.py --closed            by the closed form alone; nothing is simulated

prints the tables of docs/explanation/antichain.md, a row as soon as it is there; nothing is timed, and nothing needs
the parameters' values. A text is a micro-batch, and a step has two for each stage. Equal layers is said in two ways:

    equal layers      every stage has as many blocks; the embedding is with the first, the last projection with the last
    counted           the embedding and the last projection count as a layer each
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from language_models import DEEPSEEK, LLAMA, Sizes, decoder

import maniple as mp
from maniple.operators.plan.plan import StagePlan
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.model_parallel import balanced_blocks
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, work_s
from maniple.strategies.search.memory_fit import excess
from maniple.strategies.segmentation.segment import segment
from maniple.strategies.segmentation.stage_plan import finalist
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.node import Node


ORDER = "1f1b"
MODELS = {"llama": LLAMA, "deepseek": DEEPSEEK}
HEAD = (
    "| model | stages | micro-batches | equal layers ms | counted ms | cut by cost ms | equal / cut | counted / cut "
    "| equal / cut, closed | exact | equal / even, closed |"
)

CLOSED_HEAD = "| model | stages | equal / cut | the best | equal / even |"


def unit_of(node: Node, layers: int) -> int:
    """The unit of an operator: 0 is the embedding, then come the layers, and last what follows them."""
    if node.name.startswith("blocks."):
        return 1 + int(node.name.split(".")[1])
    return 0 if node.name == "embedding" else layers + 1


def equal_layers(problem: Problem, layers: int, stages: int, parts: int, *, counted: bool) -> mp.Plan:
    """The pipeline with as many layers in each stage.

    Args:
        problem: a decoder on a machine.
        layers: how many it has.
        stages: how many there are to be.
        parts: into how many micro-batches a step is cut.
        counted: whether the embedding and what follows the layers count as a layer each.
    """
    graph = problem.graph
    blocks = balanced_blocks([1] * (layers + 2 * counted), stages)
    home = blocks if counted else [blocks[0], *blocks, blocks[-1]]
    stage_of = {node.name: home[unit_of(node, layers)] for node in graph.nodes}
    operators = tuple((node.name, whole(graph, node, stage_of[node.name])) for node in graph.nodes)
    names = [tuple(name for name in stage_of if stage_of[name] == stage) for stage in sorted(set(home))]
    plan = replace(complete(problem, "equal layers", operators), stages=tuple(map(StagePlan, names)))
    return plan.with_pipeline(order=ORDER, micro_batches=parts)


def asked(problem: Problem, stages: int, parts: int) -> SegmentationProblem:
    """What the partition search is asked: the cut with the least closed form."""
    costs = cost_graph(problem.graph, problem.machine)
    given = Assumptions(order=ORDER, micro_batches=parts)
    return SegmentationProblem(costs, (flat(problem.machine, stages),), False, None, "latency", given)


def cut_by_cost(problem: Problem, stages: int, parts: int) -> mp.Plan:
    """The pipeline that the partition search expects to end a step first, by what operators take."""
    wanted = asked(problem, stages, parts)
    return finalist(problem, "antichain", wanted, segment(wanted), ORDER).plan


def closed_s(loads: Sequence[float], parts: int) -> float:
    """The closed form of a step, by what all micro-batches take in each stage: the slowest but once, and all of one."""
    return (parts - 1) / parts * max(loads) + sum(loads) / parts


def closed_forms(problem: Problem, equal: mp.Plan, stages: int, parts: int) -> list[str]:
    """By the closed form how many times as long equal layers take as the cut that is found and as work that divides.

    The cut is the best of all where the search says so. Work that divides into equal stages is a bound of every cut,
    which parts no operator.
    """
    wanted = asked(problem, stages, parts)
    found, nodes = segment(wanted), wanted.graph.nodes
    takes = {node.id: work_s(wanted.assumptions, node.compute_s, node.start_s, 1) for node in nodes}
    own = [[takes[name] for name in stage.operators if name in takes] for stage in equal.stages]
    whole_s = closed_s([sum(each) for each in own], parts)
    even_s = closed_s([sum(takes.values()) / stages] * stages, parts)
    told = "yes" if found.exact else f"within {100 * found.gap:.2g} %"
    return [f"{whole_s / found.value_s:.2f}", told, f"{whole_s / even_s:.2f}"]


def closed_row(name: str, sizes: Sizes, stages: int, steps: int) -> str:
    """A row of the table of closed forms."""
    parts = 2 * stages
    problem = Problem(decoder(name, sizes, parts, steps), mp.Machine.preset(f"h100x{stages}"))
    equal = equal_layers(problem, sizes.layers, stages, parts, counted=False)
    return "| " + " | ".join([name, str(stages), *closed_forms(problem, equal, stages, parts)]) + " |"


def row(name: str, sizes: Sizes, stages: int, steps: int) -> str:
    """A row of the table."""
    parts = 2 * stages
    graph, machine = decoder(name, sizes, parts, steps), mp.Machine.preset(f"h100x{stages}")
    problem = Problem(graph, machine)
    plans = [equal_layers(problem, sizes.layers, stages, parts, counted=counted) for counted in (False, True)]
    times = []
    for plan in (*plans, cut_by_cost(problem, stages, parts)):
        simulation = Simulation(graph, machine, plan)
        over, _ = excess(simulation)
        times.append(simulation.makespan_ns / 1e6)
        print(f"{name} {stages}: {times[-1]:.1f} ms, {over} bytes too many", file=sys.stderr, flush=True)
    first, second, ours = times
    cells = [name, stages, parts, *(f"{each:.1f}" for each in times), f"{first / ours:.2f}", f"{second / ours:.2f}"]
    cells += closed_forms(problem, plans[0], stages, parts)
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--stages", nargs="+", type=int, default=[8, 16, 32])
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--closed", action="store_true")
    asked = parser.parse_args()
    head, made = (CLOSED_HEAD, closed_row) if asked.closed else (HEAD, row)
    print(head, "|---" * (head.count("|") - 1) + "|", sep="\n", flush=True)
    for name in asked.models:
        for stages in asked.stages:
            if stages <= MODELS[name].layers:
                print(made(name, MODELS[name], stages, asked.steps), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
