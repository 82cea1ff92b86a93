"""The named strategies on the digits network: the plans that they write, as tables."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.placement import configure, follow, node_flops
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.named.model_parallel import balanced_blocks
from maniple.zoo.catalogue import entry

DIRECT = {name: STRATEGIES.lookup(name) for name in STRATEGIES.names() if not STRATEGIES.lookup(name).needs_budget}
NAMES = tuple(name for name, strategy in DIRECT.items() if not strategy.pipelines)
MACHINES = ("cpu:1", "cpu:2", "cpu:3", "cpu:4", "cpu:2x1", "cpu:2x2", "cpu:3x1")


def search(name: str, graph: Graph, machine: Machine, seed: int = 0) -> Plan:
    """What a driver does."""
    strategy = STRATEGIES.lookup(name)()
    state = strategy.init(Problem(graph, machine, seed=seed))
    if isinstance(strategy, AbstractDirectStrategy):
        with pytest.raises(RequestError, match="no plan before the first step"):
            strategy.result(state)
    while not strategy.terminate(state):
        state = strategy.step(state)
    plan = strategy.result(state)
    assert plan.strategy == name
    return plan


def table(plan: Plan) -> list[str]:
    """The plan's table, one line per operator."""
    return [f"{name:13} {split:5} {processors}" for name, split, _, processors in plan.table()]


TABLES = {
    "data_parallel": """
        conv2d        b=2   0 1
        relu          b=2   0 1
        conv2d_1      b=2   0 1
        relu_1        b=2   0 1
        max_pool2d    b=2   0 1
        flatten       b=2   0 1
        linear        b=2   0 1
        relu_2        b=2   0 1
        linear_1      b=2   0 1
        cross_entropy b=2   0 1
    """,
    "model_parallel": """
        conv2d        whole 0
        relu          whole 0
        conv2d_1      whole 0
        relu_1        whole 1
        max_pool2d    whole 1
        flatten       whole 1
        linear        whole 1
        relu_2        whole 1
        linear_1      whole 1
        cross_entropy whole 1
    """,
    "expert": """
        conv2d        b=2   0 1
        relu          b=2   0 1
        conv2d_1      b=2   0 1
        relu_1        b=2   0 1
        max_pool2d    b=2   0 1
        flatten       b=2   0 1
        linear        n=2   0 1
        relu_2        c=2   0 1
        linear_1      n=2   0 1
        cross_entropy b=2   0 1
    """,
    "spatial": """
        conv2d        y=2   0 1
        relu          y=2   0 1
        conv2d_1      y=2   0 1
        relu_1        y=2   0 1
        max_pool2d    y=2   0 1
        flatten       b=2   0 1
        linear        b=2   0 1
        relu_2        b=2   0 1
        linear_1      b=2   0 1
        cross_entropy b=2   0 1
    """,
}


@pytest.mark.parametrize("name", list(TABLES))
def test_the_plan_for_two_processors(name: str, digits: Graph) -> None:
    expected = [line.strip() for line in TABLES[name].strip().splitlines()]
    assert table(search(name, digits, Machine.preset("cpu:2x1"))) == expected


