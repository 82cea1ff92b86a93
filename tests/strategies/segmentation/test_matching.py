"""Stages matched to unequal processors: every straight pipeline on every choice of processors, by the formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

import maniple as mp
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.pipeline.cost_graph import CostGraph
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation import matching as module
from maniple.strategies.segmentation.antichain import Antichain
from maniple.strategies.segmentation.matching import Matching
from maniple.strategies.simulation.simulation import Simulation

Fixture = Callable[..., Any]


def slower(graph: CostGraph, chance: Random) -> CostGraph:
    """The same graph on another processor, where each operator takes longer by a factor of its own."""
    factors = [chance.choice((1.0, 1.5, 2.0, 4.0)) for _ in graph.nodes]
    nodes = [
        replace(
            node,
            forward_s=node.forward_s * factor,
            backward_s=node.backward_s * factor,
            forward_start_s=node.forward_start_s * factor,
            backward_start_s=node.backward_start_s * factor,
        )
        for node, factor in zip(graph.nodes, factors, strict=True)
    ]
    return CostGraph(graph.name, tuple(nodes), graph.edges)


def drawn(graph: CostGraph, chance: Random) -> Matching:
    """Three or four processors of one to three classes, with links and memories of their own."""
    classes = chance.choice((((0,), (1, 2)), ((0, 1), (2, 3)), ((0,), (1,), (2,)), ((0, 1, 2),)))
    speeds = np.array([[chance.choice((200.0, 700.0, inf)) for _ in classes] for _ in classes])
    held = tuple(chance.choice((60.0, 150.0, 1e9)) for _ in classes)
    given = Assumptions(order=chance.choice(("1f1b", "gpipe")), micro_batches=chance.choice((1, 2, 4)))
    asked = SegmentationProblem(graph, (Level(1),), False, None, "throughput", given)
    return Matching(asked, tuple(slower(graph, chance) for _ in classes), Fleet(classes, speeds, held))


def least(found: Matching, list_ideals: Fixture, list_chains: Fixture, cut_size: Fixture) -> dict[int, float]:
    """By number of stages the slowest stage of the best pipeline, of all."""
    graph, fleet, given = found.costs[0], found.fleet, found.asked.assumptions
    home = {processor: place for place, own in enumerate(fleet.classes) for processor in own}
    best: dict[int, float] = {}
    for chain in list_chains(list_ideals(graph), frozenset(), frozenset(range(len(graph.nodes))), len(home), 1):
        for on in permutations(sorted(home), len(chain)):
            slowest = 0.0
            for place, (before, after, _) in enumerate(chain):
                here = home[on[place]]
                own = [found.costs[here].nodes[node] for node in after - before]
                work = sum(n.compute_s - n.start_s + given.micro_batches * n.start_s for n in own)
                sent = cut_size(graph, after)
                link = fleet.bandwidth[here, home[on[place + 1]]] if place + 1 < len(chain) else inf
                flights = min(len(chain) - place, given.micro_batches)
                flights = given.micro_batches if given.order == "gpipe" else flights
                kept = sum(n.stored_bytes for n in own) + cut_size(graph, before)
                held = 3 * sum(n.parameter_bytes for n in own) + flights * kept / given.micro_batches
                slowest = max(slowest, work, 2 * sent / link, inf if held > fleet.held_bytes[here] + 1e-9 else 0.0)
            best[len(chain)] = min(best.get(len(chain), inf), slowest)
    return {count: value for count, value in best.items() if value < inf}


@pytest.mark.parametrize("seed", range(40))
def test_no_match_of_stages_and_processors_is_better(
    seed: int, make_graph: Fixture, list_ideals: Fixture, list_chains: Fixture, cut_size: Fixture
) -> None:
    found = drawn(make_graph(seed, most=6), Random(seed))
    wanted = least(found, list_ideals, list_chains, cut_size)
    pipelines = {len(each.stages): each for each in found.pipelines()}
    assert {count: each.bottleneck_s for count, each in pipelines.items()} == pytest.approx(wanted)
    for each in pipelines.values():
        check(found, each, cut_size)


def check(found: Matching, pipeline: Segmentation, cut_size: Fixture) -> None:
    """Its stages hold every operator once, on different processors, and take and hold what they say."""
    assert sorted(node for stage in pipeline.stages for node in stage.nodes) == list(range(len(found.costs[0].nodes)))
    assert len({stage.devices for stage in pipeline.stages}) == len(pipeline.stages)
    assert max(stage.load_s for stage in pipeline.stages) == pytest.approx(pipeline.bottleneck_s)
    done: frozenset[int] = frozenset()
    parts = found.asked.assumptions.micro_batches
    for stage, times in zip(pipeline.stages, found.times(pipeline), strict=True):
        done |= set(stage.nodes)
        assert stage.sent_bytes == cut_size(found.costs[0], done)
        assert times.both_s * parts == pytest.approx(stage.compute_s)
        here = next(place for place, own in enumerate(found.fleet.classes) if stage.devices[0] in own)
        assert stage.memory_bytes <= found.fleet.held_bytes[here] + 1e-6


def test_lines_are_cut_where_ideals_are_too_many(make_graph: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(make_graph(7, most=6), Random(1))
    exact = {len(each.stages): each.bottleneck_s for each in found.pipelines()}
    monkeypatch.setattr(module, "MOST_IDEALS", 2)
    for each in found.pipelines():
        assert not each.exact
        assert each.bottleneck_s >= exact[len(each.stages)] * (1 - 1e-12)
    monkeypatch.setattr(module, "MOST_WORK", 1)
    assert found.pipelines() == ()


def unequal(fast: tuple[int, ...]) -> Machine:
    """Four ranks, of which some are four times as fast as the others."""
    four = Machine.preset("cpu:4x1")
    speeds = tuple(
        replace(each, flops_per_s=4e9 if each.id in fast else 1e9, launch_s=1e-7) for each in four.processors
    )
    return replace(four, processors=speeds)


def test_processors_that_can_stand_for_each_other_are_one_class() -> None:
    assert Fleet.of(Machine.preset("cpu:4x1")).classes == ((0, 1, 2, 3),)
    assert Fleet.of(unequal((2,))).classes == ((0, 1, 3), (2,))
    hosts = Fleet.of(Machine.preset("p100x8"))
    assert hosts.classes == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert hosts.bandwidth[0, 0] == hosts.bandwidth[1, 1] > hosts.bandwidth[0, 1]
    small = replace(Machine.preset("cpu:2x1"))
    memories = (replace(small.memories[0], capacity_bytes=1 << 20), small.memories[1])
    assert Fleet.of(replace(small, memories=memories)).classes == ((0,), (1,))
    shared = Fleet.of(Machine.preset("cpu:1x4"))
    assert (shared.classes, shared.bandwidth.tolist()) == (((0, 1, 2, 3),), [[inf]])


def layers(machine: Machine) -> tuple[Problem, Plan]:
    """Seven equal layers, which are wide beside their samples, and the pipeline that is found for them."""
    g = mp.Graph("seven layers")
    h = g.input("x", (16, 256))
    for _ in range(7):
        h = g.linear(h, 256, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (16, 256))))
    problem = Problem(g, machine, order="1f1b", micro_batches=4)
    return problem, Antichain().plan(problem)


@pytest.mark.simulator
@pytest.mark.parametrize("fast", [(0,), (3,)])
def test_the_fast_processor_has_the_large_stage_wherever_it_is(fast: tuple[int, ...]) -> None:
    """One processor is four times as fast, so it has most of seven layers; what is found is what is simulated."""
    problem, plan = layers(unequal(fast))
    plan.validate(problem.graph, problem.machine)
    on = [plan.operator(name).processors[0] for name, _ in plan.operators if name.startswith("linear")]
    assert on.count(fast[0]) >= 4
    assert len(set(on)) > 1
    found = Simulation(problem.graph, problem.machine, plan).makespan_ns
    assert plan.predicted.step_s == pytest.approx(found / 1e9)
    _, even = layers(Machine.preset("cpu:4x1"))
    assert found < 0.75 * Simulation(problem.graph, problem.machine, replace(even, machine="")).makespan_ns
