"""The probe of a pair of hosts, over the loopback interface."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

import pytest

from maniple.pair_probe import MOST_CALLERS, NONCE, SMALLEST, Answerer, dial, measure, receive
from maniple.process.error import RunError

HERE = "127.0.0.1"
HOUR_NS = 3600 * 10**9


def test_both_directions_are_measured_and_the_clock_that_is_ahead_is_told() -> None:
    ahead = Answerer([HERE], clock=lambda: time.time_ns() + HOUR_NS)
    with ahead as answerer, dial(HERE, answerer.ports[HERE], answerer.nonce) as connection:
        found = measure(connection, 4 * SMALLEST)
    assert found.latency_s > 0
    assert min(found.there, found.back, found.both) > 0
    assert found.ahead_s == pytest.approx(3600, abs=2.0)


def test_who_does_not_know_the_nonce_is_hung_up_on() -> None:
    with Answerer([HERE]) as answerer, socket.create_connection((HERE, answerer.ports[HERE]), 10) as stranger:
        stranger.sendall(bytes(NONCE))
        with pytest.raises(ConnectionError):
            receive(stranger, 1)


def test_a_flood_of_strangers_has_no_threads_and_keeps_nobody_out() -> None:
    before = threading.active_count()
    with Answerer([HERE]) as answerer, ExitStack() as strangers:
        place = HERE, answerer.ports[HERE]
        for _ in range(3 * MOST_CALLERS):
            strangers.enter_context(socket.create_connection(place, 10))
            assert threading.active_count() == before + 1
        with dial(HERE, answerer.ports[HERE], answerer.nonce) as connection:
            assert measure(connection, SMALLEST).there > 0
        assert threading.active_count() <= before + 2


def test_another_computer_with_the_address_is_found_out() -> None:
    with Answerer([HERE]) as answerer, pytest.raises(RunError, match="another computer's address, too"):
        dial(HERE, answerer.ports[HERE], bytes(NONCE))


def test_nothing_listens_afterwards() -> None:
    with Answerer([HERE]) as answerer:
        port = answerer.ports[HERE]
    with pytest.raises(ConnectionRefusedError):
        dial(HERE, port, bytes(NONCE))
