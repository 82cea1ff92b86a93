"""Neighbours work while a stretch of time lasts, on no more cores than there are, and are gone afterwards."""

from __future__ import annotations

import threading

import pytest

from maniple.runtime.inventory import take_inventory
from maniple.strategies.cost_model import neighbor
from maniple.strategies.cost_model.neighbor import neighbors


def test_neighbors_work_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = threading.Semaphore(0)
    sums = neighbor._sums

    def counted(*arguments: object) -> None:
        sums(*arguments)
        turns.release()

    monkeypatch.setattr(neighbor, "_sums", counted)
    before = threading.active_count()
    spare = take_inventory().cores - 1
    with neighbors(spare + 3):
        assert threading.active_count() == before + spare
        for _ in range(3 * min(1, spare)):
            assert turns.acquire(timeout=60)
    assert threading.active_count() == before


def test_there_need_be_none() -> None:
    before = threading.active_count()
    with neighbors(0):
        assert threading.active_count() == before
