"""Searches of other packages on several processes: found by their class, or refused; the plan is the same."""

from __future__ import annotations

import os
import sys
from typing import Any

import foreign_search
import pytest
from foreign_search import Bits, Tried

import maniple as mp
from maniple import worker_pool
from maniple.process.error import RequestError
from maniple.strategies.interface.checked_strategy import class_of, make_checked
from maniple.strategies.interface.parallel_search import address_of, strategy_at
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import StrategyError
from maniple.strategies.soap.soap import Soap
from maniple.worker_pool import WorkerPool

MACHINE = mp.Machine.preset("p100x2")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRATEGIES, "_registered", {})


def network() -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (64, 512)), g.input("y", (64,), dtype="int64")
    h = g.relu(g.linear(x, 512))
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(h, 512)), 10), y))
    return g


@pytest.mark.parametrize("kind", [Bits, Soap])
def test_a_class_is_found_at_its_address(kind: type[mp.plugins.Strategy[Any]]) -> None:
    assert strategy_at(address_of(kind)) is kind
    assert class_of(make_checked("asked", kind)) is kind


def test_a_class_that_no_module_has_has_no_address() -> None:
    class Local(Bits):
        pass

    with pytest.raises(RequestError, match=r"cannot import .*Local from .*; define the class in a module of its own"):
        address_of(Local)
    main = type("Bits", (Bits,), {"__module__": "__main__", "__qualname__": "Bits"})
    with pytest.raises(RequestError, match="cannot import Bits from __main__"):
        address_of(main)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (("no.such.module", "Bits", ""), "cannot be loaded here"),
        (("foreign_search", "Bytes", ""), "cannot be loaded here"),
        (("foreign_search", "Tried", ""), "is no strategy here"),
        (("foreign_search", "Bits", "another"), "is another class here"),
    ],
)
def test_what_is_not_at_an_address_is_refused(address: tuple[str, str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        strategy_at(address)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("items", None, r"items\(\) gave None; expected a tuple of work items; is a return missing"),
        ("with_items", None, r"with_items\(\) gave None; expected a state"),
        ("next_round", None, r"next_round\(\) gave None; expected a state"),
        ("advance", None, r"step\(\) gave None; expected a work item"),
    ],
)
def test_a_search_in_rounds_is_told_what_it_did_wrong(
    method: str, answer: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = type("Wrong", (Bits,), {method: lambda self, *_: answer, "__module__": "theirs"})
    monkeypatch.setattr(foreign_search.Stretch, "step", lambda self, bench: self)
    strategy = make_checked("wrong", wrong)
    state = Bits().init(mp.plugins.Problem(network(), MACHINE))
    with pytest.raises(StrategyError, match="^strategy 'wrong': " + message):
        strategy.step(Tried(state.problem, ()) if method == "next_round" else state)


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that a search starts at once, and waits for whenever they have something in hand."""
    seen: list[int] = []
    step = WorkerPool.step

    def waiting(self: WorkerPool, state: Any) -> Any:
        while self.ready < len(self.pids) or self._out():
            state = self.gather(state, 1.0)
        seen[:] = self.pids or seen
        return step(self, state)

    monkeypatch.setattr(worker_pool, "HIRE_S", 0.0)
    monkeypatch.setattr(worker_pool, "START_S", 0.0)
    monkeypatch.setattr(WorkerPool, "step", waiting)
    return seen


@pytest.mark.simulator
@pytest.mark.ranks
@pytest.mark.timeout(150)
def test_a_foreign_search_on_two_processes_finds_what_one_finds(
    members: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mp.register_strategy("bits", Bits)
    monkeypatch.setattr(Bits, "pids", set())
    alone = mp.search(network(), MACHINE, strategy="bits", budget=1e4, cores=1)
    assert Bits.pids == {os.getpid()}
    together = mp.search(network(), MACHINE, strategy="bits", budget=1e4, cores=2)
    assert together.text() == alone.text()
    assert set(members) | {os.getpid()} == Bits.pids
    assert len(members) == 1


@pytest.mark.simulator
@pytest.mark.ranks
def test_a_search_whose_class_no_process_can_import_says_so_and_runs_on_one(members: list[int]) -> None:
    class Local(Bits):
        name = "local"

    mp.register_strategy("local", Local)
    with pytest.warns(UserWarning, match="strategy 'local' is searched with on one process: another process cannot"):
        plan = mp.search(network(), MACHINE, strategy="local", proposals=8, cores=2)
    plan.validate(network(), MACHINE)
    assert members == []


@pytest.mark.simulator
@pytest.mark.ranks
def test_a_class_that_only_this_process_can_import_loses_its_members(
    members: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mp.register_strategy("bits", Bits)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not folder.endswith("interface")])
    with pytest.warns(UserWarning, match=r"cannot take part: foreign_search:Bits cannot be loaded here.*; 1 go on"):
        mp.search(network(), MACHINE, strategy="bits", proposals=8, cores=2)
