"""Exchanges begin in the order in which they were submitted, whatever is ready first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from maniple.runtime.control.loopback import LoopbackHub
from maniple.runtime.peers.exchange_queue import ExchangeQueue
from maniple.runtime.storage.push import Exchange, Movement


class Rig:
    """A queue, what it has begun, and how to end that."""

    def __init__(self, parts: dict[str, int]) -> None:
        self.transport = LoopbackHub(2).endpoint(0)
        self.begun: list[str] = []
        self.over: list[Exchange] = []
        self.ends: dict[str, Callable[[], None]] = {}
        self.queue = ExchangeQueue(self.transport, self.over.append)
        self.exchanges = {name: self.exchange(name, count) for name, count in parts.items()}

    def exchange(self, name: str, parts: int) -> Exchange:
        def begin(ended: Callable[[], None]) -> None:
            self.begun.append(name)
            self.ends[name] = ended

        movement = Movement(len(name), account=7)
        movement.exchange = Exchange(movement, 10 * len(name), begin, lambda: None, parts)
        return movement.exchange

    def submit(self, *names: str) -> None:
        others = Movement(0)  # one that no fabric makes
        self.queue.line_up([self.exchanges[name].movement for name in names] + [others])


@pytest.mark.parametrize("ready", list(permutations("abc")))
def test_order_is_that_of_submission(ready: tuple[str, ...]) -> None:
    rig = Rig({"a": 0, "b": 0, "c": 0})
    rig.submit("a", "b", "c")
    for name in ready:
        rig.queue.note_part(rig.exchanges[name])
    assert rig.begun == ["a", "b", "c"]
    rig.ends["b"]()
    assert rig.over == [rig.exchanges["b"]]


def test_one_waits_for_the_beginning_of_its_movement_and_for_its_folds() -> None:
    rig = Rig({"a": 2})
    rig.submit("a")
    for _ in range(2):
        rig.queue.note_part(rig.exchanges["a"])
    assert rig.begun == []
    rig.queue.note_part(None)  # a fold that joins nothing
    rig.queue.note_part(rig.exchanges["a"])
    assert rig.begun == ["a"]


def test_one_that_was_ready_before_it_was_submitted_waits_for_its_turn_and_runs_again() -> None:
    """run 1: a, bb; run 2: the same, of which bb is ready first."""
    rig = Rig({"a": 0, "bb": 0})
    for _ in range(2):
        rig.submit("a", "bb")
        rig.queue.note_part(rig.exchanges["bb"])
        rig.queue.note_part(rig.exchanges["a"])
    assert rig.begun == ["a", "bb"] * 2
    assert rig.transport.count_bytes(7) == 2 * (10 + 20)
