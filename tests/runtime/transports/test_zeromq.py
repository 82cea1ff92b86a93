"""ZeroMQ: who may send, what a lost frame does, and the ports."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import pytest
import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.proof import COUNT, SIZE, Gate, be_receiver, be_sender, hello, password, seal
from maniple.runtime.transports.tile_frames import MAX_PAYLOAD, TILE_FRAME
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Guard
from maniple.runtime.transports.zeromq import ZmqTransport, bind, make_socket, milliseconds

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


def prove(made: zmq.Socket[bytes], key: str) -> zmq.Socket[bytes]:
    """Have a socket prove to rank 1 that it is rank 0's."""
    be_sender(made, key, 0, 1)
    return made


def address(transport: ZmqTransport) -> str:
    return transport.endpoint.partition("#")[0]


def key(transport: ZmqTransport) -> str:
    return transport.endpoint.partition("#")[2].partition(":")[0]


def greeting(transport: ZmqTransport) -> bytes:
    return hello(key(transport), 0, 1, b"n" * 16)


@contextmanager
def tapped(endpoint: str) -> Iterator[tuple[str, bytearray]]:
    """Pass one connection on, and keep what goes towards the endpoint."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    seen = bytearray()
    with socket.create_server((LOOPBACK, 0)) as server:

        def carry(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
            with suppress(OSError):
                while part := source.recv(1 << 16):
                    kept += part
                    target.sendall(part)

        def accept() -> None:
            with server.accept()[0] as near, socket.create_connection((host.strip("[]"), int(port))) as far:
                back = threading.Thread(target=carry, args=(far, near, bytearray()), daemon=True)
                back.start()
                carry(near, far, seen)

        threading.Thread(target=accept, daemon=True).start()
        yield f"tcp://{LOOPBACK}:{server.getsockname()[1]}", seen


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
    stranger.connect(address(one))
    stranger.send_multipart(frames)
    zero.send(1, b"head", memoryview(b"body"), 0)
    delivery = received(one)
    assert (delivery.peer, delivery.header, bytes(delivery.payload or b"")) == (0, b"head", b"body")
    assert one.poll(0.1) == []


def test_a_rank_of_another_run_is_not_heard(pair: tuple[ZmqTransport, ZmqTransport]) -> None:
    _, one = pair
    foreign = ZmqTransport(0, 2, "the secret of another run")
    stale = f"{address(one)}#{'0' * 32}"  # the port is another run's by now
    foreign.connect([foreign.endpoint, stale])
    foreign.send(1, b"head", memoryview(b"body"), 0)
    until_rejected(one, 1)
    foreign.close()


@pytest.mark.parametrize("change", ["another pair", "no such rank", "itself"])
def test_a_proof_for_another_pair_is_none(pair: tuple[ZmqTransport, ZmqTransport], make: Make, change: str) -> None:
    sender, receiver = {"another pair": (1, 0), "no such rank": (2, 1), "itself": (1, 1)}[change]
    liar = make(zmq.DEALER)
    be_sender(liar, key(pair[1]), sender, receiver)
    liar.connect(address(pair[1]))
    liar.send_multipart([COUNT.pack(0) + b"head", b"body"])
    until_rejected(pair[1], 1)


def test_the_right_proof_without_the_right_greeting_is_not_heard(
    pair: tuple[ZmqTransport, ZmqTransport], make: Make
) -> None:
    _, one = pair
    liar = prove(make(zmq.DEALER), key(one))
    liar.connect(address(one))
    liar.send(b"another greeting")
    until_rejected(one, 1)
    liar.send_multipart([COUNT.pack(0) + b"head", b"body"])
    until_rejected(one, 2)


def test_a_lost_frame_is_an_error_and_never_a_wait(pair: tuple[ZmqTransport, ZmqTransport], make: Make) -> None:
    _, one = pair
    peer = prove(make(zmq.DEALER), key(one))
    peer.connect(address(one))
    peer.send(greeting(one))
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
    peer = prove(make(zmq.DEALER), key(one))
    peer.connect(address(one))
    peer.send(greeting(one))
    peer.send_multipart([COUNT.pack(0) + b"head", told, bytes(TILE_FRAME), bytes(TILE_FRAME)])
    with pytest.raises(RunError, match="the wire is broken"):
        until_rejected(one, 1)


@pytest.fixture(params=[Guard(verify=True), Guard(encrypt=True), Guard(encrypt=True, verify=True)], ids=str)
def guarded(request: pytest.FixtureRequest) -> Iterator[tuple[ZmqTransport, ZmqTransport]]:
    made = [ZmqTransport(rank, 2, TOKEN, guard=request.param) for rank in range(2)]
    for transport in made:
        transport.connect([other.endpoint for other in made])
    yield made[0], made[1]
    for transport in made:
        transport.close()


@pytest.mark.parametrize("size", [None, 0, 1, TILE_FRAME, TILE_FRAME + 1, 3 * TILE_FRAME + 7])
def test_guarded_tiles_of_any_size_arrive_whole(guarded: tuple[ZmqTransport, ZmqTransport], size: int | None) -> None:
    zero, one = guarded
    body = None if size is None else bytes(number % 251 for number in range(size))
    for sender, peer in ((zero, 1), (one, 0)):
        sender.send(peer, b"head", None if body is None else memoryview(body), 0)
    for receiver in (one, zero):
        found = received(receiver)
        assert found.header == b"head"
        assert (None if found.payload is None else bytes(found.payload)) == body
    assert zero.total() == (size or 0)


@pytest.mark.parametrize("payload", [None, b"body", bytes(2 * TILE_FRAME)])
@pytest.mark.parametrize("change", ["header", "payload", "seal", "none"])
def test_a_corrupted_tile_is_refused_by_name(make: Make, payload: bytes | None, change: str) -> None:
    one = ZmqTransport(1, 2, TOKEN, guard=Guard(verify=True))
    one.connect(["tcp://127.0.0.1:9#none", one.endpoint])
    peer = prove(make(zmq.DEALER), key(one))
    peer.connect(address(one))
    peer.send(greeting(one))
    first, told = COUNT.pack(0) + b"head", None if payload is None else memoryview(payload)
    frames = [first]
    if payload is not None and len(payload) > TILE_FRAME:
        frames += [SIZE.pack(len(payload)), payload[:TILE_FRAME], payload[TILE_FRAME:]]
    elif payload is not None:
        frames.append(payload)
    frames.append(seal(key(one), 0, 1, first, told))
    place = {"header": 0, "payload": len(frames) - 2, "seal": len(frames) - 1}.get(change)
    if place is not None:
        frames[place] = frames[place][:-1] + bytes([frames[place][-1] ^ 1])
    peer.send_multipart(frames)
    if change == "none":
        assert received(one).header == b"head"
    else:
        with pytest.raises(RunError, match="rank 1: message 0 of rank 0 is not what it sent: its seal is wrong"):
            until_rejected(one, 1)
    one.close()


def test_a_receiver_that_does_not_know_the_key_is_named(make: Make) -> None:
    """An impostor has heard the password on the wire, where it goes as it is, and takes the receiver's place."""
    impostor = make(zmq.ROUTER)
    be_receiver(impostor, "another key")
    gate = Gate(impostor.context, "another key", 1, 2)
    gate._passwords[b"0"] = password(TOKEN, 0, 1)
    zero = ZmqTransport(0, 2, TOKEN)
    zero.connect([zero.endpoint, f"{bind(impostor, LOOPBACK)}#{TOKEN}"])
    zero.send(1, b"head", memoryview(b"body"), 0)
    assert gate.socket.poll(TIMEOUT_S * 1000)
    gate.answer()
    assert impostor.poll(TIMEOUT_S * 1000)
    impostor.send_multipart([impostor.recv_multipart()[0], bytes(16)])
    with pytest.raises(RunError, match=r"what answers at tcp://.* does not know the key of rank 1"):
        until_rejected(zero, 1)
    gate.socket.close()
    zero.close()


