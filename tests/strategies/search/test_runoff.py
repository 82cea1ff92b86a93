"""Runoffs: who takes part, and who is taken."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest

import maniple as mp
from maniple.operators.plan.plan import Predicted
from maniple.strategies.cost_model.cost_model import Repeated
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.named.expert import Expert
from maniple.strategies.named.model_parallel import ModelParallel
from maniple.strategies.named.random_plan import RandomPlan
from maniple.strategies.named.spatial import Spatial
from maniple.strategies.search import runoff
from maniple.strategies.search.runoff import NEAR, decide, finalists

if TYPE_CHECKING:
    from maniple.strategies.cost_model.cost_model import CostModel

SEARCHED_MS = {"soap": 42.7, "optcnn": 43.1, "data_parallel": 47.0, "expert": 49.5, "spatial": 64.1}
PASSES_MS = {
    "soap": (56.0, 48.5, 47.8, 47.0, 46.1),
    "optcnn": (57.0, 47.2, 46.2, 44.9, 45.3),
    "data_parallel": (57.2, 46.9, 45.9, 45.1, 45.4),
    "expert": (59.8, 49.1, 48.6, 48.0, 48.4),
}
MOVES = {"soap": 20, "optcnn": 20, "data_parallel": 7, "expert": 3, "spatial": 1}
NAMES = tuple(SEARCHED_MS)
TABLE = """
    soap            42.7 ms         47.8 ms        56.0 48.5 47.8 47.0 46.1    slower in all but one
    optcnn          43.1 ms         46.2 ms        57.0 47.2 46.2 44.9 45.3    as fast; moves 20 MB
    data_parallel   47.0 ms         45.9 ms        57.2 46.9 45.9 45.1 45.4    the fastest; moves 7 MB: taken
    expert          49.5 ms         48.6 ms        59.8 49.1 48.6 48.0 48.4    slower in all
    spatial         64.1 ms                                                    does not come near
"""


class Costs(NamedTuple):
    """What simulations are to say, by the strategy of a plan."""

    ms: dict[str, float]


def repeated(passes: dict[str, tuple[float, ...]]) -> Repeated:
    """Costs by which steps take the middle of some passes, and each of these."""
    middle = Costs({name: median(each) for name, each in passes.items()})
    each = [Costs(dict(zip(passes, row, strict=True))) for row in zip(*passes.values(), strict=True)]
    return Repeated(cast("CostModel", middle), cast("tuple[CostModel, ...]", tuple(each)))


def network() -> mp.Graph:
    g = mp.Graph("network")
    x, y = g.input("x", (8, 1, 8, 8)), g.input("y", (8,), dtype="int64")
    h = g.relu(g.conv2d(x, out_channels=8, kernel_size=3, padding=1))
    g.loss(g.cross_entropy(g.linear(g.flatten(h), 4), y))
    return g


def problem() -> Problem:
    return Problem(network(), mp.Machine.preset("cpu:2"), costs=cast("CostModel", Costs(SEARCHED_MS)))


def plans() -> dict[str, mp.Plan]:
    """Plans that differ, by the names of the table."""
    made = (ModelParallel(), RandomPlan(), DataParallel(), Expert(), Spatial())
    return {name: replace(strategy.plan(problem()), strategy=name) for name, strategy in zip(NAMES, made, strict=True)}


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have simulations say what costs do; gives the list of the plans that do not fit."""
    unfit: list[str] = []

    def simulation(_graph: object, _machine: object, plan: mp.Plan, costs: Costs, _updates: object) -> SimpleNamespace:
        makespan_ns = round(1e6 * costs.ms[plan.strategy])
        return SimpleNamespace(makespan_ns=makespan_ns, bytes=MOVES[plan.strategy], name=plan.strategy)

    monkeypatch.setattr(runoff, "Simulation", simulation)
    monkeypatch.setattr(runoff, "allocated_beyond", lambda one: (-1, int(one.name in unfit)))
    monkeypatch.setattr(runoff, "needed_bytes", lambda one: (1, 1000 * one.bytes))
    return unfit


def near(**others_ms: float) -> list[str]:
    """The finalists among the plans of the table, where some are predicted to take something else."""
    asked = replace(problem(), costs=cast("CostModel", Costs(SEARCHED_MS | others_ms)))
    return [plan.strategy for plan in finalists(asked, plans().values())]


def test_the_plans_differ() -> None:
    assert len({(plan.operators, plan.weights) for plan in plans().values()}) == len(NAMES)


def test_the_table_of_a_runoff() -> None:
    assert TABLE.strip() in (runoff.__doc__ or "")
    last = finalists(problem(), plans().values())
    assert tuple(plan.strategy for plan in last) == NAMES[:4]
    told = (("proposals", 7), ("found by", "soap"), ("step_s of soap", 0.0427), ("step_s of spatial", 0.0641))
    result = replace(plans()["soap"], strategy="auto", seed=3, explanation=(("", told), ("linear", (("why", 1),))))
    found = decide(problem(), repeated(PASSES_MS), result, last)
    assert (found.operators, found.weights) == (last[2].operators, last[2].weights)
    assert (found.strategy, found.seed, found.predicted) == ("auto", 3, Predicted(0.0459, 7000))
    table = {"soap": 0.0478, "optcnn": 0.0462, "data_parallel": 0.0459, "expert": 0.0486}
    assert dict(found.explanation) == {
        "": (
            ("proposals", 7),
            ("found by", "data_parallel"),
            *((f"step_s of {name}", step_s) for name, step_s in table.items()),
        )
    }


@pytest.mark.parametrize(
    ("expert", "winner"),
    [
        ((59.8, 49.1, 48.6, 48.0, 45.4), "data_parallel"),
        ((59.8, 49.1, 48.6, 45.1, 45.4), "expert"),
        ((59.8, 49.1), "data_parallel"),
        ((57.2, 49.1), "data_parallel"),
        ((57.2, 46.9), "expert"),
        ((59.8,), "data_parallel"),
        ((57.2,), "data_parallel"),
    ],
)
def test_what_moves_least_is_taken_unless_it_is_slower_in_all_passes_but_one(
    expert: tuple[float, ...], winner: str
) -> None:
    """The expert's plan moves less than data parallelism, which is the fastest by the middle, or as fast."""
    passes = {"data_parallel": PASSES_MS["data_parallel"][: len(expert)], "expert": expert}
    last = [plans()[name] for name in passes]
    assert dict(decide(problem(), repeated(passes), last[0], last).explanation)[""][0] == ("found by", winner)


def test_data_parallelism_takes_part_though_it_comes_nowhere_near() -> None:
    assert near(data_parallel=400.0) == list(NAMES[:4])


def test_what_does_not_fit_takes_no_part_and_sets_no_limit(simulated: list[str]) -> None:
    spatial = NEAR * SEARCHED_MS["optcnn"]
    assert near(spatial=spatial) == list(NAMES[:4])
    simulated.append("soap")
    assert near(spatial=spatial) == list(NAMES[1:])


def test_of_equal_plans_the_first_takes_part() -> None:
    found = replace(plans()["data_parallel"], strategy="soap")
    assert finalists(problem(), (found, plans()["data_parallel"])) == (found,)