@pytest.mark.parametrize("name", list(TABLES))
def test_the_documentation_shows_the_same_plan(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
    section = page.split(f"### {name}\n")[1].split("\n##")[0]
    shown = section.split("```text\n")[1].split("```")[0]
    assert shown.strip().splitlines() == [line.strip() for line in TABLES[name].strip().splitlines()]


@pytest.mark.parametrize(("name", "machine"), list(product(NAMES, MACHINES)))
def test_every_plan_is_legal_and_comes_out_the_same_twice(name: str, machine: str, digits: Graph) -> None:
    for graph in (digits, digits.with_batch(3), digits.with_batch(1)):
        preset = Machine.preset(machine)
        plan = search(name, graph, preset)
        plan.validate(graph, preset)
        assert plan == search(name, graph, preset)
        assert (plan.graph, plan.machine) == (graph.fingerprint(), preset.fingerprint())


@pytest.mark.parametrize("name", ["data_parallel", "expert", "spatial", "model_parallel"])
def test_all_processors_work_where_there_is_enough_to_do(name: str, digits: Graph) -> None:
    plan = search(name, digits, Machine.preset("cpu:4"))
    assert plan.processors_used() == (0, 1, 2, 3)


def test_the_sample_split_is_at_most_the_batch(digits: Graph) -> None:
    graph = digits.with_batch(3)
    plan = search("data_parallel", graph, Machine.preset("cpu:4"))
    assert {operator.split() for _, operator in plan.operators} == {"b=3"}
    assert plan.processors_used() == (0, 1, 2)


def test_the_height_split_is_at_most_the_height(digits: Graph) -> None:
    machine = Machine.preset("cpu:6")
    plan = search("spatial", digits, machine)
    assert plan.operator("conv2d").split() == "y=6"
    assert plan.operator("max_pool2d").split() == "y=4"
    plan.validate(digits, machine)


def test_the_expert_keeps_dense_weights_where_they_are_used(digits: Graph) -> None:
    plan = search("expert", digits, Machine.preset("cpu:4"))
    assert plan.weight("linear.weight") == WeightPlan((4, 1), (0, 1, 2, 3))
    assert plan.weight("linear.bias") == WeightPlan((4,), (0, 1, 2, 3))
    assert plan.weight("linear_1.weight") == WeightPlan((4, 1), (0, 1, 2, 3))
    # Every processor uses the whole weight of a convolution: it is spread along its largest dimension.
    assert plan.weight("conv2d_1.weight") == WeightPlan((4, 1, 1, 1), (0, 1, 2, 3))


def test_the_expert_gives_every_host_all_layers_of_a_recurrent_network() -> None:
    graph = model("rnnlm", batch=4, **entry("rnnlm").reduced)
    plan = search("expert", graph, Machine.preset("k80x8"))
    rows = {name: (split, processors) for name, split, _, processors in plan.table()}
    assert {name: rows[name] for name in ("embedding", "lstm.layers.0", "lstm.layers.1", "classifier")} == {
        "embedding": ("b=2", "0 4"),
        "lstm.layers.0": ("b=2", "1 5"),
        "lstm.layers.1": ("b=2", "2 6"),
        "classifier": ("b=2", "3 7"),
    }
    assert rows["lstm.layers.0_1"] == rows["lstm.layers.0"]
    plan.validate(graph, Machine.preset("k80x8"))


def test_model_parallelism_keeps_each_weight_with_its_operator(digits: Graph) -> None:
    plan = search("model_parallel", digits, Machine.preset("cpu:3"))
    for name, weight in plan.weights:
        operator = plan.operator(name.split(".")[0])
        assert weight.processors == operator.processors
        assert set(weight.degrees) == {1}
    assert plan.processors_used() == (0, 1, 2)


def test_convolutions_cost_what_their_products_cost(digits: Graph) -> None:
    # One multiplication and one addition for each of 64 x 16 x 8 x 8 results and 8 x 3 x 3 products, forward.
    forward = 2 * 64 * 16 * 8 * 8 * 8 * 3 * 3
    assert 2.5 * forward < node_flops(digits, digits.node("conv2d_1")) < 3.5 * forward


@settings(max_examples=200, deadline=None)
@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=7), parts=st.integers(1, 5))
def test_balanced_blocks_are_the_best_contiguous_ones(costs: list[int], parts: int) -> None:
    blocks = balanced_blocks(costs, parts)
    count = min(parts, len(costs))
    assert blocks == tuple(sorted(blocks))
    assert set(blocks) == set(range(count))

    def largest(assignment: tuple[int, ...]) -> int:
        return max(sum(c for c, b in zip(costs, assignment, strict=True) if b == block) for block in range(parts))

    every = (tuple(sorted(candidate)) for candidate in product(range(parts), repeat=len(costs)))
    assert largest(blocks) == min(largest(candidate) for candidate in every)


