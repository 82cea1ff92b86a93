"""Every search against all pipelines of small random graphs, costed here once more from the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from maniple.process.error import RequestError
from maniple.strategies.pipeline.cost_graph import CostGraph
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.segment import segment

Fixture = Callable[..., Any]
BANDWIDTH = 700.0  # bytes per second: transfers weigh as much as computation
SEEDS = range(150)


class Oracle:
    """All pipelines of a graph on one level, and what each costs."""

    def __init__(self, graph: CostGraph, ideals: Any, chains: Any, cut: Any) -> None:
        self.graph, self.chains = graph, chains
        self.ideals = ideals(graph)
        self.cut = {ideal: cut(graph, ideal) for ideal in self.ideals}
        self.end = frozenset(range(len(graph.nodes)))
        # Pipelines have stages in common, far more pipelines than stages: what one costs is worked out once.
        self.sums = cache(self.sums)  # type: ignore[method-assign]
        self.passes = cache(self.passes)  # type: ignore[method-assign]
        self.stage_s = cache(self.stage_s)  # type: ignore[method-assign]

    def pipelines(self, devices: int, most: int) -> Iterator[Any]:
        yield from self.chains(self.ideals, frozenset(), self.end, devices, most)

    def sums(self, nodes: Any) -> tuple[float, float, float, float]:
        chosen = [self.graph.nodes[node] for node in nodes]
        return (
            math.fsum(n.forward_s for n in chosen),
            math.fsum(n.backward_s for n in chosen),
            math.fsum(n.parameter_bytes for n in chosen),
            math.fsum(n.stored_bytes for n in chosen),
        )

    def passes(self, nodes: Any, m: int, given: Assumptions) -> tuple[float, float]:
        """Add up what one of ``m`` replicas computes for a mini-batch: what starts passes is not shared at a flush."""
        forward, backward, _, _ = self.sums(nodes)
        starts = math.fsum(self.graph.nodes[node].forward_start_s for node in nodes)
        others = math.fsum(self.graph.nodes[node].backward_start_s for node in nodes)
        each = m if given.order in {"1f1b", "gpipe"} else 1
        return tuple(  # type: ignore[return-value]
            (seconds - start + given.micro_batches * each * start) / m
            for seconds, start in ((forward, starts), (backward, others))
        )

    def stage_s(self, stage: Any, bandwidth: float, given: Assumptions) -> float:
        before, after, m = stage
        _, _, weights, _ = self.sums(after - before)
        work = sum(self.passes(after - before, m, given))
        sync = given.synchronized * (m - 1) / m * weights / bandwidth
        if given.order == "pipedream":
            sync /= m  # replicas take mini-batches in turn, and synchronise once for all of them
        moved = [2 * self.cut[ideal] / (bandwidth * m) for ideal in (before, after)]
        load = work + sync if given.synchronization == "add" else max(work, sync)
        return load + sum(moved) if given.transfers == "add" else max(load, *moved)

    def held(self, chain: Any, given: Assumptions) -> float:
        worst = 0.0
        for place, (before, after, m) in enumerate(chain):
            _, _, weights, stored = self.sums(after - before)
            downstream = sum(stage[2] for stage in chain[place + 1 :])
            admitted = math.ceil(downstream / m) + 1
            flights = {
                "pipedream": admitted,
                "2bw": admitted,
                "1f1b": min(admitted, given.micro_batches),
                "gpipe": given.micro_batches,
            }[given.order]
            versions = {"pipedream": admitted, "2bw": 2}.get(given.order, 1)
            share = given.micro_batches * (m if given.order in {"1f1b", "gpipe"} else 1)
            activations = (stored + self.cut[before]) * flights / share
            worst = max(worst, (versions + given.gradients + given.optimizer) * weights + activations)
        return worst

    def latency_s(self, chain: Any, bandwidth: float, given: Assumptions) -> float:
        count = given.micro_batches
        total, first, second, sync = 0.0, 0.0, 0.0, 0.0
        for before, after, m in chain:
            forward, backward = self.passes(after - before, m, given)
            _, _, weights, _ = self.sums(after - before)
            moved = [2 * self.cut[ideal] / (bandwidth * m * count) for ideal in (before, after)]
            total += (forward + backward) / count + sum(moved) / 2
            phases = [forward, backward] if given.order == "gpipe" else [forward + backward]
            found = []
            for work in phases:
                parts = [size / len(phases) for size in moved]
                slot = work / count
                found.append(slot + sum(parts) if given.transfers == "add" else max(slot, *parts))
            first, second = max(first, found[0]), max(second, found[1] if len(found) > 1 else 0.0)
            sync = max(sync, given.synchronized * (m - 1) / m * weights / bandwidth)
        return total + (count - 1) * (first + second) + (0.0 if given.synchronization == "overlap" else sync)


@pytest.fixture
def oracle(list_ideals: Fixture, list_chains: Fixture, cut_size: Fixture) -> Callable[[CostGraph], Oracle]:
    return lambda graph: Oracle(graph, list_ideals, list_chains, cut_size)


def devices_for(ideals: int) -> int:
    """As many devices as can be enumerated."""
    return 4 if ideals <= 30 else 3 if ideals <= 120 else 2


def check(found: Segmentation, least: float) -> None:
    assert found.exact
    assert found.value_s == pytest.approx(least, rel=1e-9, abs=1e-11)
    assert found.lower_bound_s == found.value_s
    nodes = sorted(node for stage in found.stages for node in stage.nodes)
    assert nodes == list(range(len(nodes)))


@pytest.mark.parametrize("block", range(10))
def test_the_least_bottleneck(block: int, make_graph: Fixture, oracle: Callable[[CostGraph], Oracle]) -> None:
    for seed in SEEDS[15 * block : 15 * block + 15]:
        graph = make_graph(seed)
        known = oracle(graph)
        devices = devices_for(len(known.ideals))
        for replicate in (False, True):
            pipelines = list(known.pipelines(devices, devices if replicate else 1))
            for bandwidth in (BANDWIDTH, math.inf):
                for given in (
                    Assumptions(),
                    Assumptions(transfers="add"),
                    Assumptions(synchronization="overlap"),
                    *([Assumptions(order="2bw", micro_batches=3)] if seed % 5 == 0 else []),
                ):
                    if not replicate and devices > len(graph.nodes):
                        continue
                    problem = SegmentationProblem(graph, (Level(devices, bandwidth),), replicate, assumptions=given)
                    least = min(max(known.stage_s(stage, bandwidth, given) for stage in p) for p in pipelines)
                    found = segment(problem)
                    check(found, least)
                    assert found.states == len(known.ideals)
                    assert sum(stage.replicas for stage in found.stages) <= devices


@pytest.mark.parametrize("block", range(3))
def test_the_least_bottleneck_under_a_memory_limit(
    block: int, make_graph: Fixture, oracle: Callable[[CostGraph], Oracle]
) -> None:
    refused = 0
    for seed in SEEDS[20 * block : 20 * block + 20]:
        graph = make_graph(seed)
        known = oracle(graph)
        devices = devices_for(len(known.ideals))
        pipelines = list(known.pipelines(devices, devices))
        for order, count in (("pipedream", 1), ("2bw", 1), ("1f1b", 3), ("gpipe", 2)):
            given = Assumptions(order=order, micro_batches=count)  # type: ignore[arg-type]
            held = [known.held(p, given) for p in pipelines]
            values = [max(known.stage_s(stage, BANDWIDTH, given) for stage in p) for p in pipelines]
            limit = sorted(held)[len(held) // 4] + 0.5
            problem = SegmentationProblem(graph, (Level(devices, BANDWIDTH),), True, assumptions=given)
            found = segment(replace(problem, memory_bytes=limit))
            check(found, min(value for value, size in zip(values, held, strict=True) if size <= limit))
            assert max(stage.memory_bytes for stage in found.stages) <= limit
            # Below the least that any pipeline holds: refused, whether one layer is too large or all pipelines are.
            if (none := min(held) - 0.5) > 0:
                with pytest.raises(RequestError, match="memory"):
                    segment(replace(problem, memory_bytes=none))
                refused += 1
    assert refused > 20


@pytest.mark.parametrize("block", range(3))
def test_the_least_latency(block: int, make_graph: Fixture, oracle: Callable[[CostGraph], Oracle]) -> None:
    for seed in SEEDS[20 * block : 20 * block + 20]:
        graph = make_graph(seed)
        known = oracle(graph)
        devices = devices_for(len(known.ideals))
        pipelines = list(known.pipelines(devices, devices))
        for order in ("1f1b", "gpipe"):
            for transfers, sync in (("overlap", "add"), ("add", "overlap")):
                given = Assumptions(order=order, micro_batches=4, transfers=transfers, synchronization=sync)  # type: ignore[arg-type]
                problem = SegmentationProblem(
                    graph, (Level(devices, BANDWIDTH),), True, goal="latency", assumptions=given
                )
                check(segment(problem), min(known.latency_s(p, BANDWIDTH, given) for p in pipelines))


def test_the_least_latency_under_a_memory_limit(make_graph: Fixture, oracle: Callable[[CostGraph], Oracle]) -> None:
    for seed in SEEDS[:40]:
        graph = make_graph(seed, 7)
        known = oracle(graph)
        given = Assumptions(order="1f1b", micro_batches=4)
        pipelines = list(known.pipelines(3, 3))
        held = [known.held(p, given) for p in pipelines]
        limit = sorted(held)[len(held) // 4] + 0.5
        problem = SegmentationProblem(graph, (Level(3, BANDWIDTH),), True, limit, "latency", given)
        values = [known.latency_s(p, BANDWIDTH, given) for p in pipelines]
        check(segment(problem), min(v for v, size in zip(values, held, strict=True) if size <= limit))


# -- two levels -------------------------------------------------------------------------------------------------------


def two_levels(
    known: Oracle, levels: tuple[Level, Level], most: bool, given: Assumptions, limit: float | None
) -> float:
    """Find the least slowest stage of all pipelines of servers whose every stage is a pipeline of devices."""
    inner_level, outer_level = levels
    best = math.inf

    def inner(start: Any, end: Any, after: int, copies: int) -> float:
        least = math.inf
        for chain in known.chains(known.ideals, start, end, inner_level.members, inner_level.members if most else 1):
            worst = 0.0
            for place, (before, reached, m) in enumerate(chain):
                forward, backward, weights, stored = known.sums(reached - before)
                if limit is not None:
                    downstream = after + copies * sum(stage[2] for stage in chain[place + 1 :])
                    admitted = math.ceil(downstream / (m * copies)) + 1
                    held = (admitted + given.gradients + given.optimizer) * weights
                    if held + admitted * (stored + known.cut[before]) > limit:
                        worst = math.inf
                sync = given.synchronized * (m - 1) * weights / (inner_level.bandwidth * m * m)
                moved = [known.cut[i] for i in (before, reached) if i not in (start, end)]
                times = [2 * size / (inner_level.bandwidth * m) for size in moved]
                load = (forward + backward) / m + sync
                load = load + sum(times) if given.transfers == "add" else max([load, *times])
                worst = max(worst, load)
            least = min(least, worst)
        return least

    known_inner: dict[Any, float] = {}
    for chain in known.pipelines(outer_level.members, outer_level.members if most else 1):
        worst = 0.0
        for place, (before, reached, m) in enumerate(chain):
            after = inner_level.members * sum(stage[2] for stage in chain[place + 1 :])
            key = (before, reached, after, m)
            if key not in known_inner:
                known_inner[key] = inner(*key)
            _, _, weights, _ = known.sums(reached - before)
            sync = given.synchronized * (m - 1) * weights / (outer_level.bandwidth * m * m * inner_level.members)
            times = [2 * known.cut[i] / (outer_level.bandwidth * m) for i in (before, reached)]
            load = known_inner[key] / m + sync
            worst = max(worst, load + sum(times) if given.transfers == "add" else max([load, *times]))
        best = min(best, worst)
    return best


@pytest.mark.parametrize("block", range(4))
def test_the_least_bottleneck_of_two_levels(
    block: int, make_graph: Fixture, oracle: Callable[[CostGraph], Oracle]
) -> None:
    limited = 0
    for seed in SEEDS[10 * block : 10 * block + 10]:
        graph = make_graph(seed, 6)
        known = oracle(graph)
        levels = (Level(2, 4 * BANDWIDTH), Level(3, BANDWIDTH))
        for given in (Assumptions(), Assumptions(transfers="add")):
            least = two_levels(known, levels, True, given, None)
            check(segment(SegmentationProblem(graph, levels, True, assumptions=given)), least)
        free = segment(SegmentationProblem(graph, levels, True))
        limit = max(stage.memory_bytes for stage in free.stages) * 0.8
        least = two_levels(known, levels, True, Assumptions(), limit)
        if math.isfinite(least) and limit > 0:
            found = segment(SegmentationProblem(graph, levels, True, limit))
            check(found, least)
            assert max(stage.memory_bytes for stage in found.stages) <= limit
            limited += 1
    assert limited >= 3


def test_one_member_groups_change_nothing(make_graph: Fixture) -> None:
    for seed in SEEDS[:30]:
        graph = make_graph(seed)
        flat = segment(SegmentationProblem(graph, (Level(3, BANDWIDTH),), True))
        for levels in (
            (Level(1, BANDWIDTH), Level(3, BANDWIDTH)),
            (Level(3, BANDWIDTH), Level(1, BANDWIDTH)),
            (Level(1, BANDWIDTH), Level(3, BANDWIDTH), Level(1, BANDWIDTH)),
        ):
            found = segment(SegmentationProblem(graph, levels, True))
            assert found.bottleneck_s == pytest.approx(flat.bottleneck_s, rel=1e-9, abs=1e-11)
