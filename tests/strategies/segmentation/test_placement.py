"""Placement on accelerators and CPUs against all placements of small graphs, and against published figures."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from maniple.process.error import RequestError
from maniple.strategies.dnn_partitioning.max_load import max_load
from maniple.strategies.dnn_partitioning.placement_problem import Placement
from maniple.strategies.dnn_partitioning.sample_latency import finish_s, path_bound_s, sample_latency
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode, Devices
from maniple.strategies.pipeline.profile import read_profile

Ideal = frozenset[int]


def random_training(seed: int, *, backward: bool) -> CostGraph:
    """Make a graph of up to 6 forward nodes, some of them tied by colour, with or without their backward nodes."""
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    nodes, edges = [], []
    ties = {place: rng.choice((place, rng.randrange(count))) for place in range(count)}
    for kind in ("f", "b") if backward else ("f",):
        for place in range(count):
            seconds = rng.choice((0.0, rng.randint(1, 20) * 1e-3))
            nodes.append(
                CostNode(
                    id=f"{kind}{place}",
                    label="",
                    forward_s=seconds if kind == "f" else 0.0,
                    backward_s=seconds if kind == "b" else 0.0,
                    activation_bytes=0,
                    parameter_bytes=0,
                    cpu_s=rng.randint(2, 6) * seconds,
                    transfer_s=rng.randint(0, 6) * 1e-3,
                    device_bytes=float(rng.randint(0, 9)),
                    colour=ties[place],
                    backward=kind == "b",
                    supported=rng.random() < 0.9,
                )
            )
    for a in range(count):
        for b in range(a + 1, count):
            if rng.random() < 0.4:
                edges.append((f"f{a}", f"f{b}"))
                if backward:
                    edges += [(f"b{b}", f"b{a}"), (f"f{a}", f"b{b}")]
    total = sum(node.device_bytes for node in nodes)
    return CostGraph.of(f"training {seed}", nodes, edges, Devices(2, 1, max(9.0, total * rng.choice((0.4, 0.7, 2.0)))))


def chains(ideals: list[Ideal], start: Ideal, end: Ideal, parts: int) -> Iterator[tuple[Ideal, ...]]:
    if start == end:
        yield ()
    elif parts:
        for reached in ideals:
            if start < reached:
                for rest in chains(ideals, reached, end, parts - 1):
                    yield (reached - start, *rest)


def ideals_of(placement: Placement) -> list[Ideal]:
    count = len(placement.atoms)
    subsets = (frozenset(n for n in range(count) if bits >> n & 1) for bits in range(2**count))
    return [s for s in subsets if all(a in s for a, b in placement.edges if b in s)]


def load_of(placement: Placement, atoms: Ideal, *, hosted: bool, overlap: bool = False) -> float:
    """Cost a part from the graph's own nodes and edges."""
    graph = placement.graph
    nodes = {node for atom in atoms for node in placement.atoms[atom].nodes}
    chosen = [graph.nodes[node] for node in nodes]
    if hosted:
        return math.fsum(node.cpu_s or 0.0 for node in chosen)
    if not all(node.supported for node in chosen) or sum(n.device_bytes for n in chosen) > placement.memory_bytes:
        return math.inf
    crossing = {a for a, b in graph.edges if (a in nodes) != (b in nodes)}
    work = math.fsum(node.compute_s for node in chosen)
    moved = math.fsum(graph.nodes[node].transfer_s for node in crossing)
    return max(work, moved) if overlap else work + moved


def brute_force(placement: Placement, *, overlap: bool) -> float:
    best = math.inf
    everything = frozenset(range(len(placement.atoms)))
    devices = placement.accelerators + placement.cpus
    for parts in chains(ideals_of(placement), frozenset(), everything, devices):
        for bits in range(2 ** len(parts)):
            hosted = [bool(bits >> place & 1) for place in range(len(parts))]
            if sum(hosted) <= placement.cpus and len(parts) - sum(hosted) <= placement.accelerators:
                loads = [load_of(placement, p, hosted=h, overlap=overlap) for p, h in zip(parts, hosted, strict=True)]
                best = min(best, max(loads))
    return best


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_least_largest_load(backward: bool, overlap: bool) -> None:
    for seed in range(80):
        placement = Placement.of(random_training(seed, backward=backward))
        least = brute_force(placement, overlap=overlap)
        assert math.isfinite(least)  # the CPU can always take everything
        found = max_load(placement, overlap=overlap)
        assert found.exact
        assert found.value_s == pytest.approx(least, rel=1e-9, abs=1e-12)
        loads = [load_of(placement, frozenset(s.atoms), hosted=s.kind == "cpu", overlap=overlap) for s in found.shares]
        assert max(loads) == pytest.approx(found.value_s, rel=1e-9, abs=1e-12)
        line = max_load(placement, overlap=overlap, states=2)
        assert line.lower_bound_s <= least * (1 + 1e-9)
        assert line.value_s >= least * (1 - 1e-9)


def test_merging_idle_neighbours_loses_nothing() -> None:
    merged = 0
    for seed in range(150):
        graph = random_training(seed, backward=True)
        placement = Placement.of(graph)
        # Without their merging: as many atoms as colours.
        tight = Placement.of(graph, memory_bytes=1e-9)
        assert len(tight.atoms) >= len(placement.atoms)
        if len(tight.atoms) > len(placement.atoms):
            merged += 1
            whole = replace(tight, memory_bytes=placement.memory_bytes)
            assert brute_force(whole, overlap=False) == pytest.approx(brute_force(placement, overlap=False))
    assert merged > 5


