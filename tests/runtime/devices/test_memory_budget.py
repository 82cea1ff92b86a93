"""Memory budgets: an allocation waits for what is let go of, and is refused when nothing is for long."""

from __future__ import annotations

import threading

import pytest
import torch

from maniple.process.error import RunError
from maniple.runtime.devices.memory_budget import PATIENCE_S, MemoryBudget


def storage() -> torch.Tensor:
    return torch.empty(8, dtype=torch.uint8)


def nothing() -> None:
    """Reclaim nothing."""


def test_what_another_thread_lets_go_of_makes_room() -> None:
    looked = threading.Event()
    budget = MemoryBudget("d", 10, looked.set, clock=lambda: 0.0)
    held: list[torch.Tensor] = []
    held.append(budget.allocate(8, storage))

    def let_go() -> None:
        assert looked.wait(30.0)
        held.clear()

    thread = threading.Thread(target=let_go)
    thread.start()
    budget.allocate(8, storage)  # by a clock that stands still it would wait for ever
    thread.join()
    assert budget.peak == 8


def test_what_is_reclaimed_makes_room() -> None:
    held: list[torch.Tensor] = []
    budget = MemoryBudget("d", 10, held.clear)
    held.append(budget.allocate(8, storage))
    kept = budget.allocate(8, storage)
    assert not held
    assert budget.held == kept.numel()


def test_a_device_that_has_none_after_all_is_asked_again() -> None:
    answers = iter([None, None, storage()])
    assert MemoryBudget("d", 10, nothing).allocate(8, lambda: next(answers)).numel() == 8


def test_patience_ends() -> None:
    times = iter([0.0, PATIENCE_S - 1, PATIENCE_S, PATIENCE_S + 1])
    budget = MemoryBudget("d", 10, nothing, lambda: next(times))
    with pytest.raises(RunError, match="d has no room for 8 bytes: 0 of 10 are in use, and others have the rest; end"):
        budget.allocate(8, lambda: None)
    assert next(times, None) is None


def test_more_than_there_is_waits_for_nothing() -> None:
    with pytest.raises(RunError, match="no room for 11 bytes: 0 of 10 are in use; have the program keep less"):
        MemoryBudget("d", 10, nothing).allocate(11, lambda: pytest.fail("it was tried"))
