"""Connections that break and are made again: what was lost is told at once, and what was not goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.redial import PATIENCE_S, Redials
from maniple.runtime.transports.transport import Delivery
from maniple.runtime.transports.zeromq import ZmqTransport
from maniple.testing.fault_link import FaultLink, LinkFault

TIMEOUT_S = 30.0


@contextmanager
def linked(fault: LinkFault) -> Iterator[tuple[ZmqTransport, ZmqTransport, FaultLink]]:
    """Two ranks, of which 0 sends to 1 over a link with a fault."""
    zero, one = (ZmqTransport(rank, 2, "secret") for rank in range(2))
    where, _, key = one.endpoint.partition("#")
    with FaultLink(where, fault) as link:
        zero.connect([zero.endpoint, f"{link.endpoint}#{key}"])
        one.connect([zero.endpoint, one.endpoint])
        yield zero, one, link
        for transport in (zero, one):
            transport.close()


def arrivals(zero: ZmqTransport, one: ZmqTransport, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    end = monotonic() + TIMEOUT_S
    while len(found) < count:
        zero.poll(0.01)
        found += one.poll(0.01)
        assert monotonic() < end
    return found


def test_a_message_that_is_cut_is_told_though_no_other_follows() -> None:
    with linked(LinkFault("cut", message=2)) as (zero, one, link):
        for number in range(2):  # after the hello
            zero.send(1, b"%d" % number, memoryview(bytes(1000)), 0)
        with pytest.raises(RunError, match="rank 1: frames of rank 0 were lost: expected message 1, got 02000000"):
            arrivals(zero, one, 3)
        assert link.met.is_set()


def test_a_connection_that_breaks_between_two_messages_loses_none() -> None:
    with linked(LinkFault("none")) as (zero, one, link):
        zero.send(1, b"before", None, 0)
        arrivals(zero, one, 1)
        link.break_connections()
        end = monotonic() + TIMEOUT_S
        while not zero._redials._broken:
            zero.poll(0.01)
            assert monotonic() < end
        zero.send(1, b"after", memoryview(b"body"), 0)
        (found,) = arrivals(zero, one, 1)
        assert (found.header, bytes(found.payload or b"")) == (b"after", b"body")


def test_a_connection_that_stays_broken_is_an_error_with_the_rank() -> None:
    now = [0.0]
    redials = Redials(zmq.Poller(), clock=lambda: now[0])
    assert redials.wait_s(None) is None
    redials._broken[3] = 0.0
    assert redials.wait_s(None) == 1.0
    assert redials.look({}) == []
    now[0] = PATIENCE_S + 1
    with pytest.raises(RunError, match="the connection to rank 3 broke, and cannot be made again for 30 s"):
        redials.look({})


def test_a_proof_that_is_refused_is_told_at_once_and_not_tried_for_ever() -> None:
    """A rank of another run has the place of a receiver by now."""
    zero, stale = (ZmqTransport(rank, 2, "secret") for rank in range(2))
    zero.connect([zero.endpoint, f"{stale.endpoint.partition('#')[0]}#{'0' * 32}"])
    zero.send(1, b"head", memoryview(b"body"), 0)
    with pytest.raises(RunError, match="in the place of rank 1 refuses the proof of its key: it is no rank of this"):
        arrivals(zero, stale, 1)
    assert stale.rejected == 1
    for transport in (zero, stale):
        transport.close()
