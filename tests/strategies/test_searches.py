"""Hill climbing, policy gradient and all strategies together, on graphs that can be checked from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import pytest

import maniple as mp
from maniple.operators.plan import Predicted
from maniple.regions.error import RequestError
from maniple.regions.rectangle import Rect
from maniple.runtime.launch import Launch
from maniple.runtime.roofline import task_ns
from maniple.strategies import auto
from maniple.strategies.auto import CHEAP, SEARCHES, Auto, AutoState, Entrant
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurement, Measurements
from maniple.strategies.data_parallel import DataParallel
from maniple.strategies.reinforce import RATE, Reinforce, placement, probabilities, score
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.space import Space
from maniple.strategies.strategy import AbstractStrategy, Problem

if TYPE_CHECKING:
    from maniple.strategies.cost_model.cost_model import CostModel

pytestmark = pytest.mark.timeout(900)  # a new machine compiles the simulator first


def chain(width: int = 8) -> mp.Graph:
    graph = mp.Graph("chain")
    x, y = graph.input("x", (4, width)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, width)), 4), y))
    return graph


def told(plan: mp.Plan) -> dict[str, object]:
    return dict(dict(plan.explanation)[""])


def test_a_climb_ends_where_no_single_change_helps() -> None:
    graph, machine = chain(64), mp.Machine.preset("cpu:2")
    plan = mp.search(graph, machine, strategy="hill_climb", proposals=10**6)
    assert told(plan)["search"] == "locally optimal"
    simulation, space = Simulation(graph, machine, plan), Space.of(graph, 2)
    for name, own in zip(space.names, space.operators, strict=True):
        for choice in own.choices():
            assert simulation.propose({name: own.plan(choice)}) * 1e-9 >= plan.predicted.step_s
            simulation.reject()


def test_the_update_is_the_gradient_of_the_expected_reward() -> None:
    """The mean of reward times score over all placements is the derivative of the mean reward."""
    rng = np.random.default_rng(3)
    logits, rewards = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))

    def expected(given: np.ndarray) -> float:
        likely = probabilities(given)
        return sum(likely[0, a] * likely[1, b] * rewards[a, b] for a, b in product(range(3), repeat=2))

    likely = probabilities(logits)
    found = sum(
        likely[0, a] * likely[1, b] * rewards[a, b] * score(likely, (a, b)) for a, b in product(range(3), repeat=2)
    )
    for place in product(range(2), range(3)):
        nudge = np.zeros_like(logits)
        nudge[place] = 1e-6
        assert found[place] == pytest.approx((expected(logits + nudge) - expected(logits - nudge)) / 2e-6, abs=1e-8)


def test_the_table_of_the_docstring() -> None:
    """Reward -2 after a baseline of -3, with equal chances for two groups on two processors."""
    likely = probabilities(np.zeros((2, 2)))
    a = RATE / 3
    assert RATE * (-2 - -3) / 3 * score(likely, (0, 1)) == pytest.approx(np.array([[a / 2, -a / 2], [-a / 2, a / 2]]))


def test_the_policy_learns_the_fastest_placement() -> None:
    """Links are slow: whatever is drawn first, in the end all operators are on one processor."""
    graph, machine = chain(64), mp.Machine.preset("cpu:2x1")
    strategy = Reinforce()
    state = strategy.init(Problem(graph, machine, seed=1))
    for _ in range(3000):
        if strategy.terminate(state):
            break
        state = strategy.step(state)
    assert strategy.terminate(state)
    certain = probabilities(state.logits).argmax(axis=1)
    every = product(range(2), repeat=max(state.groups) + 1)
    least = min(state.evaluation.move_to(placement(state.space, state.groups, where)) for where in every)
    assert len(set(certain.tolist())) == 1
    assert state.incumbent.cost == pytest.approx(least)


def test_auto_is_as_fast_as_each_and_tells_of_all() -> None:
    graph, machine = chain(64), mp.Machine.preset("cpu:2")
    plan = mp.search(graph, machine, strategy="auto", proposals=1200)
    table = {name: told(plan)[f"step_s of {name}"] for name in (s.name for s in (*CHEAP, *SEARCHES))}
    assert plan.predicted.step_s == min(table.values())
    assert table[str(told(plan)["found by"])] == plan.predicted.step_s
    assert Simulation(graph, machine, plan).makespan_ns == round(plan.predicted.step_s * 1e9)
    for strategy in CHEAP:
        alone = mp.search(graph, machine, strategy=strategy.name)
        assert Simulation(graph, machine, alone).makespan_ns == round(table[strategy.name] * 1e9)


class Ended(AbstractStrategy["tuple[mp.Plan, ...]"]):
    """A search whose state is the plan that it has ended with, or is empty where the runtime has no room for any."""

    name: ClassVar[str] = "ended"
    needs_budget: ClassVar[bool] = True

    def __init__(self) -> None:
        self.results = 0

    def init(self, problem: Problem) -> tuple[mp.Plan, ...]:
        raise NotImplementedError(problem)

    def step(self, state: tuple[mp.Plan, ...]) -> tuple[mp.Plan, ...]:
        return state

    def terminate(self, state: tuple[mp.Plan, ...]) -> bool:
        del state
        return True

    def result(self, state: tuple[mp.Plan, ...]) -> mp.Plan:
        self.results += 1
        if not state:
            raise RequestError("the runtime has no room for it")
        return state[0]


def ended(
    spread: float, entered: Sequence[tuple[float, float | None, int]]
) -> tuple[list[Ended], auto.AutoState, list[mp.Plan]]:
    """Searches that have ended, by the time of the fastest plan met, of the plan given (None: no plan), its bytes."""
    costs = cast("CostModel", SimpleNamespace(spread=spread))
    problem = Problem(chain(), mp.Machine.preset("cpu:2"), costs=costs)
    plan, searches = DataParallel().plan(problem), [Ended() for _ in entered]
    plans = [replace(plan, predicted=Predicted(step_s, None, size)) for _, step_s, size in entered]
    entrants = tuple(
        Entrant(search, () if step_s is None else (own,), best_s, 1, ended=True)
        for search, own, (best_s, step_s, _) in zip(searches, plans, entered, strict=True)
    )
    return searches, AutoState(problem, entrants), plans


@pytest.mark.parametrize(("spread", "taken"), [(0.05, "data_parallel"), (0.0, "optcnn")])
def test_the_table_of_plans_that_measurements_cannot_tell_apart(spread: float, taken: str) -> None:
    names = ("soap", "data_parallel", "optcnn", "expert")
    searches, state, plans = ended(spread, [(38.1, 38.1, 20), (39.4, 39.4, 7), (38.0, 38.0, 20), (42.0, 42.0, 3)])
    assert Auto().result(state).predicted.step_s == plans[names.index(taken)].predicted.step_s
    assert [one.results for one in searches] == ([1, 1, 1, 0] if spread else [0, 0, 1, 0])
    for name, plan in zip(names, plans, strict=True):
        assert f"{name:15s} {plan.predicted.step_s} ms     {plan.predicted.bytes} MB" in (auto.__doc__ or "")


@pytest.mark.parametrize(
    ("spread", "entered", "taken"),
    [
        (0.1, [(1.0, 1.0, 9), (1.05, None, 1), (1.06, 1.06, 8)], 2),
        (0.1, [(1.0, None, 1), (1.2, 1.2, 9), (1.4, 1.4, 1)], 1),
        (0.0, [(1.0, None, 1), (1.2, 1.2, 9)], 1),
        (0.0, [(1.0, 1.5, 1), (1.2, 1.2, 9)], 1),
        (0.1, [(1.0, 1.5, 1), (1.2, 1.2, 9)], 1),
    ],
    ids=["tied without room", "fastest without room", "the same, no spread", "slower than met", "the same, a spread"],
)
def test_plans_that_the_runtime_has_no_room_for_are_passed_over(
    spread: float, entered: list[tuple[float, float | None, int]], taken: int
) -> None:
    """A search goes by an estimate of memory: the plan that it gives may be slower than one that it met, or none."""
    _, state, _ = ended(spread, entered)
    assert Auto().result(state).predicted.step_s == entered[taken][1]


def test_where_the_runtime_has_room_for_none_the_search_says_so() -> None:
    _, state, _ = ended(0.1, [(1.0, None, 1), (1.01, None, 1)])
    with pytest.raises(RequestError, match="the runtime has no room for it"):
        Auto().result(state)


def test_auto_takes_a_plan_that_moves_no_more_than_named_ones_that_are_as_fast_by_the_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What every task takes is its roofline, measured with a spread of half of it."""

    def timed(launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int) -> Measurement:
        del cores, boxes, footprint
        return Measurement.of(launch, point, 2 * (taken_ns := task_ns(launch, point, machine)), taken_ns)

    graph, machine = chain(64), mp.Machine.preset("cpu:2x1")
    costs = Measured(machine, Measurements.here(), timer=timed)
    with monkeypatch.context() as patch:  # bytes are counted, and nothing else is predicted
        patch.setattr(Simulation, "predict", None)
        plan = mp.search(graph, machine, strategy="auto", proposals=700, costs=lambda: costs)
    table = [told(plan)[f"step_s of {one.name}"] for one in (*CHEAP, *SEARCHES)]
    limit = (1 + costs.spread) * min(table)
    assert costs.spread == pytest.approx(0.5, rel=0.01)
    assert plan.predicted.step_s <= limit
    moved = Simulation(graph, machine, plan, costs).predict().bytes
    for strategy in CHEAP:
        named = mp.search(graph, machine, strategy=strategy.name, costs=lambda: costs)
        simulation = Simulation(graph, machine, named, costs)
        assert moved <= simulation.predict().bytes or simulation.makespan_ns > 1e9 * limit


@pytest.mark.parametrize("strategy", ["soap", "hill_climb", "reinforce", "exhaustive", "auto"])
def test_when_nothing_fits_the_least_memory_and_the_operator_in_the_way_are_named(strategy: str) -> None:
    graph, machine = chain(64), mp.Machine.preset("cpu:2x1")
    machine = replace(machine, memories=tuple(replace(memory, capacity_bytes=5000) for memory in machine.memories))
    with pytest.raises(
        RequestError, match=r"the least needs \d+ bytes in memory \d, which holds 5000; operator \S+ st"
    ):
        mp.search(graph, machine, strategy=strategy, proposals=20)
