"""Stages matched to unequal processors: every pipeline on every choice of processors, by the formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, combinations, pairwise, permutations
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

import maniple as mp
from maniple.operators.plan.plan import Plan
from maniple.operators.plan.version_semantics import version_rule, weight_copies
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.pipeline.cost_graph import CostGraph
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.pipeline.team import team_families
from maniple.strategies.segmentation import matching as module
from maniple.strategies.segmentation.antichain import Antichain
from maniple.strategies.segmentation.bapipe import BaPipe
from maniple.strategies.segmentation.gpipe import GPipe
from maniple.strategies.segmentation.graphpipe import GraphPipe
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


def drawn(graph: CostGraph, chance: Random, *, replicate: bool = False, rule: str = "") -> Matching:
    """Three or four processors of one to three classes, with links and memories of their own; under a rule no flush."""
    classes = chance.choice((((0,), (1, 2)), ((0, 1), (2, 3)), ((0,), (1,), (2,)), ((0, 1, 2),)))
    widths = (300.0, 1e3, inf) if replicate else (200.0, 700.0, inf)
    speeds = np.array([[chance.choice(widths) for _ in classes] for _ in classes])
    held = tuple(chance.choice((60.0, 1e9, 1e9) if replicate else (60.0, 150.0, 1e9)) for _ in classes)
    order, parts = chance.choice(("1f1b", "gpipe")), chance.choice((1, 2, 4))
    synchronization = chance.choice(("add", "overlap")) if replicate else "add"
    transfers = chance.choice(("overlap", "add"))
    given = Assumptions(order=order, micro_batches=parts, synchronization=synchronization, transfers=transfers)
    devices = 4 if replicate else 1
    if rule:
        read = version_rule({"weights": rule})
        assert read is not None
        given = replace(given, order="asynchronous", rule=read, micro_batches=parts if read.adds else 1)
        devices = min(sum(map(len, classes)), devices if replicate else len(graph.nodes))
    asked = SegmentationProblem(graph, (Level(devices),), replicate, None, "throughput", given)
    return Matching(asked, tuple(slower(graph, chance) for _ in classes), Fleet(classes, speeds, held))


def least(found: Matching, list_ideals: Fixture, list_chains: Fixture, cut_size: Fixture) -> dict[int, float]:
    """By number of processors the slowest stage of the best pipeline, of all cuts on all choices of processors."""
    graph, count = found.costs[0], sum(map(len, found.fleet.classes))
    most, best = count if found.asked.replicate else 1, dict[int, float]()
    for chain in list_chains(list_ideals(graph), frozenset(), frozenset(range(len(graph.nodes))), count, most):
        total = sum(replicas for _, _, replicas in chain)
        for on in permutations(range(count), total):
            ends = list(accumulate((replicas for _, _, replicas in chain), initial=0))
            teams = [on[first:last] for first, last in pairwise(ends)]
            if all(tuple(sorted(team)) == team for team in teams):  # who shares a stage has no order
                best[total] = min(best.get(total, inf), slowest(found, chain, teams, cut_size))
    return {total: value for total, value in best.items() if value < inf}


def homes(fleet: Fleet) -> dict[int, int]:
    """The class of each processor."""
    return {processor: place for place, own in enumerate(fleet.classes) for processor in own}


def link(fleet: Fleet, senders: tuple[int, ...], takers: tuple[int, ...]) -> float:
    """The slowest link from one of some processors to another one of some."""
    home = homes(fleet)
    pairs = [(a, b) for a in senders for b in takers if a != b]
    return min((float(fleet.bandwidth[home[a], home[b]]) for a, b in pairs), default=inf)


def slowest(found: Matching, chain: Any, teams: list[tuple[int, ...]], cut_size: Fixture) -> float:
    """The slowest stage of a pipeline on some processors; infinite where one has no room for its stage."""
    graph, fleet, given = found.costs[0], found.fleet, found.asked.assumptions
    parts, worst, came = given.micro_batches, 0.0, 0.0
    home = homes(fleet)

    for place, (before, after, replicas) in enumerate(chain):
        team, later = teams[place], sum(len(other) for other in teams[place + 1 :])
        work, weights = 0.0, sum(graph.nodes[node].parameter_bytes for node in after - before)
        for processor in team:
            own = [found.costs[home[processor]].nodes[node] for node in after - before]
            work = max(work, sum((n.compute_s - n.start_s) / replicas + parts * n.start_s for n in own))
        agreed = 4 * (replicas - 1) / replicas * weights / link(fleet, team, team)
        flights = parts if given.order == "gpipe" else min(-(-later // replicas) + 1, parts)
        copies = 3
        if given.rule is not None:  # as many stages as processors, of which so many are before it
            ahead = max(0, found.asked.devices - later - replicas)
            flights, copies = later + 1, 2 + weight_copies(given.rule, ahead, ahead + 1 + later)
        kept = sum(graph.nodes[node].stored_bytes for node in after - before) + cut_size(graph, before)
        held = copies * weights + flights * kept / parts / replicas
        room = min(fleet.held_bytes[home[processor]] for processor in team)
        busy = work + agreed if given.synchronization == "add" else max(work, agreed)
        sent = 0.0
        if place + 1 < len(chain):
            narrow = min(replicas, len(teams[place + 1]))
            sent = 2 * cut_size(graph, after) / link(fleet, team, teams[place + 1]) / narrow
        both = busy + came + sent if given.transfers == "add" else max(busy, sent)
        worst, came = max(worst, both, inf if held > room + 1e-9 else 0.0), sent
    return worst


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("replicate", [False, True])
def test_no_match_of_stages_and_processors_is_better(
    seed: int, replicate: bool, make_graph: Fixture, list_ideals: Fixture, list_chains: Fixture, cut_size: Fixture
) -> None:
    found = drawn(make_graph(seed, most=5 if replicate else 6), Random(seed), replicate=replicate)
    wanted = least(found, list_ideals, list_chains, cut_size)
    pipelines = {sum(stage.replicas for stage in each.stages): each for each in found.pipelines()}
    assert {count: each.bottleneck_s for count, each in pipelines.items()} == pytest.approx(wanted)
    for each in pipelines.values():
        assert each.exact
        check(found, each, cut_size)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rule", ["latest", "stash", "2bw", "spectrain"])
def test_no_match_without_a_flush_is_better(
    seed: int, rule: str, make_graph: Fixture, list_ideals: Fixture, list_chains: Fixture, cut_size: Fixture
) -> None:
    """Versions of weights and mini-batches in flight take their room; half of the cases have replicas."""
    replicate = seed % 2 == 0
    found = drawn(make_graph(seed, most=5), Random(f"{rule} {seed}"), replicate=replicate, rule=rule)
    wanted = least(found, list_ideals, list_chains, cut_size)
    pipelines = {sum(stage.replicas for stage in each.stages): each for each in found.pipelines()}
    assert {count: each.bottleneck_s for count, each in pipelines.items()} == pytest.approx(wanted)
    for each in pipelines.values():
        check(found, each, cut_size)
    straight = found.widest(2)
    assert straight is None or len(straight.stages) <= 2


def check(found: Matching, pipeline: Segmentation, cut_size: Fixture) -> None:
    """Its stages hold every operator once, on different processors, and take and hold what they say."""
    assert sorted(node for stage in pipeline.stages for node in stage.nodes) == list(range(len(found.costs[0].nodes)))
    devices = [device for stage in pipeline.stages for device in stage.devices]
    assert len(set(devices)) == len(devices)
    assert max(stage.load_s for stage in pipeline.stages) == pytest.approx(pipeline.bottleneck_s)
    done: frozenset[int] = frozenset()
    parts = found.asked.assumptions.micro_batches
    for stage, times in zip(pipeline.stages, found.times(pipeline), strict=True):
        done |= set(stage.nodes)
        assert stage.sent_bytes == cut_size(found.costs[0], done)
        assert times.both_s * parts == pytest.approx(stage.compute_s)
        nexts = [other for other in pipeline.stages if stage in pipeline.stages[: pipeline.stages.index(other)]]
        narrow = min([stage.replicas, *(other.replicas for other in nexts[:1])])
        width = link(found.fleet, stage.devices, nexts[0].devices) if nexts else inf
        assert times.transfer_s * parts == pytest.approx(stage.sent_bytes / width / narrow)
        own = [place for place, own in enumerate(found.fleet.classes) if set(stage.devices).intersection(own)]
        assert stage.memory_bytes <= min(found.fleet.held_bytes[place] for place in own) + 1e-6


def test_lines_are_cut_where_ideals_are_too_many(make_graph: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(make_graph(7, most=6), Random(1))
    exact = {len(each.stages): each.bottleneck_s for each in found.pipelines()}
    monkeypatch.setattr(module, "MOST_IDEALS", 2)
    for each in found.pipelines():
        assert not each.exact
        assert each.bottleneck_s >= exact[len(each.stages)] * (1 - 1e-12)
    monkeypatch.setattr(module, "MOST_WORK", 1)
    assert found.pipelines() == ()


def test_teams_are_of_one_class_where_all_are_too_many(make_graph: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes of two: 27 ways to take a team of any kind from what may be left, 18 to take one of a class."""
    mixed, pure = team_families((2, 2), replicate=True)
    assert ((1, 1) in mixed.teams, (1, 1) in pure.teams, mixed.complete, pure.complete) == (True, False, True, False)
    assert (mixed.pairs, pure.pairs, len(mixed.teams), len(pure.teams)) == (27, 18, 8, 4)
    graph = make_graph(3, most=5)
    asked = SegmentationProblem(graph, (Level(4),), True, None, "throughput", Assumptions(order="gpipe"))
    fleet = Fleet(((0, 1), (2, 3)), np.full((2, 2), inf), (1e9, 1e9))
    found = Matching(asked, (graph, graph), fleet)
    ideals = found.pipelines()[0].states
    assert pure.work(ideals) < mixed.work(ideals)
    monkeypatch.setattr(module, "MOST_WORK", pure.work(ideals))
    answers = found.pipelines()
    assert answers
    for each in answers:
        assert not each.exact
        assert all(max(found.team_of(stage)) == stage.replicas for stage in each.stages)


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
def test_slow_processors_share_a_stage_beside_the_fast_one(fast: tuple[int, ...]) -> None:
    """Three layers, one processor four times as fast as three: it has two of them, and the three share the last."""
    g = mp.Graph("three layers")
    h = g.input("x", (64, 128))
    for _ in range(3):
        h = g.linear(h, 128, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (64, 128))))
    problem = Problem(g, unequal(fast), order="1f1b", micro_batches=4)
    plan = Antichain().plan(problem)
    plan.validate(g, problem.machine)
    slow = tuple(set(range(4)).difference(fast))
    assert [plan.operator(name).processors for name, _ in plan.operators] == [fast, fast, slow, slow]
    straight = Antichain(replicate=False).plan(problem)
    assert plan.predicted.step_s == Simulation(g, problem.machine, plan).makespan_ns / 1e9
    assert plan.predicted.step_s < 0.9 * straight.predicted.step_s
    for each in Antichain(stages=2).plan(problem), Antichain(replicate=True, stages=3).plan(problem):
        assert len(each.processors_used()) <= 3


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


