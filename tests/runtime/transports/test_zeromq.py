"""ZeroMQ: who may send, what a lost frame does, and the ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.proof import be_sender
from maniple.runtime.transports.transport import Delivery
from maniple.runtime.transports.zeromq import (
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


def prove(made: zmq.Socket[bytes], token: str = TOKEN) -> zmq.Socket[bytes]:
    """Have a socket prove to rank 1 that it is rank 0's."""
    be_sender(made, token, 0, 1)
    return made


def received(transport: ZmqTransport) -> Delivery:
    found: list[Delivery] = []
    end = monotonic() + TIMEOUT_S
    while not found:
        found = transport.poll(TIMEOUT_S)
        assert monotonic() < end
    (delivery,) = found
    return delivery


@pytest.mark.parametrize("frames", [[b"hello"], [b""], [b"hello", b"payload"], [b"a", b"b", b"c"]])
def test_a_stranger_is_not_heard(pair: tuple[ZmqTransport, ZmqTransport], make: Make, frames: list[bytes]) -> None:
    zero, one = pair
    stranger = make(zmq.DEALER)
    stranger.connect(one.endpoint)
    stranger.send_multipart(frames)
    zero.send(1, b"head", memoryview(b"body"), 0)
    delivery = received(one)
    assert (delivery.peer, delivery.header, bytes(delivery.payload or b"")) == (0, b"head", b"body")
    assert one.poll(0.1) == []


def test_a_rank_of_another_run_is_not_heard(pair: tuple[ZmqTransport, ZmqTransport]) -> None:
    _, one = pair
    foreign = ZmqTransport(0, 2, "the secret of another run")
    foreign.connect([foreign.endpoint, one.endpoint])
    foreign.send(1, b"head", memoryview(b"body"), 0)
    until_rejected(one, 1)
    foreign.close()


@pytest.mark.parametrize("change", ["another pair", "no such rank", "itself"])
def test_a_proof_for_another_pair_is_none(pair: tuple[ZmqTransport, ZmqTransport], make: Make, change: str) -> None:
    sender, receiver = {"another pair": (1, 0), "no such rank": (2, 1), "itself": (1, 1)}[change]
    liar = make(zmq.DEALER)
    be_sender(liar, TOKEN, sender, receiver)
    liar.connect(pair[1].endpoint)
    liar.send_multipart([COUNT.pack(0) + b"head", b"body"])
    until_rejected(pair[1], 1)


def test_the_right_proof_without_the_right_greeting_is_not_heard(
    pair: tuple[ZmqTransport, ZmqTransport], make: Make
) -> None:
    _, one = pair
    liar = prove(make(zmq.DEALER))
    liar.connect(one.endpoint)
    liar.send(b"another greeting")
    until_rejected(one, 1)
    liar.send_multipart([COUNT.pack(0) + b"head", b"body"])
    until_rejected(one, 2)


def test_a_lost_frame_is_an_error_and_never_a_wait(pair: tuple[ZmqTransport, ZmqTransport], make: Make) -> None:
    _, one = pair
    peer = prove(make(zmq.DEALER))
    peer.connect(one.endpoint)
    peer.send(one._hello(0, 1))
    peer.send_multipart([COUNT.pack(1) + b"head", b"body"])
    with pytest.raises(RunError, match="frames of rank 0 were lost: expected message 0"):
        until_rejected(one, 1)


@pytest.mark.parametrize("size", [0, 1, TILE_FRAME - 1, TILE_FRAME, TILE_FRAME + 1, 3 * TILE_FRAME, 5 * TILE_FRAME + 7])
def test_tiles_of_any_size_arrive_whole(pair: tuple[ZmqTransport, ZmqTransport], size: int) -> None:
    zero, one = pair
    body = bytes(number % 251 for number in range(size))
    zero.send(1, b"head", memoryview(body), 0)
    assert bytes(received(one).payload or b"") == body
    assert zero.total() == size


@pytest.mark.parametrize("told", [b"", SIZE.pack(2 * TILE_FRAME + 1), SIZE.pack(1), SIZE.pack(2**63), b"short"])
def test_a_tile_of_another_size_than_told_is_an_error(
    pair: tuple[ZmqTransport, ZmqTransport], make: Make, told: bytes
) -> None:
    _, one = pair
    peer = prove(make(zmq.DEALER))
    peer.connect(one.endpoint)
    peer.send(one._hello(0, 1))
    peer.send_multipart([COUNT.pack(0) + b"head", told, bytes(TILE_FRAME), bytes(TILE_FRAME)])
    with pytest.raises(RunError, match="the wire is broken"):
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
