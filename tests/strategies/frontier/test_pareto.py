"""The strategy: its space, its model against OptCNN's, and its points, which run."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

import maniple as mp
from maniple.runtime.control.world import World
from maniple.strategies.frontier import pareto
from maniple.strategies.frontier.additive_model import additive_model
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.gap_search import solve
from maniple.strategies.frontier.pareto import Pareto, ParetoState, rank_correlation
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.optcnn import OptCNN
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


def graph_of(batch: int = 8, width: int = 12, layers: int = 2) -> mp.Graph:
    graph = mp.Graph("stack")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    for _ in range(layers):
        x = graph.add(x, graph.relu(graph.linear(x, width)))
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph


def finished(graph: mp.Graph, machine: mp.Machine) -> ParetoState:
    strategy = Pareto()
    state = strategy.init(Problem(graph, machine))
    while not strategy.terminate(state):
        state = strategy.step(state)
    return state


def test_the_choices_are_the_table_of_the_docstring() -> None:
    for contracted, more in ((5, []), (4, [(1, 1, 2), (1, 1, 4), (1, 2, 2), (2, 1, 2)])):
        graph = mp.Graph("linear")
        x, y = graph.input("x", (6, contracted)), graph.input("y", (6,), dtype="int64")
        graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
        found = full_splits(Space.of(graph, 4), 0)
        whole = [((1, 1, 1), 4), ((1, 2, 1), 2), ((1, 4, 1), 1), ((2, 1, 1), 2), ((2, 2, 1), 1)]
        assert sorted((c.degrees, c.replicas) for c in found) == sorted([*whole, *((d, 1) for d in more)])
        assert all(4 % prod(choice.degrees) == 0 for choice in found)


def test_in_the_same_space_the_fastest_point_is_optcnns_plan() -> None:
    graph, machine = graph_of(), mp.Machine.preset("p100x4")
    strategy = OptCNN()
    state = strategy.init(Problem(graph, machine))
    while not strategy.terminate(state):
        state = strategy.step(state)
    assert state.found is not None
    model, _, _ = additive_model(state.problem, state.space, state.choices)
    points = solve(model, 0.0, 1).points
    terms = len(model.own) + len(model.edges)
    # Each term is rounded to a nanosecond.
    assert points[-1].ticks == pytest.approx(1e9 * state.found.cost, abs=terms)
    seconds = sum(float(state.cost.operator(number)[choice]) for number, choice in enumerate(points[-1].chosen)) + sum(
        float(state.cost.edge(a, b)[points[-1].chosen[a], points[-1].chosen[b]]) for a, b in state.cost.edges
    )
    assert seconds == pytest.approx(state.found.cost, abs=1e-9 * terms)


@pytest.fixture(scope="module")
def state() -> ParetoState:
    return finished(graph_of(), mp.Machine.preset("p100x4"))


def test_every_point_is_what_the_simulator_says_of_its_plan(state: ParetoState) -> None:
    found = Pareto().frontier(state)
    assert found.exact
    assert found.devices == (4,)
    for one, other in zip(found.points, found.points[1:], strict=False):
        assert one.peak_memory_bytes < other.peak_memory_bytes
        assert one.step_s > other.step_s
    graph, machine = state.problem.graph, state.problem.machine
    for point in found:
        simulation = Simulation(graph, machine, point.plan)
        assert round(point.step_s * 1e9) == simulation.makespan_ns
        assert point.peak_memory_bytes == max(simulation.allocated_bytes() or ())
        assert point.plan.predicted.step_s == point.step_s


def test_both_ends_of_the_models_frontier_are_simulated(state: ParetoState) -> None:
    assert state.solution is not None
    models = {(point.model_bytes, round(1e9 * point.model_s)) for point in state.simulated}
    for end in (state.solution.points[0], state.solution.points[-1]):
        assert (end.memory, end.ticks) in models
    assert len(state.simulated) == min(64, len(state.solution.points))


def test_it_says_how_much_of_the_models_frontier_was_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some more points three are simulated; exactness is the model's all the same."""
    monkeypatch.setattr(pareto, "SIMULATED", 3)
    found = mp.search(graph_of(), mp.Machine.preset("p100x8"), strategy="pareto", objective="pareto")
    assert (found.exact, found.simulated) == (True, 3)
    assert found.model_points > 3
    assert 1 <= len(found) <= 3


def test_a_search_that_ended_before_is_not_exact(state: ParetoState) -> None:
    assert state.solution is not None
    early = Pareto().frontier(replace(state, simulated=state.simulated[:1], waiting=state.solution.points[:1]))
    assert (early.exact, early.model_points, early.simulated) == (False, len(state.solution.points), 1)