def test_nobody_on_the_way_reads_an_encrypted_tile() -> None:
    """The bytes of a connection, as they are on the wire."""
    secret = b"the weights of the model " * 8
    found = {encrypt: wire_bytes(Guard(encrypt=encrypt), secret) for encrypt in (False, True)}
    assert secret in found[False]
    assert secret[:25] not in found[True]
    assert len(found[True]) > len(secret)


def wire_bytes(guard: Guard, payload: bytes) -> bytes:
    zero, one = (ZmqTransport(rank, 2, TOKEN, guard=guard) for rank in range(2))
    with tapped(address(one)) as (where, seen):
        zero.connect([zero.endpoint, f"{where}#{key(one)}"])
        one.connect([zero.endpoint, one.endpoint])
        zero.send(1, b"head", memoryview(payload), 0)
        assert bytes(received(one).payload or b"") == payload
    for transport in (zero, one):
        transport.close()
    return bytes(seen)


def test_a_tile_that_no_frame_carries_is_refused_before_it_is_sent(pair: tuple[ZmqTransport, ZmqTransport]) -> None:
    zero, _ = pair

    class Huge:
        nbytes = MAX_PAYLOAD + 1

    with pytest.raises(RunError, match="use a plan that cuts it finer"):
        zero.send(1, b"", Huge(), 0)  # type: ignore[arg-type]
    assert zero.total() == 0


def test_a_rank_may_send_to_more_ranks_than_zeromq_has_sockets_as_it_comes() -> None:
    """Each of 400 is a socket with two that watch it, and ZeroMQ has 1,023."""
    limits, needed = resource.getrlimit(resource.RLIMIT_NOFILE), 4096
    if limits[1] != resource.RLIM_INFINITY and limits[1] < needed:
        pytest.skip(f"needs {needed} open files, and may have {limits[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(needed, limits[0]), limits[1]))
    transport = ZmqTransport(0, 401, TOKEN)
    try:
        nobody = f"tcp://127.0.0.1:9#{'0' * 32}"
        transport.connect([transport.endpoint, *[nobody] * 400])
        for peer in range(1, 401):
            transport.send(peer, b"to nobody", None, 0)
    finally:
        transport.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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
