"""The lower bound against the times of plans: none may be faster."""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import median

import pytest

import maniple as mp
from maniple.operators.rules.configuration import OperatorPlan
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.bound.lower_bound import terms_ns
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator

SEEDS = range(25)


def dense() -> mp.Graph:
    """Layers, a skip, and a loss whose classes can be split."""
    graph = mp.Graph("dense")
    x, y = graph.input("x", (6, 5)), graph.input("y", (6,), dtype="int64")
    hidden = graph.relu(graph.linear(x, 7))
    graph.loss(graph.cross_entropy(graph.linear(graph.add(hidden, graph.linear(hidden, 7)), 4), y))
    return graph


def convolved() -> mp.Graph:
    """An image, cut with halos."""
    graph = mp.Graph("convolved")
    x, y = graph.input("x", (4, 2, 6, 6)), graph.input("y", (4,), dtype="int64")
    image = graph.max_pool2d(graph.relu(graph.conv2d(x, 3, 3, padding=1)), 2)
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(image), 5), y))
    return graph


@pytest.mark.parametrize("name", ["cpu:1", "cpu:3", "cpu:2x1", "p100x4"])
@pytest.mark.parametrize("graph", [dense(), convolved()], ids=["dense", "convolved"])
def test_no_plan_is_faster_than_the_bound(graph: mp.Graph, name: str) -> None:
    machine = mp.Machine.preset(name)
    bound_ns = lower_bound_s(graph, machine) * 1e9
    assert bound_ns > 0
    plans = [STRATEGIES.lookup(strategy)().plan(Problem(graph, machine)) for strategy in ("data_parallel", "expert")]
    plans += [STRATEGIES.lookup("random")().plan(Problem(graph, machine, seed=seed)) for seed in SEEDS]
    for plan in plans:
        assert Simulation(graph, machine, plan).makespan_ns >= bound_ns - 1


def test_the_bound_is_below_what_is_found_for_drawn_graphs_and_near_it(repository: Path) -> None:
    """Some of the graphs of the benchmark, which tries 1000."""
    table = runpy.run_path(str(repository / "benchmarks" / "lower_bound.py"))
    shares = [table["share"](seed, proposals=15) for seed in range(12)]
    assert max(shares) <= 1
    assert median(shares) >= 0.4


def cut(
    graph: mp.Graph, machine: mp.Machine, degrees: dict[str, dict[str, int]], at: dict[str, tuple[int, ...]]
) -> int:
    """Nanoseconds of a step in which some operators are cut, and run, as is said, and all others on processor 0."""
    operators = []
    for node in graph.nodes:
        named = degrees.get(node.name, {})
        full = tuple((factor.name, named.get(factor.name, 1)) for factor in graph.bound(node).factors)
        operators.append((node.name, OperatorPlan(full, at.get(node.name, (0,)))))
    return Simulation(graph, machine, complete(Problem(graph, machine), "cut", tuple(operators))).makespan_ns


@pytest.mark.parametrize(("batch", "side", "stride", "parts"), [(64, 2048, 64, 32), (16, 1025, 1024, 2)])
def test_a_window_that_steps_over_rows_reads_fewer_of_them_in_parts(
    batch: int, side: int, stride: int, parts: int
) -> None:
    graph = mp.Graph("strided")
    x, y = graph.input("x", (batch, 3, side, side)), graph.input("y", (batch,), dtype="int64")
    image = graph.conv2d(x, 1, kernel_size=1, stride=stride, name="conv")
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(image), 4), y))
    machine = mp.Machine.preset(f"p100x{parts}")
    step_ns = cut(graph, machine, {"conv": {"y": parts}}, {"conv": tuple(range(parts))})
    whole_ns = cut(graph, machine, {}, {})
    assert lower_bound_s(graph, machine) * 1e9 <= step_ns < whole_ns / parts  # the parts read less than the whole


def test_who_reads_a_part_does_not_wait_for_all() -> None:
    """Eight layers into a concatenation of which a slice takes the other half: nothing waits for the layers."""
    graph = mp.Graph("sliced")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    long = x
    for number in range(8):
        long = graph.linear(long, 4, name=f"long{number}")
    joined = graph.concat([long, graph.linear(x, 4, name="short")], 1, name="joined")
    graph.loss(graph.cross_entropy(graph.slice(joined, 1, 4, 8, name="slice"), y, name="loss"))
    machine = mp.Machine.preset("cpu:8")
    at = {f"long{number}": (number % 5,) for number in range(8)} | dict.fromkeys(("short", "slice", "loss"), (7,))
    step_ns = cut(graph, machine, {"joined": {"c": 2}}, at | {"joined": (5, 7)})
    assert lower_bound_s(graph, machine) * 1e9 <= step_ns
    # All wait where the slice takes the layers' half: eight layers there and back, and what is around them.
    assert step_ns < 26 * machine.processors[0].launch_s * 1e9


def test_a_plan_may_have_more_parts_than_processors() -> None:
    """Two layers of a wide batch on two processors: the path counts one sample, whatever a processor's share is."""
    graph = mp.Graph("fine")
    x, y = graph.input("x", (3, 5000)), graph.input("y", (3,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 4000, name="layer"), y))
    machine = mp.Machine.preset("cpu:2x1")
    terms = terms_ns(graph, machine)
    for parts in (2, 3, 48, 600):
        step_ns = cut(graph, machine, {"layer": {"n": parts}}, {"layer": tuple(part % 2 for part in range(parts))})
        assert max(terms.values()) <= step_ns
    assert terms["path"] < terms["work"]


@pytest.mark.parametrize("name", ["cpu:2", "p100x2"])
def test_splitting_an_exchange_takes_nothing_off_the_bound(name: str) -> None:
    """Attention and norms as primitives, cut in every way that random plans find."""
    graph = mp.Graph("composites")
    x, y = graph.input("x", (2, 4, 6, 8)), graph.input("y", (2,), dtype="int64")
    hidden = graph.scaled_dot_product_attention(x, x, graph.linear(x, 8))
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(graph.layer_norm(hidden, 8)), 3), y))
    machine = mp.Machine.preset(name)
    bound_ns = lower_bound_s(graph, machine) * 1e9
    for seed in range(20):
        plan = STRATEGIES.lookup("random")().plan(Problem(graph, machine, seed=seed))
        assert Simulation(graph, machine, plan).makespan_ns >= bound_ns - 1
