"""The strategies by name: one door for built-ins and other packages', and what it refuses."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maniple.process.error import RequestError
from maniple.process.registry import group
from maniple.strategies.interface.registry import STRATEGIES, register_strategy
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.named.data_parallel import DataParallel

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan

GROUP = group("strategy")


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRATEGIES, "_registered", {})


def mine() -> type[AbstractDirectStrategy]:
    """A class of the same qualified name at every call, as a notebook's cell makes."""

    class Mine(AbstractDirectStrategy):
        name = "mine"

        def plan(self, problem: Problem) -> Plan:
            raise NotImplementedError(problem)

    return Mine


class Other(AbstractDirectStrategy):
    """Another strategy."""

    name = "other"

    def plan(self, problem: Problem) -> Plan:
        raise NotImplementedError(problem)


def test_built_ins_are_what_the_package_announces() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    announced = project["entry-points"][GROUP]
    assert {name: STRATEGIES.origin(name) for name in announced} == announced
    assert {STRATEGIES.packages(name) for name in announced} == {("maniple",)}
    for name in announced:
        assert STRATEGIES.lookup(name).name == name


def test_an_unknown_name_lists_the_good_ones_and_the_nearest() -> None:
    with pytest.raises(
        RequestError, match=r"no such strategy; did you mean 'expert'\? choices: antichain, auto, bapipe"
    ):
        STRATEGIES.lookup("exprt")


def test_other_packages_come_through_the_same_door(monkeypatch: pytest.MonkeyPatch) -> None:
    value = "maniple.strategies.named.data_parallel:DataParallel"
    monkeypatch.setattr(STRATEGIES, "_points", {"theirs": {value: EntryPoint("theirs", value, GROUP)}})
    assert STRATEGIES.lookup("theirs") is DataParallel
    assert STRATEGIES.names() == ("theirs",)


@pytest.mark.parametrize(
    "value",
    ["maniple.strategies.interface.registry:HINT", "maniple.strategies.interface.strategy:AbstractStrategy"],
)
def test_what_is_announced_must_be_a_strategy(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRATEGIES, "_points", {"broken": {value: EntryPoint("broken", value, GROUP)}})
    with pytest.raises(RequestError, match=r"expected a class that completes Strategy.*mp\.plugins\.DirectStrategy"):
        STRATEGIES.lookup("broken")


def test_registering_again_replaces_and_another_class_is_refused() -> None:
    first, second = mine(), mine()
    assert first is not second
    register_strategy("mine", first)
    register_strategy("mine", second)
    assert STRATEGIES.lookup("mine") is second
    assert "mine" in STRATEGIES.names()
    with pytest.raises(RequestError, match=r"'mine': the name belongs to .*mine\.<locals>\.Mine"):
        register_strategy("mine", Other)
    with pytest.raises(RequestError, match=r"'expert': the name belongs to maniple\.strategies\.named\.expert:Expert"):
        register_strategy("expert", Other)
    with pytest.raises(RequestError, match="expected a class"):
        register_strategy("new", AbstractDirectStrategy)
