"""The registry: one door for built-ins and other packages, and what it refuses."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maniple.regions.error import RequestError
from maniple.strategies.interface import registry
from maniple.strategies.interface.registry import BUILT_IN, GROUP, Registry, register_strategy, strategy_names
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.named.data_parallel import DataParallel

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan


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
    assert project["entry-points"][GROUP] == {point.name: point.value for point in BUILT_IN}
    assert set(strategy_names()) >= {"data_parallel", "expert", "model_parallel", "random", "spatial"}
    for point in BUILT_IN:
        assert registry.lookup(point.name).name == point.name


def test_an_unknown_name_lists_the_good_ones_and_the_nearest() -> None:
    with pytest.raises(
        RequestError, match=r"no such strategy; did you mean 'expert'\? choices: antichain, auto, bapipe"
    ):
        registry.lookup("exprt")


def test_other_packages_come_through_the_same_door() -> None:
    point = EntryPoint("theirs", "maniple.strategies.named.data_parallel:DataParallel", GROUP)
    known = Registry((*BUILT_IN, *BUILT_IN, point))
    assert known.lookup("theirs") is DataParallel
    assert len(known.names()) == len(BUILT_IN) + 1


def test_two_packages_with_one_name_are_refused_by_both_names() -> None:
    with pytest.raises(
        RequestError, match=r"'expert' is announced twice, as .*expert:Expert and as their\.module:Best"
    ):
        Registry((*BUILT_IN, EntryPoint("expert", "their.module:Best", GROUP)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("maniple.strategies.nothing:Thing", "cannot be loaded"),
        ("maniple.strategies.named.expert:Nothing", "cannot be loaded"),
        ("maniple.strategies.interface.registry:GROUP", "expected a class that completes AbstractStrategy"),
        ("maniple.strategies.interface.strategy:AbstractStrategy", "expected a class that completes AbstractStrategy"),
    ],
)
def test_entry_points_that_lead_nowhere(value: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Registry([EntryPoint("broken", value, GROUP)]).lookup("broken")


def test_registering_again_replaces_and_another_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_installed", [])
    first, second = mine(), mine()
    assert first is not second
    register_strategy("mine", first)
    register_strategy("mine", second)
    assert registry.lookup("mine") is second
    assert "mine" in strategy_names()
    with pytest.raises(RequestError, match=r"'mine': the name belongs to .*mine\.<locals>\.Mine"):
        register_strategy("mine", Other)
    with pytest.raises(RequestError, match=r"'expert': the name belongs to maniple\.strategies\.named\.expert:Expert"):
        register_strategy("expert", Other)
    with pytest.raises(RequestError, match="expected a class"):
        register_strategy("new", AbstractDirectStrategy)