def seven(machine: Machine, order: str | None = None, parts: int | None = None) -> Problem:
    """Seven equal layers, wide beside their samples."""
    g = mp.Graph("seven layers")
    h = g.input("x", (16, 256))
    for _ in range(7):
        h = g.linear(h, 256, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (16, 256))))
    return Problem(g, machine, order=order, micro_batches=parts)


@pytest.mark.simulator
@pytest.mark.parametrize("strategy", [BaPipe(alone=True), GPipe()], ids=lambda each: each.name)
@pytest.mark.parametrize("fast", [0, 3])
def test_bapipe_and_gpipe_give_the_fast_processor_more_wherever_it_is(strategy: BaPipe | GPipe, fast: int) -> None:
    """What they find is what is simulated, and takes less than what they find where all were alike."""
    problem = seven(unequal((fast,)), "gpipe", 4)
    plan = strategy.plan(problem)
    plan.validate(problem.graph, problem.machine)
    on = [plan.operator(name).processors[0] for name, _ in plan.operators if name.startswith("linear")]
    assert on.count(fast) >= 4
    assert set(on) == {0, 1, 2, 3} or strategy.name == "bapipe"
    found = Simulation(problem.graph, problem.machine, plan).makespan_ns
    assert plan.predicted.step_s == pytest.approx(found / 1e9)
    even = strategy.plan(seven(Machine.preset("cpu:4x1"), "gpipe", 4))
    assert found < 0.75 * Simulation(problem.graph, problem.machine, replace(even, machine="")).makespan_ns


