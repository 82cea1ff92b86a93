"""Reports: the terms of each side add up, the term that is blamed is the one, and every rank has the same report."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest
import torch

import maniple as mp
from maniple.process.error import RequestError
from maniple.report import RankMemory, Report
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.observe.decomposition import Terms
from maniple.testing import local_worlds

TIMEOUT_S = 120.0
EQUAL = Report(
    graph="net",
    strategy="soap",
    costs="analytic",
    steps=5,
    others=0,
    predicted_s=0.01,
    measured_s=0.01,
    rank=1,
    step=2,
    predicted=Terms(0.006, 0.001, 0.002, 0.001, 0.0),
    measured=Terms(0.006, 0.001, 0.002, 0.001, 0.0),
    predicted_bytes=1200,
    measured_bytes=1200,
    memory=(RankMemory(500, 600), RankMemory(500, 600)),
    bound_s=0.004,
)


def slower(term: str, factor: float) -> Report:
    """One term of the measured side is another; the rest is as predicted."""
    terms = replace(EQUAL.measured, **{term: getattr(EQUAL.measured, term) * factor + 0.002 * (factor > 1)})
    return replace(EQUAL, measured=terms, measured_s=terms.step_s)


@pytest.mark.parametrize("term", ["compute", "folds", "copies", "waiting", "program"])
def test_the_term_that_differs_is_blamed(term: str) -> None:
    found = slower(term, 1.5)
    assert found.cause == term
    called = "the program between steps" if term == "program" else term
    assert f"most of it is {called}: +" in str(found)


def test_a_faster_step_is_explained_too() -> None:
    found = slower("compute", 0.5)
    assert found.cause == "compute"
    assert "30.0% less than predicted; most of it is compute: -3.000 ms" in str(found)


def test_within_a_tenth_nothing_is_blamed() -> None:
    assert replace(EQUAL, measured_s=0.0109).cause is None
    assert replace(EQUAL, measured_s=0.0111).cause is not None
    assert "most of it" not in str(EQUAL)


def test_the_text() -> None:
    assert str(slower("waiting", 1.5)).splitlines() == [
        "report of net under soap, 5 steps, costs analytic",
        "",
        "           predicted  measured",
        "step       10.000 ms  12.500 ms  median of 5",
        "  compute  6.000 ms   6.000 ms   of step 2 at rank 1: 12.500 ms",
        "  folds    1.000 ms   1.000 ms",
        "  copies   2.000 ms   2.000 ms",
        "  waiting  1.000 ms   3.500 ms",
        "  program  0.000 ms   0.000 ms",
        "bytes      1,200      1,200      moved in the last step",
        "memory     500        600        bytes at ranks 0 1",
        "",
        "a step took 25.0% more than predicted; most of it is waiting: +2.500 ms",
        "no plan is faster than 4.000 ms as predicted",
    ]


def test_what_is_not_known_is_said() -> None:
    told = str(replace(EQUAL, measured_bytes=None, memory=(RankMemory(500, None),), bound_s=None, others=3, steps=1))
    assert "1 step and 3 that are not counted" in told
    assert "unknown" in told
    assert "not measured" in told
    assert "no bound is known for measured costs" in told


def network(batch: int = 16) -> mp.Graph:
    g = mp.Graph("small")
    x, y = g.input("x", (batch, 12)), g.input("y", (batch,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 10)), 4), y))
    return g


def reported(world: World, strategy: str, steps: int = 3) -> tuple[Report, dict[int, float]]:
    """A report, and the seconds of the steps whose times are kept at this rank."""
    graph, chance = network(), torch.Generator().manual_seed(3)
    machine = mp.Machine.cpu(world.processors) if world.size == 1 else mp.Machine.preset(f"cpu:{world.size}x1")
    plan = mp.search(graph, machine, strategy=strategy)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1, momentum=0.5), world=world) as trainer:
        with pytest.raises(RequestError, match="no step"):
            trainer.report()
        for size in (5, *(16 for _ in range(steps)), 7):
            trainer.step(torch.randn((size, 12), generator=chance), torch.randint(4, (size,), generator=chance))
        return trainer.report(), {step.number: step.period_ns / 1e9 for step in trainer._log.kept}


def checked(found: Report, periods: dict[int, float]) -> None:
    assert found.predicted.step_s == pytest.approx(found.predicted_s, abs=1e-12)
    assert found.measured.step_s == pytest.approx(periods[found.step], abs=1e-9)
    assert min(*asdict(found.predicted).values(), *asdict(found.measured).values()) >= 0
    assert (found.steps, found.others) == (3, 2)
    assert found.predicted_bytes == found.measured_bytes
    assert found.bound_s is not None
    assert found.bound_s <= found.predicted_s
    assert found.predicted.program == 0
    assert found.measured.compute > 0
    assert json.loads(json.dumps(found.to_json()))["cause"] == found.cause


@pytest.mark.simulator
def test_terms_add_up_on_one_rank() -> None:
    found, periods = reported(World.solo(processors=2, cores=1), "data_parallel")
    checked(found, periods)
    assert found.predicted_bytes == found.measured.copies == 0
    assert found.measured.folds > 0


@pytest.mark.simulator
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("strategy", ["data_parallel", "model_parallel"])
def test_terms_add_up_on_every_rank_and_all_have_the_same(strategy: str, shared: bool) -> None:
    worlds = local_worlds(2, shared=shared)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(reported, worlds, [strategy] * 2, timeout=TIMEOUT_S))
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
    assert found[0][0] == found[1][0]
    checked(found[0][0], found[found[0][0].rank][1])
    assert len(found[0][0].memory) == 2
    assert found[0][0].predicted_bytes > 0
    assert found[0][0].measured.copies > 0
