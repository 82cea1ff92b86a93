"""The search driver: refusals, budgets, seeds, and plans that fit."""

from __future__ import annotations

import gc
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import maniple as mp
from maniple import search as face
from maniple.models import digits_cnn
from maniple.process import environment
from maniple.process.error import RequestError
from maniple.runtime.control import world
from maniple.runtime.control.control import SoloControl
from maniple.runtime.control.world import World
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import AbstractStrategy, Problem, Progress
from maniple.strategies.named.data_parallel import DataParallel


def network(*, loss: bool = True) -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (8, 2)), g.input("y", (8,), dtype="int64")
    logits = g.linear(x, 4)
    if loss:
        g.loss(g.cross_entropy(logits, y))
    return g


MACHINE = mp.Machine.cpu(2)
# Strategies that no rule of versions is chosen for unasked.
WITHOUT_A_FLUSH = {name: {"weights": "spectrain"} for name in ("pipedream", "spectrain")}


@pytest.mark.simulator
@pytest.mark.parametrize("strategy", sorted(STRATEGIES.names()))
def test_every_installed_strategy_gives_a_plan_that_fits(strategy: str) -> None:
    graph = network()
    plan = mp.search(graph, MACHINE, strategy=strategy, budget=0.2, semantics=WITHOUT_A_FLUSH.get(strategy))
    plan.validate(graph, MACHINE)
    assert plan.strategy == strategy


# Runs each strategy in a process that has loaded nothing compiled, and says what its search compiled or loaded after
# its budget had begun.
LATE = """
import os, sys, traceback
import maniple as mp
from maniple import search_loop
from maniple.process.compilation import compiled
from maniple.strategies.interface.registry import STRATEGIES

def signatures():
    return {
        (module, name, str(one))
        for module in compiled._MODULES
        for name, value in vars(sys.modules[module]).items()
        for one in getattr(value, "signatures", ())
    }

def watched(*arguments, drive=search_loop._drive):
    before = signatures()
    plan = drive(*arguments)
    for module, name, signature in sorted(signatures() - before):
        print(chosen, module, name, signature, flush=True)
    return plan

def searched():
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 2, 6, 6)), graph.input("y", (8,), dtype="int64")
    h = graph.relu(graph.conv2d(x, 4, 3, padding=1))
    h = graph.add(h, graph.conv2d(h, 4, 3, padding=1))
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(h), 4), y))
    for machine in (mp.Machine.preset("p100x4"), mp.Machine.cpu(2)):
        asked = {"weights": "spectrain"} if chosen in ("pipedream", "spectrain") else None
        mp.search(graph, machine, strategy=chosen, budget=20.0, proposals=600, cores=1, semantics=asked)

search_loop._drive = watched
for chosen in sys.argv[1:]:
    STRATEGIES.lookup(chosen)
for chosen in sys.argv[1:]:
    if os.fork() == 0:
        try:
            searched()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
print("all searched")
"""


@pytest.mark.simulator
def test_nothing_is_compiled_or_loaded_inside_a_budget() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LATE, *STRATEGIES.names()], capture_output=True, text=True, timeout=600, check=False
    )
    assert run.stdout == "all searched\n", run.stdout + run.stderr


def test_the_same_arguments_give_the_same_plan() -> None:
    graph = network()
    plans = [mp.search(graph, MACHINE, strategy="random", seed=seed).to_json() for seed in (5, 5)]
    assert plans[0] == plans[1]
    others = [mp.search(graph, MACHINE, strategy="random", seed=seed).to_json() for seed in range(6)]
    assert any(other["operators"] != plans[0]["operators"] for other in others)


def test_a_machine_is_no_name_of_one() -> None:
    with pytest.raises(RequestError, match=r"expected a machine, such as mp.Machine.preset\('cpu:2'\), got 'p100x4'"):
        mp.search(digits_cnn(8), "p100x4", strategy="data_parallel")  # type: ignore[call-overload]


def test_an_unknown_strategy_shows_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'data_parallel'"):
        mp.search(network(), MACHINE, strategy="data_paralel")