@pytest.mark.simulator
@pytest.mark.parametrize("strategy", [BaPipe(alone=True), GPipe(), GraphPipe(alone=True)], ids=lambda each: each.name)
def test_a_small_memory_and_a_slow_link_have_the_stages_that_suit_them(strategy: BaPipe | GPipe | GraphPipe) -> None:
    """Of two processors one has room for little, so it has one layer of four; whichever it is."""
    g = mp.Graph("four layers")
    h = g.input("x", (16, 256))
    for _ in range(4):
        h = g.linear(h, 256, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (16, 256))))
    two = Machine.preset("cpu:2x1")
    for small in (0, 1):
        # A layer has 256 KiB of weights; with their gradients and momentum three times as much.
        rooms = tuple(
            replace(each, capacity_bytes=(1200 << 10) if each.id == small else 1 << 30) for each in two.memories
        )
        machine = replace(two, memories=rooms)
        plan = strategy.plan(Problem(g, machine, order="gpipe", micro_batches=2))
        plan.validate(g, machine)
        on = [plan.operator(name).processors[0] for name, _ in plan.operators if name.startswith("linear")]
        assert on.count(small) <= 1
        held = Simulation(g, machine, plan).allocated_bytes()
        assert held is not None
        assert held[small] <= 1200 << 10


