"""Holders close at the end of a `with`, and wait for nobody where an error is on its way out."""

from __future__ import annotations

import pytest

import maniple as mp
from maniple.holder import AbstractHolder
from maniple.plan_rehearsal import PlanRehearsal


class Told(AbstractHolder):
    def __init__(self) -> None:
        self.said: list[str] = []

    def close(self) -> None:
        self.said.append("waits")
        self._let_go()

    def _let_go(self) -> None:
        self.said.append("lets go")


def test_a_with_closes_it() -> None:
    with Told() as told:
        assert told.said == []
    assert told.said == ["waits", "lets go"]


def test_an_error_on_its_way_out_is_not_kept_waiting() -> None:
    told = Told()
    with pytest.raises(ValueError, match="on its way"), told:
        raise ValueError("on its way")
    assert told.said == ["lets go"]


def test_trainers_and_rehearsals_are_holders() -> None:
    assert issubclass(mp.Trainer, AbstractHolder)
    assert issubclass(PlanRehearsal, AbstractHolder)
