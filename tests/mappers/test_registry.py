"""The registry of mappers: names, registration, refusals."""

from __future__ import annotations

from typing import cast

import pytest

import maniple as mp
from maniple.mappers.default import DefaultMapper
from maniple.mappers.plan_mapper import PlanMapper
from maniple.mappers.registry import MAPPERS, make_mapper, register_mapper
from maniple.process.error import RequestError


class First(mp.Mapper):
    pass


class Second(mp.Mapper):
    pass


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers."""
    monkeypatch.setattr(MAPPERS, "_registered", {})


def test_built_in_mappers_have_names() -> None:
    assert {"default", "plan"} <= set(MAPPERS.names())
    assert isinstance(make_mapper("default"), DefaultMapper)
    assert isinstance(make_mapper("plan"), PlanMapper)


def test_a_registered_mapper_is_made_anew_each_time() -> None:
    mp.register_mapper("mine", First)
    assert MAPPERS.names() == tuple(sorted({*MAPPERS.names(), "mine"}))
    first, second = make_mapper("mine"), make_mapper("mine")
    assert isinstance(first, First)
    assert first is not second


def test_a_class_that_is_defined_again_replaces_itself() -> None:
    register_mapper("mine", First)
    again = type("First", (mp.Mapper,), {"__module__": First.__module__, "__qualname__": First.__qualname__})
    register_mapper("mine", again)
    assert type(make_mapper("mine")) is again


def test_a_name_belongs_to_one_mapper() -> None:
    register_mapper("mine", First)
    belongs = r"mapper 'mine': the name belongs to .*:First; register .*:Second under another name"
    with pytest.raises(RequestError, match=belongs):
        register_mapper("mine", Second)
    with pytest.raises(
        RequestError, match=r"mapper 'default': the name belongs to maniple\.mappers\.default:DefaultMapper"
    ):
        register_mapper("default", First)
    assert isinstance(make_mapper("default"), DefaultMapper)


@pytest.mark.parametrize("wrong", [First(), object, "First", None])
def test_only_subclasses_of_mapper_are_registered(wrong: object) -> None:
    with pytest.raises(RequestError, match=r"mapper 'mine': expected a class that completes Mapper, got "):
        register_mapper("mine", cast("type[mp.Mapper]", wrong))


def test_an_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(
        RequestError, match=r"mapper 'defautl': there is no such mapper; did you mean 'default'\?.*choices: default"
    ):
        make_mapper("defautl")