@pytest.mark.simulator
def test_bapipe_finds_no_slower_a_pipeline_than_any_on_unequal_processors() -> None:
    """Every cut of three layers into stages, on every choice of processors, in each order that is explored."""
    machine = unequal((2,))
    three = replace(machine, processors=machine.processors[:3], memories=machine.memories[:3])
    g = mp.Graph("three layers")
    h = g.input("x", (16, 64))
    for width in (256, 128, 64):
        h = g.linear(h, width, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (16, 64))))
    names = [node.name for node in g.nodes]
    problem = Problem(g, three, micro_batches=4)
    best = inf
    for count in (1, 2, 3):
        for ends in combinations(range(1, len(names)), count - 1):
            stages = [names[first:last] for first, last in pairwise((0, *ends, len(names)))]
            for on in permutations(range(3), count):
                homes = {name: on[place] for place, own in enumerate(stages) for name in own}
                placed = tuple((node.name, whole(g, node, homes[node.name])) for node in g.nodes)
                plan = complete(problem, "drawn", placed)
                for order in ("1f1b", "early_backward", "gpipe"):
                    made = plan.with_pipeline(stages, order=order, micro_batches=4)
                    best = min(best, Simulation(g, three, made).makespan_ns / 1e9)
    found = BaPipe(alone=True).plan(problem).predicted.step_s
    assert found == pytest.approx(best, rel=0.02)
