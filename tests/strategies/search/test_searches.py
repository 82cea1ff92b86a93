"""Hill climbing, policy gradient and all strategies together, on graphs that can be checked from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

import maniple as mp
from maniple.operators.plan.pipeline_plan import PipelinePlan
from maniple.operators.plan.plan import Predicted
from maniple.process.error import RequestError
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import AbstractStrategy, Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap import auto
from maniple.strategies.soap.auto import CHEAP, PIPELINES, SEARCHES, Auto, AutoState, Entrant
from maniple.strategies.soap.reinforce import RATE, Reinforce, placement, probabilities, score

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


def recurrent(layers: int = 4, width: int = 1024) -> mp.Graph:
    """LSTM layers whose weights are large beside eight samples: nothing but stages parts them well."""
    g = mp.Graph("recurrent")
    h = g.input("x", (8, 4, width))
    for _ in range(layers):
        h = g.lstm(h, width, batch_first=True)[0]
    g.loss(g.mse_loss(h, g.input("y", (8, 4, width))))
    return g


def test_auto_takes_a_pipeline_where_one_is_fastest_and_tells_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "TRIAL", 2)
    graph, machine = recurrent(), mp.Machine.preset("p100x4")
    plan = mp.search(graph, machine, strategy="auto", proposals=40)
    table = {term: value for term, value in told(plan).items() if term.startswith("step_s of ")}
    assert plan.pipeline is not None
    assert len(plan.stages) > 1
    assert plan.predicted.step_s == min(table.values()) < 0.9 * table["step_s of expert"]
    assert Simulation(graph, machine, plan).makespan_ns == round(plan.predicted.step_s * 1e9)
    for name, _ in PIPELINES:  # each tells of every order and number of micro-batches that was simulated for it
        tried = {term: value for term, value in table.items() if term.startswith(f"step_s of {name}: ")}
        assert len(tried) > 1
        assert min(tried.values()) == table[f"step_s of {name}"]
    assert {"1f1b", "gpipe"} <= {term.split(": ")[1].split(",")[0] for term in table if ": " in term}


def test_auto_keeps_to_the_turns_that_are_asked_for() -> None:
    graph, machine = recurrent(2, 64), mp.Machine.preset("p100x4")
    plan = mp.search(graph, machine, strategy="auto", proposals=20, order="1f1b", micro_batches=2)
    assert plan.pipeline == PipelinePlan("1f1b", 2)
    assert told(plan)["gpipe refused"].endswith("has stages take turns as 'gpipe', got '1f1b'")
    with pytest.raises(RequestError, match="'pipedream' has no flush"):
        mp.search(graph, machine, strategy="auto", proposals=20, order="pipedream", micro_batches=2)
    alone = mp.search(chain(), mp.Machine.preset("cpu:1"), strategy="auto", proposals=1)
    assert told(alone)["had no turn"] == "expert, model_parallel, spatial, optcnn, soap, hill_climb, reinforce"


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


def ended(entered: Sequence[tuple[float, float | None]]) -> tuple[list[Ended], AutoState]:
    """Searches that have ended, by the time of the fastest plan met, and that of the plan given (None: no plan)."""
    problem = Problem(chain(), mp.Machine.preset("cpu:2"))
    plan, searches = DataParallel().plan(problem), [Ended() for _ in entered]
    entrants = tuple(
        Entrant(
            search,
            () if step_s is None else (replace(plan, predicted=Predicted(step_s)),),
            best_s,
            1,
            ended=True,
        )
        for search, (best_s, step_s) in zip(searches, entered, strict=True)
    )
    return searches, AutoState(problem, entrants)


@pytest.mark.parametrize(
    ("entered", "taken", "asked"),
    [
        ([(38.1, 38.1), (39.4, 39.4), (38.0, 38.0)], 2, [0, 0, 1]),
        ([(1.0, None), (1.2, 1.2)], 1, [1, 1]),
        ([(1.0, 1.5), (1.2, 1.2), (1.4, 1.4)], 1, [1, 1, 0]),
        ([(1.0, 1.5), (1.6, 1.6)], 0, [1, 0]),
    ],
    ids=["all fit", "the fastest has no room", "slower than met", "slower than met, and the fastest"],
)
def test_plans_that_the_runtime_has_no_room_for_are_passed_over(
    entered: list[tuple[float, float | None]], taken: int, asked: list[int]
) -> None:
    """A search goes by an estimate of memory: the plan that it gives may be slower than one that it met, or none."""
    searches, state = ended(entered)
    assert Auto().result(state).predicted.step_s == entered[taken][1]
    assert [one.results for one in searches] == asked
    fit = sorted(met for met, step_s in entered if step_s is not None)
    assert [plan.predicted.step_s for plan in Auto().alternatives(state)] == [dict(entered)[met] for met in fit]


def test_where_the_runtime_has_room_for_none_the_search_says_so() -> None:
    _, state = ended([(1.0, None), (1.01, None)])
    with pytest.raises(RequestError, match="the runtime has no room for it"):
        Auto().result(state)


@pytest.mark.parametrize("strategy", ["soap", "hill_climb", "reinforce", "exhaustive", "auto"])
def test_when_nothing_fits_the_least_memory_and_the_operator_in_the_way_are_named(strategy: str) -> None:
    graph, machine = chain(64), mp.Machine.preset("cpu:2x1")
    machine = replace(machine, memories=tuple(replace(memory, capacity_bytes=5000) for memory in machine.memories))
    with pytest.raises(
        RequestError, match=r"the least needs \d+ bytes in memory \d, which holds 5000; operator \S+ st"
    ):
        mp.search(graph, machine, strategy=strategy, proposals=20)