def test_the_same_graph_gives_the_same_frontier(state: ParetoState) -> None:
    again = mp.search(state.problem.graph, state.problem.machine, strategy="pareto", objective="pareto")
    assert again == Pareto().frontier(state)


def test_one_plan_is_the_fastest_or_the_leanest_point(state: ParetoState) -> None:
    graph, machine = state.problem.graph, state.problem.machine
    points = Pareto().frontier(state).points
    fast, lean = (mp.search(graph, machine, strategy="pareto", objective=goal) for goal in ("time", "memory"))
    assert isinstance(fast, mp.Plan)
    assert isinstance(lean, mp.Plan)
    assert (fast.predicted.step_s, lean.predicted.memory_bytes) == (points[-1].step_s, points[0].peak_memory_bytes)
    assert dict(dict(fast.explanation)[""])["proposals"] == len(state.simulated)


def test_a_graph_of_one_operator_has_a_frontier_or_is_refused() -> None:
    graph, machine = mp.Graph("one"), mp.Machine.cpu(2)
    x, y = graph.input("x", (4, 6)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(x, y))
    with pytest.raises(mp.RequestError, match="there is nothing to train"):
        mp.search(graph, machine, strategy="pareto", objective="pareto")
    assert len(mp.search(graph_of(layers=0), machine, strategy="pareto", objective="pareto")) >= 1


def test_points_give_the_losses_of_one_processor() -> None:
    """Law 1, for the leanest, the knee and the fastest plan on four processors of this process."""
    import torch

    graph = graph_of()
    found = mp.search(graph, mp.Machine.cpu(4), strategy="pareto", objective="pareto")
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 12), "y": torch.randint(0, 4, (8,))}
    losses = []
    for plan in (mp.search(graph, mp.Machine.cpu(1)), found.points[0].plan, found.knee(), found.points[-1].plan):
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1, momentum=0.9), world=World.solo(processors=4)) as trainer:
            losses.append([float(trainer.step(**batch)) for _ in range(3)])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)


def test_results_computed_again_give_leaner_points_that_run() -> None:
    """Law 1, for the leanest plan of a frontier that computes again, and needs less for it."""
    import torch

    graph, machine = graph_of(batch=64, layers=4), mp.Machine.cpu(2)
    kept, again = (
        mp.search(graph, machine, strategy="pareto", objective="pareto", space=space) for space in ((), ("recompute",))
    )
    lean = again.points[0]
    assert lean.peak_memory_bytes < 0.9 * kept.points[0].peak_memory_bytes
    assert dict(dict(lean.plan.explanation)[""])["space"] == "recompute"
    assert any(operator.recompute for _, operator in lean.plan.operators)
    assert not any(operator.recompute for _, operator in again.points[-1].plan.operators)
    torch.manual_seed(0)
    batch = {"x": torch.randn(64, 12), "y": torch.randint(0, 4, (64,))}
    losses = []
    for plan in (mp.search(graph, mp.Machine.cpu(1)), lean.plan):
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1, momentum=0.9), world=World.solo(processors=2)) as trainer:
            losses.append([float(trainer.step(**batch)) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_strategy_is_asked_for_what_it_knows() -> None:
    graph, machine = graph_of(), mp.Machine.cpu(2)
    with pytest.raises(mp.RequestError, match="does not know the objective 'pareto', but time; ask strategy 'pareto'"):
        mp.search(graph, machine, strategy="optcnn", objective="pareto")
    with pytest.raises(mp.RequestError, match="'optcnn' does not choose 'recompute'; strategy 'pareto' chooses cube"):
        mp.search(graph, machine, strategy="optcnn", space=["recompute"])
    with pytest.raises(mp.RequestError, match="does not choose 'recmpute'; did you mean 'recompute'"):
        mp.search(graph, machine, strategy="pareto", space="recmpute")
    with pytest.raises(mp.RequestError, match="objective 'speed' is no choice"):
        mp.search(graph, machine, strategy="pareto", objective="speed")
    with pytest.raises(mp.RequestError, match="one plan, no frontier"):
        OptCNN().frontier(OptCNN().init(Problem(graph, machine)))
    with pytest.raises(mp.RequestError, match="no plan was simulated yet"):
        Pareto().result(Pareto().init(Problem(graph, machine)))


def test_rank_correlation_is_kendalls() -> None:
    """Of (1, 2, 3, 4) and (1, 3, 2, 4) one pair of six is in another order."""
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert rank_correlation([1, 2, 3], [6, 5, 4]) == -1.0
    assert rank_correlation([1, 1], [2, 3]) is None
