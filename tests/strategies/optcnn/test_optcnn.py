"""OptCNN against trying every plan under its own cost, and what its cost is made of."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.elimination import total
from maniple.strategies.optcnn.optcnn import OptCNN, OptCNNState
from maniple.strategies.optcnn.placed_operators import PlacedOperators
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator

MACHINES = ("cpu:2x1", "cpu:3x1", "p100x4")


@st.composite
def graphs(draw: st.DrawFn) -> mp.Graph:
    """Three or four operators: layers and their activations, in a chain or with a branch that joins again."""
    graph = mp.Graph("drawn")
    batch, width = draw(st.sampled_from([2, 4, 6])), draw(st.sampled_from([3, 4]))
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    hidden = graph.linear(x, width)
    match draw(st.sampled_from(["layer", "skip", "pointwise"])):
        case "layer":
            hidden = graph.linear(hidden, width, bias=False)
        case "skip":
            hidden = graph.add(hidden, graph.relu(hidden))
        case _:
            hidden = graph.relu(hidden)
    graph.loss(graph.cross_entropy(hidden, y))
    return graph


def finished(graph: mp.Graph, machine: mp.Machine) -> OptCNNState:
    strategy = OptCNN()
    state = strategy.init(Problem(graph, machine))
    while not strategy.terminate(state):
        state = strategy.step(state)
    return state


@settings(max_examples=12)
@given(graphs(), st.sampled_from(MACHINES))
def test_no_plan_of_its_moves_has_a_lower_cost(graph: mp.Graph, name: str) -> None:
    state = finished(graph, mp.Machine.preset(name))
    operators = [state.cost.operator(number) for number in range(len(state.choices))]
    edges = {edge: state.cost.edge(*edge) for edge in state.cost.edges}
    every = product(*(range(len(choices)) for choices in state.choices))
    assert state.found is not None
    assert state.found.exact
    assert state.found.cost == pytest.approx(min(total(chosen, operators, edges) for chosen in every))


def test_the_choices_are_equal_splits_into_divisors_of_the_processors() -> None:
    graph = mp.Graph("linear")
    x, y = graph.input("x", (6, 5)), graph.input("y", (6,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    factors = graph.bound(graph.nodes[0]).factors
    assert [(f.name, f.extent, f.reduction) for f in factors] == [("b", 6, False), ("n", 4, False), ("k", 5, True)]
    assert equal_splits(factors, 4) == ((1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 1, 1), (2, 2, 1), (3, 1, 1))
    state = OptCNN().init(Problem(graph, mp.Machine.preset("cpu:4")))
    assert [prod(choice.degrees) for choice in state.choices[0]] == [1, 2, 4, 2, 4]
    assert all(choice.start == 0 and choice.stride == 1 and choice.replicas == 1 for choice in state.choices[0])


def test_an_operator_turns_whose_backward_pass_reads_what_its_forward_pass_wrote() -> None:
    """A relu reads its own result, cross-entropy what it saved; a layer reads its operands alone."""
    graph = stack(1, 4, 3)
    problem = Problem(graph, mp.Machine.preset("cpu:2"))
    operators = PlacedOperators(problem, Space.of(graph, 2), OptCNN().init(problem).choices)
    assert [operators.turns(node.id) for node in graph.nodes] == [False, True, True]


def stack(layers: int, batch: int, width: int) -> mp.Graph:
    """Linear layers and their activations, all alike."""
    graph = mp.Graph("stack")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    for _ in range(layers):
        x = graph.relu(graph.linear(x, width))
    graph.loss(graph.cross_entropy(x, y))
    return graph


def test_an_old_state_steps_as_it_did() -> None:
    """Each state on the way is stepped again when the search is over: while tables are made, and in the elimination."""
    graph = stack(layers=3, batch=8, width=6)
    strategy = OptCNN()
    passed = [strategy.init(Problem(graph, mp.Machine.preset("cpu:4")))]
    while not strategy.terminate(passed[-1]):
        passed.append(strategy.step(passed[-1]))

    def told(state: OptCNNState) -> object:
        left = None if state.elimination is None else sorted(state.elimination.widths.items())
        return state.made, left, state.found, state.plan

    before = [told(state) for state in passed]
    assert sum(state.elimination is None for state in passed) > 2
    assert sum(state.elimination is not None for state in passed) > len(graph.nodes)
    assert [told(strategy.step(state)) for state in passed[:-1]] == before[1:]
    assert [told(state) for state in passed] == before


def test_what_stays_where_it_is_costs_no_transfer() -> None:
    """Two operators cut alike hand over nothing; a change from samples to features moves what the tiles lack."""
    graph = mp.Graph("pair")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.relu(graph.linear(x, 4)), y))
    state = finished(graph, mp.Machine.preset("cpu:2x1"))
    table = state.cost.edge(0, 1)
    degrees = [[choice.degrees for choice in choices] for choices in state.choices]
    for one, mine in enumerate(degrees[0]):
        for other, theirs in enumerate(degrees[1]):
            assert (table[one, other] == 0) == (mine[:2] == theirs), (mine, theirs)


def test_one_processor_costs_what_it_computes() -> None:
    """Alone on one processor nothing overlaps and nothing moves: the cost is the simulated time without its ends."""
    graph = mp.Graph("alone")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    machine = mp.Machine.preset("cpu:1")
    state = finished(graph, machine)
    assert state.plan is not None
    assert state.found is not None
    rows = Simulation(graph, machine, state.plan).predict().critical_path
    own = sum(end - start for name, start, end in rows if ".input" not in name and ".fetch" not in name)
    assert state.found.cost * 1e9 == pytest.approx(own)


def test_layers_that_are_alike_share_their_tables() -> None:
    cost = OptCNN().init(Problem(stack(layers=5, batch=4, width=4), mp.Machine.preset("cpu:2x1"))).cost
    assert cost.operator(2) is cost.operator(4)
    assert cost.edge(2, 3) is cost.edge(4, 5)
    alike = {tuple(map(tuple, cost.edge(*edge).tolist())) for edge in cost.edges}
    assert len(alike) < len(cost.edges)
    assert cost.fill(10**6)
    assert cost.entries == sum(table.size for table in {id(cost.edge(*e)): cost.edge(*e) for e in cost.edges}.values())


def test_a_plan_says_both_its_costs_and_whether_it_is_exact() -> None:
    graph = mp.Graph("said")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 6)), 4), y))
    machine = mp.Machine.preset("cpu:2x1")
    plan = mp.search(graph, machine, strategy="optcnn")
    told = dict(dict(plan.explanation)[""])
    assert told["exact"] is True
    assert told["search"] == "the least additive cost"
    assert told["simulated_s"] == plan.predicted.step_s
    assert round(plan.predicted.step_s * 1e9) == Simulation(graph, machine, plan).makespan_ns
    assert isinstance(told["additive_cost_s"], float)
    assert told["additive_cost_s"] > 0


def test_a_budget_that_ends_before_the_tables_gives_the_data_parallel_plan() -> None:
    graph = mp.Graph("short")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 6), y))
    problem, strategy = Problem(graph, mp.Machine.preset("cpu:2")), OptCNN()
    plan = strategy.result(strategy.init(problem))
    assert plan.strategy == "optcnn"
    assert "this is the data-parallel plan" in str(dict(dict(plan.explanation)[""])["search"])
    assert plan.operators == mp.search(graph, problem.machine).operators


def test_values_of_which_others_write_a_part_are_priced() -> None:
    """Pieces of one tensor go to different layers: each contributes a part of its gradient."""
    from maniple.models import model

    state = finished(model("rnnlm", 4, words=11, steps=2, width=8, chunk=1), mp.Machine.preset("cpu:2x1"))
    assert state.found is not None
    assert state.found.exact