def test_costs_are_a_name_or_what_gives_them() -> None:
    with pytest.raises(
        RequestError, match="costs: expected a name, a file, or an object with the methods of Costs, got 3"
    ):
        mp.search(network(), MACHINE, costs=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_is_above_zero(budget: float) -> None:
    with pytest.raises(RequestError, match="budget: expected more than 0 seconds"):
        mp.search(network(), MACHINE, budget=budget)


def test_a_graph_needs_a_loss() -> None:
    with pytest.raises(RequestError, match="loss"):
        mp.search(network(loss=False), MACHINE)


def test_the_face_is_the_function() -> None:
    assert callable(face)


@dataclass(frozen=True)
class Counted:
    """The state of `Counting`: how many steps were made."""

    problem: Problem
    steps: int = 0


class Counting(AbstractStrategy[Counted]):
    """A strategy without an end, whose steps take a tenth of a second each by the clock of the test."""

    name: ClassVar[str] = "counting"
    needs_budget: ClassVar[bool] = True
    now: ClassVar[float] = 0.0
    interrupted_at: ClassVar[int] = -1

    def init(self, problem: Problem) -> Counted:
        return Counted(problem)

    def step(self, state: Counted) -> Counted:
        type(self).now += 0.1
        if state.steps == self.interrupted_at:
            signal.raise_signal(signal.SIGINT)
        return Counted(state.problem, state.steps + 1)

    def terminate(self, state: Counted) -> bool:
        return False

    def progress(self, state: Counted) -> Progress:
        return Progress(state.steps, best_s=1.0 / state.steps if state.steps else None)

    def result(self, state: Counted) -> mp.Plan:
        plan = DataParallel().plan(state.problem)
        return replace(plan, strategy=self.name, explanation=(("", (("steps", state.steps),)),))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    STRATEGIES.register("counting", Counting)
    monkeypatch.setattr(Counting, "now", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: Counting.now)
    return Counting


def steps_of(plan: mp.Plan) -> object:
    return dict(dict(plan.explanation)[""])["steps"]


def test_a_search_ends_with_the_step_in_which_its_budget_does(counting: type[Counting]) -> None:
    seen: list[float] = []
    plan = mp.search(network(), MACHINE, strategy="counting", budget=1.05, watch=lambda _, s: seen.append(s))
    assert steps_of(plan) == 11
    assert seen == pytest.approx([0.1 * step for step in range(1, 12)])


def test_a_search_ends_at_its_number_of_proposals(counting: type[Counting]) -> None:
    assert steps_of(mp.search(network(), MACHINE, strategy="counting", proposals=7)) == 7
    assert steps_of(mp.search(network(), MACHINE, strategy="counting", proposals=7, budget=0.25)) == 3


@pytest.mark.usefixtures("pythons_handler")
def test_a_rank_that_searches_gets_on_with_every_step(
    counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a launcher whose other ranks wait for the plan does not say that this one is late."""
    here = World.solo()
    monkeypatch.setattr(world, "_joined", [here])
    before = here.headway.progress()
    mp.search(network(), MACHINE, strategy="counting", proposals=7)
    assert here.headway.progress() == before + 7


def test_an_interrupted_search_ends_its_step_and_keeps_the_best(
    counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "interrupted_at", 4)
    assert steps_of(mp.search(network(), MACHINE, strategy="counting", proposals=100)) == 5


def test_a_search_without_a_budget_is_refused(counting: type[Counting]) -> None:
    with pytest.raises(RequestError, match=r"'counting' needs a budget: pass budget=SECONDS or proposals=NUMBER"):
        mp.search(network(), MACHINE, strategy="counting")
    with pytest.raises(RequestError, match="proposals: expected at least 1, got 0"):
        mp.search(network(), MACHINE, strategy="counting", proposals=0)


def test_a_plan_found_in_seconds_is_found_again_in_proposals() -> None:
    graph = network()
    timed = mp.search(graph, MACHINE, strategy="soap", budget=0.3, seed=4)
    proposals = int(str(dict(dict(timed.explanation)[""])["proposals"]))
    assert proposals > 0
    again = mp.search(graph, MACHINE, strategy="soap", proposals=proposals, seed=4)
    assert again.to_json() == timed.to_json()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Nothing is frozen, as in a program of its own."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_what_the_program_has_frozen_stays_frozen(counting: type[Counting]) -> None:
    """Else a search freezes what it stands on, and lets go of it; one that takes a step does neither."""
    seen: list[int] = []

    def search(strategy: str) -> None:
        mp.search(
            network(), MACHINE, strategy=strategy, proposals=2, watch=lambda *_: seen.append(gc.get_freeze_count())
        )

    assert gc.get_freeze_count() == 0
    search("data_parallel")
    assert (seen, gc.get_freeze_count()) == ([0], 0)
    search("counting")
    assert seen[-1] > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        held = gc.get_freeze_count()
        search("counting")
        search("data_parallel")
        assert 0 < gc.get_freeze_count() <= held  # what has died meanwhile is no longer counted
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("pythons_handler")
def test_an_interrupted_soap_search_gives_a_plan_that_fits() -> None:
    def interrupt(progress: Progress, elapsed_s: float) -> None:
        if progress.proposals == 9:
            signal.raise_signal(signal.SIGINT)

    plan = mp.search(network(), MACHINE, strategy="soap", proposals=1000, watch=interrupt)
    plan.validate(network(), MACHINE)
    assert dict(dict(plan.explanation)[""])["proposals"] == 9


@pytest.mark.parametrize(("strategy", "least"), [("soap", 1), ("hill_climb", 3)])
def test_seeds_are_proposals(strategy: str, least: int) -> None:
    """A search makes its first ones at once, and ends there if it may make no more."""
    graph, watched = network(), list[Progress]()
    plan = mp.search(
        graph, MACHINE, strategy=strategy, proposals=1, watch=lambda progress, elapsed_s: watched.append(progress)
    )
    assert dict(dict(plan.explanation)[""])["proposals"] == least
    assert mp.search(graph, MACHINE, strategy=strategy, proposals=least).to_json() == plan.to_json()
    assert watched == []


def test_ranks_that_wait_for_rank_0_s_plan_say_what_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Heard(SoloControl):
        def call(self, text: str, digest: bytes = b"", *, soon: bool = True) -> None:
            told.append(text)

    alone = replace(World.solo(), control=Heard())
    monkeypatch.setattr(environment, "is_launched", lambda: True)
    monkeypatch.setattr(world, "current", lambda: alone)
    graph = network()
    mp.search(graph, MACHINE, strategy="data_parallel", budget=2.5)
    mp.search(graph, MACHINE, strategy="data_parallel")
    assert told == ["mp.search('data_parallel', budget=2.5 s)"]  # the second runs on every rank