def blocks(placement: Placement, left: Ideal) -> Iterator[list[tuple[bool, Ideal]]]:
    """Yield every way of putting atoms into convex blocks on accelerators and single atoms on CPUs."""
    if not left:
        yield []
        return
    first, rest = min(left), sorted(left - {min(left)})
    for rest_of in blocks(placement, left - {first}):
        yield [(True, frozenset({first})), *rest_of]
    for bits in range(2 ** len(rest)):
        block = frozenset([first, *(atom for place, atom in enumerate(rest) if bits >> place & 1)])
        for others in blocks(placement, left - block):
            yield [(False, block), *others]


def finish(placement: Placement, chosen: list[tuple[bool, Ideal]]) -> float:
    """Time blocks that start when all they read is there; infinite where they wait for each other."""
    home = {atom: number for number, (_, block) in enumerate(chosen) for atom in block}
    done: dict[int, float] = {}
    waits = {n: {home[a] for a, b in placement.edges if home[b] == n and home[a] != n} for n in range(len(chosen))}
    while len(done) < len(chosen):
        ready = [n for n in waits if n not in done and waits[n] <= done.keys()]
        if not ready:
            return math.inf
        for n in ready:
            hosted, block = chosen[n]
            done[n] = max((done[w] for w in waits[n]), default=0.0) + load_of(placement, block, hosted=hosted)
    return max(done.values())


def test_one_sample() -> None:
    best_met = 0
    for seed in range(60):
        placement = Placement.of(random_training(seed, backward=False))
        found = sample_latency(placement)
        everything = frozenset(range(len(placement.atoms)))
        least = min(
            finish(placement, chosen)
            for chosen in blocks(placement, everything)
            if sum(not hosted for hosted, _ in chosen) <= placement.accelerators
        )
        assert found.lower_bound_s <= least * (1 + 1e-9)
        assert found.value_s >= least * (1 - 1e-9)
        best_met += found.value_s <= least * (1 + 1e-9)
        assert found.value_s == finish_s(placement, found.shares)
        assert path_bound_s(placement) == found.lower_bound_s
        assert sample_latency(placement, 2).value_s >= least * (1 - 1e-9)
    assert best_met > 40


def test_what_cannot_be_placed() -> None:
    graph = random_training(3, backward=True)
    with pytest.raises(RequestError, match="got backward nodes"):
        sample_latency(Placement.of(graph))
    with pytest.raises(RequestError, match="at least one device"):
        Placement.of(graph, accelerators=0, cpus=0)
    with pytest.raises(RequestError, match="at most as many accelerators as nodes"):
        Placement.of(graph, accelerators=100)
    with pytest.raises(RequestError, match="a profile with devices"):
        Placement.of(replace(graph, devices=None))
    heavy = CostNode("a", "", 1.0, 0.0, 0, 0, cpu_s=1.0, device_bytes=9.0)
    alone = Placement.of(CostGraph.of("heavy", [heavy], [], Devices(1, 0, 4.0)))
    with pytest.raises(RequestError, match="no placement on 1 accelerators of 4 bytes"):
        max_load(alone)
    with pytest.raises(RequestError, match="no placement on 1 accelerators of 4 bytes"):
        sample_latency(alone)


# -- published figures (milliseconds): dnn-partitioning's exact search, its ideals, and its linearised search ----------

PUBLISHED = [
    ("LayerGraphs/bert24_training", 30, 41.7458, 41.7458),
    ("LayerGraphs/resnet50_inference", 242, 33.7747, 33.7747),
    ("LayerGraphs/resnet50_training", 242, 78.6318, 78.6498),
    ("LayerGraphs/gnmt_inference", 17914, 32.9107, 33.0326),
    ("OperatorGraphs/bert_l-3_inference", 1428, 27.9186, 27.9186),
    ("OperatorGraphs/bert_l-3_training", 2774, 65.3031, 65.3031),
    ("OperatorGraphs/bert_l-12_inference", 2906, 147.478, 147.478),
    ("OperatorGraphs/resnet50_training", 258, 255.194, 255.194),
]


@pytest.mark.parametrize(("name", "ideals", "exact", "linear"), PUBLISHED)
def test_published_max_loads(reference_data: Path, name: str, ideals: int, exact: float, linear: float) -> None:
    graph = read_profile(reference_data / "dnn-partitioning" / "throughput-inputs" / f"{name}.json")
    found = max_load(Placement.of(graph))
    assert found.exact
    assert found.states == ideals
    assert float(f"{found.value_s * 1e3:.6g}") == exact
    assert float(f"{found.value_s * 1e3:.6g}") <= linear


@pytest.mark.parametrize(("name", "linear"), [("inference", 51.5519), ("training", 123.930)])
def test_inception_which_the_published_exact_search_does_not_finish(
    reference_data: Path, name: str, linear: float
) -> None:
    folder = reference_data / "dnn-partitioning" / "throughput-inputs" / "LayerGraphs"
    found = max_load(Placement.of(read_profile(folder / f"inceptionv3_{name}.json")))
    assert found.exact
    assert float(f"{found.value_s * 1e3:.6g}") <= linear


@pytest.mark.parametrize(
    ("name", "gap"),
    [
        ("LayerGraphs/gnmt_inference", 0.10),
        ("LayerGraphs/resnet50_inference", 0.20),
        ("OperatorGraphs/bert_l-3_inference", 0.01),
        ("OperatorGraphs/bert_l-12_inference", 0.05),
    ],
)
def test_published_latency_inputs(reference_data: Path, name: str, gap: float) -> None:
    placement = Placement.of(read_profile(reference_data / "dnn-partitioning" / "latency-inputs" / f"{name}.json"))
    found = sample_latency(placement)
    assert 0 < found.lower_bound_s <= found.value_s
    assert found.gap < gap
    used = [share for share in found.shares if share.kind == "accelerator"]
    assert len(used) <= placement.accelerators
    assert all(share.size_bytes <= placement.memory_bytes for share in used)
