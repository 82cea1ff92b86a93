"""ZeroMQ: who may send, what a lost frame does, and the ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
import zmq

from maniple.regions.error import RunError
from maniple.runtime.transport import Delivery
from maniple.runtime.proof import be_sender
from maniple.runtime.zeromq import (
    COUNT,
    LOOPBACK,
    MAX_PAYLOAD,
    SIZE,
    TILE_FRAME,
    ZmqTransport,
    bind,
    make_socket,
    milliseconds,
)

TIMEOUT_S = 30.0
TOKEN = "the secret of the run"
Make = Callable[[int], zmq.Socket[bytes]]


@pytest.fixture
def pair() -> Iterator[tuple[ZmqTransport, ZmqTransport]]:
    made = [ZmqTransport(rank, 2, TOKEN) for rank in range(2)]
    for transport in made:
        transport.connect([other.endpoint for other in made])
    yield made[0], made[1]
    for transport in made:
        transport.close()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes sockets outside of any transport, and closes them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[zmq.Socket[bytes]] = []

    def one(kind: int) -> zmq.Socket[bytes]:
        made.append(make_socket(context, kind))
        return made[-1]

    yield one
    for each in made:
        each.close(linger=0)
    context.term()


def until_rejected(transport: ZmqTransport, count: int) -> None:
    end = monotonic() + TIMEOUT_S
    while transport.rejected < count:
        assert transport.poll(TIMEOUT_S) == []
        assert monotonic() < end


def dealer(make: Make, endpoint: str, name: bytes | None) -> zmq.Socket[bytes]:
    made = make(zmq.DEALER)
    if name is not None:
        made.setsockopt(zmq.ROUTING_ID, name)
    made.connect(endpoint)
    return made


@pytest.mark.parametrize("frames", [[b"hello"], [b""], [b"hello", b"payload"], [b"a", b"b", b"c"]])
def test_a_stranger_is_not_heard(pair: tuple[ZmqTransport, ZmqTransport], make: Make, frames: list[bytes]) -> None:
    _, one = pair
    dealer(make, one.endpoint, None).send_multipart(frames)
    until_rejected(one, 1)
    pair[0].send(1, b"head", memoryview(b"body"), 0)
    found: list[Delivery] = []
    end = monotonic() + TIMEOUT_S
    while not found:
        found = one.poll(TIMEOUT_S)
        assert monotonic() < end
    (delivery,) = found
    assert (delivery.peer, delivery.header, bytes(delivery.payload or b"")) == (0, b"head", b"body")


def test_a_rank_of_another_run_is_not_heard(pair: tuple[ZmqTransport, ZmqTransport]) -> None:
    _, one = pair
    foreign = ZmqTransport(0, 2, "the secret of another run")
    foreign.connect([foreign.endpoint, one.endpoint])
    foreign.send(1, b"head", memoryview(b"body"), 0)
    until_rejected(one, 2)  # its greeting and its tile
    foreign.close()


def test_the_right_name_without_the_right_greeting_is_not_heard(
    pair: tuple[ZmqTransport, ZmqTransport], make: Make
) -> None:
    _, one = pair
    liar = dealer(make, one.endpoint, one._name(0, 1))
    liar.send(b"another greeting")
    until_rejected(one, 1)
    liar.send_multipart([COUNT.pack(0) + b"head", b"body"])
    until_rejected(one, 2)


def test_a_lost_frame_is_an_error_and_never_a_wait(pair: tuple[ZmqTransport, ZmqTransport], make: Make) -> None:
    _, one = pair
    peer = dealer(make, one.endpoint, one._name(0, 1))
    peer.send(one._hello(0, 1))
    peer.send_multipart([COUNT.pack(1) + b"head", b"body"])
    with pytest.raises(RunError, match="frames of rank 0 were lost: expected message 0"):
        until_rejected(one, 1)


def test_a_tile_that_no_frame_carries_is_refused_before_it_is_sent(pair: tuple[ZmqTransport, ZmqTransport]) -> None:
    zero, _ = pair

    class Huge:
        nbytes = MAX_PAYLOAD + 1

    with pytest.raises(RunError, match="use a plan that cuts it finer"):
        zero.send(1, b"", Huge(), 0)  # type: ignore[arg-type]
    assert zero.total() == 0


def test_every_rank_needs_an_endpoint() -> None:
    alone = ZmqTransport(0, 3, "secret")
    with pytest.raises(RunError, match="expected the endpoints of 3 ranks, got 1"):
        alone.connect([alone.endpoint])
    alone.close()


def test_a_port_in_use_is_named_with_the_way_out(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        router = make(zmq.ROUTER)
        with pytest.raises(RunError, match=rf"port {port} is already in use on {LOOPBACK}; leave --port out"):
            bind(router, LOOPBACK, port)


def test_a_free_port_is_chosen_by_the_binder(make: Make) -> None:
    first, second = (bind(make(zmq.ROUTER), LOOPBACK) for _ in range(2))
    assert first != second
    assert LOOPBACK in first
    with socket.create_connection((LOOPBACK, int(first.rpartition(":")[2])), TIMEOUT_S) as reached:
        assert reached.getpeername()[1] == int(first.rpartition(":")[2])


@pytest.mark.parametrize(("seconds", "wanted"), [(0.0, 0), (-1.0, 0), (0.0001, 1), (1.0, 1000), (1.0004, 1001)])
def test_waits_are_rounded_up(seconds: float, wanted: int) -> None:
    assert milliseconds(seconds) == wanted
