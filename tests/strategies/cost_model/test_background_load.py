"""Other cores work while a stretch of time lasts, on no more cores than there are, and are gone afterwards."""

from __future__ import annotations

import threading

import pytest

from maniple.process import inventory
from maniple.process.inventory import bind_to, core_numbers, spare_cores
from maniple.strategies.cost_model import background_load
from maniple.strategies.cost_model.background_load import load_cores


def test_cores_work_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = threading.Semaphore(0)
    add_up = background_load._add_up

    def counted(*arguments: object) -> None:
        add_up(*arguments)
        turns.release()

    monkeypatch.setattr(background_load, "_add_up", counted)
    before = threading.active_count()
    spare = len(spare_cores())
    with load_cores(spare + 3):
        assert threading.active_count() == before + spare
        for _ in range(spare):
            assert turns.acquire(blocking=False), "a core does not work yet"
        for _ in range(3 * min(1, spare)):
            assert turns.acquire(timeout=60)
    assert threading.active_count() == before


def test_there_need_be_none() -> None:
    before = threading.active_count()
    with load_cores(0):
        assert threading.active_count() == before


@pytest.mark.skipif(len(core_numbers()) < 2, reason="needs two cores that threads can be bound to")
def test_a_thread_that_is_bound_loads_the_other_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    own, *others = core_numbers()
    found: list[int] = []
    moved = threading.Event()

    def move(core: int) -> None:
        found.append(core)
        moved.set()

    def bound() -> None:
        bind_to((own,))
        with load_cores(1):
            assert moved.wait(timeout=60)

    monkeypatch.setattr(background_load, "move_to", move)
    monkeypatch.setattr(inventory, "_given", [])
    thread = threading.Thread(target=bound)
    thread.start()
    thread.join()
    assert found == others[:1]