def test_following_a_producer_cut_in_two_dimensions_with_replicas(digits: Graph) -> None:
    machine = Machine.preset("cpu:4")
    conv = digits.node("conv2d_1")
    first = configure(digits, conv, {"b": 2, "y": 2}, machine)
    relu = follow(digits, digits.node("relu_1"), {"conv2d_1": first})
    assert relu is not None
    assert (relu.split(), relu.processors) == ("b=2 y=2", (0, 1, 2, 3))
    doubled = OperatorPlan(first.degrees, (0, 1, 1, 2, 2, 3, 3, 0), replicas=2)
    pool = follow(digits, digits.node("max_pool2d"), {"relu_1": OperatorPlan(relu.degrees, doubled.processors, 2)})
    assert pool is not None
    assert (pool.split(), pool.processors, pool.replicas) == ("b=2 y=2", (0, 1, 1, 2, 2, 3, 3, 0), 2)


def test_following_a_split_contraction_takes_the_first_part(digits: Graph) -> None:
    linear = digits.node("linear")
    degrees = {"n": 2, "k": 2}
    full = tuple((factor.name, degrees.get(factor.name, 1)) for factor in digits.bound(linear).factors)
    relu = follow(digits, digits.node("relu_2"), {"linear": OperatorPlan(full, (3, 2, 1, 0))})
    assert relu is not None
    assert (relu.split(), relu.processors) == ("c=2", (3, 1))


def test_what_cannot_be_followed() -> None:
    g = Graph("g")
    x, y = g.input("x", (4, 1, 5, 5)), g.input("y", (4,), dtype="int64")
    h = g.max_pool2d(g.conv2d(g.relu(x), 2, 3, padding=1), 4)
    g.loss(g.cross_entropy(g.flatten(h), y))
    machine = Machine.preset("cpu:4")
    conv = configure(g, g.node("conv2d"), {"y": 2}, machine)
    assert follow(g, g.node("relu"), {}) is None
    assert follow(g, g.node("conv2d"), {"relu": configure(g, g.node("relu"), {}, machine)}) is None
    # The pool has one row only: it cannot be cut in two.
    assert follow(g, g.node("max_pool2d"), {"conv2d": conv}) is None
    with pytest.raises(RequestError, match="there is no factor 'z'"):
        configure(g, g.node("conv2d"), {"z": 2}, machine)


def test_points_beyond_the_processors_come_in_blocks(digits: Graph) -> None:
    plan = configure(digits, digits.node("relu"), {"b": 5}, Machine.preset("cpu:2"))
    assert plan.processors == (0, 0, 0, 1, 1)


PLANNING = """
import sys
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem

g = Graph()
g.loss(g.cross_entropy(g.linear(g.input("x", (4, 3)), 5), g.input("y", (4,), dtype="int64")))
for name in sys.argv[1:]:
    strategy = STRATEGIES.lookup(name)()
    machine = Machine.preset("cpu:2")
    strategy.result(strategy.step(strategy.init(Problem(g, machine)))).validate(g, machine)
sys.exit("torch" in sys.modules)
"""


def test_planning_does_not_import_torch() -> None:
    timed = {"optcnn", "pareto"}  # they price launches, whose bodies are torch's
    untimed = [name for name in NAMES if name not in timed]
    done = subprocess.run([sys.executable, "-c", PLANNING, *untimed], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plan_for_many_processors_is_explained_in_a_few_short_lines() -> None:
    graph = Graph("deep")
    x, y = graph.input("x", (64, 8)), graph.input("y", (64,), dtype="int64")
    for layer in range(12):
        x = graph.relu(graph.linear(x, 8, name=f"blocks.{layer}.linear"), name=f"blocks.{layer}.relu")
    graph.loss(graph.cross_entropy(x, y))
    plan = STRATEGIES.lookup("data_parallel")().plan(Problem(graph, Machine.preset("h100x64")))
    assert plan.explain().splitlines()[1:4] == [
        "blocks.0-11.linear: b=64 on processors 0-63",
        "blocks.0-11.relu: b=64 on processors 0-63",
        "cross_entropy: b=64 on processors 0-63",
    ]
    assert len(plan.table()) == 25
