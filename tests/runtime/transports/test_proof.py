"""Proof: nothing of a stranger's comes in, at the launcher's socket and at that for tiles, and little of it is held."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
import zmq
from stranger import Stranger

from maniple.runtime.transports import proof
from maniple.runtime.transports.message import MAX_FRAME, PROTOCOL, Hello, decode, encode, frames
from maniple.runtime.transports.tile_frames import TILE_FRAME
from maniple.runtime.transports.transport import LOOPBACK
from maniple.runtime.transports.zeromq import ZmqTransport, bind, make_socket

TOKEN, TIMEOUT_MS = "the secret of the run", 20_000
HELLO = encode(Hello(0, 0, 1, "h", 2, "tcp://127.0.0.1:1", PROTOCOL, 0))
FLOOD = 8 << 20


class Sockets:
    """Sockets that are closed with the test."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._made: list[zmq.Socket[bytes]] = []

    def plain(self, kind: int) -> zmq.Socket[bytes]:
        self._made.append(make_socket(self._context, kind, sending=10, receiving=10))
        return self._made[-1]

    def coordinator(self, token: str = TOKEN) -> zmq.Socket[bytes]:
        made = self.plain(zmq.ROUTER)
        proof.be_coordinator(made, token)
        return made

    def rank(self, endpoint: str, token: str = TOKEN) -> zmq.Socket[bytes]:
        made = self.plain(zmq.DEALER)
        proof.be_rank(made, token)
        made.connect(endpoint)
        return made

    def stranger(self, endpoint: str) -> zmq.Socket[bytes]:
        made = self.plain(zmq.DEALER)
        made.connect(endpoint)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close(linger=0)
        self._context.term()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.close()


@pytest.fixture
def coordinator(sockets: Sockets) -> tuple[zmq.Socket[bytes], str]:
    """The launcher's socket, and where it is."""
    router = sockets.coordinator()
    return router, bind(router, LOOPBACK)


def resident() -> int:
    """Bytes of memory that this process has."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def test_whoever_knows_the_secret_is_heard_and_hears(
    sockets: Sockets, coordinator: tuple[zmq.Socket[bytes], str]
) -> None:
    router, endpoint = coordinator
    one = sockets.rank(endpoint)
    large = bytes(range(256)) * 1000
    one.send_multipart(frames(large))
    assert router.poll(TIMEOUT_MS)
    name, *parts = router.recv_multipart()
    assert b"".join(parts) == large
    assert max(map(len, parts)) <= MAX_FRAME
    router.send_multipart([name, b"answer"])
    assert one.poll(TIMEOUT_MS)
    assert one.recv() == b"answer"


def test_strangers_are_not_heard_by_the_launcher(sockets: Sockets, coordinator: tuple[zmq.Socket[bytes], str]) -> None:
    """A socket without a proof, one with another run's, and those that speak by hand; the first word is a rank's."""
    router, endpoint = coordinator
    sockets.stranger(endpoint).send(HELLO)
    sockets.rank(endpoint, "the secret of another run").send(HELLO)
    with Stranger(endpoint) as one, Stranger(endpoint, b"CURVE") as other, Stranger(endpoint, b"PLAIN") as third:
        for stranger in (one, other, third):
            stranger.ready()
            stranger.frame(HELLO)
        assert all(stranger.is_let_go() for stranger in (one, other, third))
    sockets.rank(endpoint).send(b"a rank")
    assert router.poll(TIMEOUT_MS)
    assert router.recv_multipart()[1:] == [b"a rank"]
    assert not router.poll(100)


def test_a_rank_takes_nobody_else_for_the_launcher(sockets: Sockets) -> None:
    """At a port that another run's launcher has taken over, a rank says nothing."""
    other, plain = sockets.coordinator("the secret of another run"), sockets.plain(zmq.ROUTER)
    for router in (other, plain):
        sockets.rank(bind(router, LOOPBACK)).send(HELLO)
    assert not other.poll(300)
    assert not plain.poll(1)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no way to see what memory this process has")
@pytest.mark.parametrize("plane", ["control", "tiles"])
@pytest.mark.parametrize("what", ["parts", "frame", "unfinished"])
def test_a_flood_is_not_kept(coordinator: tuple[zmq.Socket[bytes], str], plane: str, what: str) -> None:
    """Parts without an end, a frame that is too long, and one that is claimed to be huge: all are let go."""
    tiles = ZmqTransport(1, 2, TOKEN)
    endpoint = coordinator[1] if plane == "control" else tiles.endpoint.partition("#")[0]
    largest = MAX_FRAME if plane == "control" else TILE_FRAME
    mechanism = b"CURVE" if plane == "control" else b"PLAIN"
    before = resident()
    for claimed in (b"NULL", mechanism):
        with Stranger(endpoint, claimed) as stranger:
            if what == "parts":
                stranger.ready()
            elif what == "frame":
                stranger.say(b"\x06" + (largest + 1).to_bytes(8, "big"))
            else:
                stranger.say(b"\x06" + (2**62).to_bytes(8, "big"))
            while not stranger.closed and stranger.sent < FLOOD:
                stranger.say(b"\x01\x00" * 2048 if what == "parts" else bytes(4096))
            assert stranger.is_let_go()
    grown = resident() - before
    # Of parts of no bytes each took 64 bytes where they were kept: 32 times what was sent.
    assert grown < FLOOD // 2
    tiles.close()


def test_what_is_derived_tells_planes_ranks_and_runs_apart() -> None:
    made = [
        proof.digest(token, purpose, sender, receiver)
        for token in ("a", "b")
        for purpose in (b"name", b"hello", b"password")
        for sender in range(3)
        for receiver in range(3)
    ]
    assert len(set(made)) == len(made)
    assert not any(b"secret" in one for one in (proof.name("secret", 0, 1), proof.password("secret", 0, 1)))


def test_the_secret_never_crosses(sockets: Sockets) -> None:
    """All bytes that a rank and the launcher exchange, seen by one in between."""
    router = sockets.coordinator()
    port = int(bind(router, LOOPBACK).rpartition(":")[2])
    seen: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # an end was closed
            while data := source.recv(1 << 16):
                seen.append(data)
                target.sendall(data)

    with socket.create_server((LOOPBACK, 0)) as server:
        one = sockets.rank(f"tcp://{LOOPBACK}:{server.getsockname()[1]}")
        one.send(HELLO)
        here, _ = server.accept()
        there = socket.create_connection((LOOPBACK, port))
        threads = [threading.Thread(target=carry, args=ends) for ends in ((here, there), (there, here))]
        for thread in threads:
            thread.start()
        assert router.poll(TIMEOUT_MS)
        assert isinstance(decode(*router.recv_multipart()[1:]), Hello)
    crossed = b"".join(seen)
    assert b"CURVE" in crossed
    for secret in (TOKEN.encode(), HELLO, *proof._keys(TOKEN, b"head"), *proof._keys(TOKEN, b"rank")[1:]):
        assert secret not in crossed
    for end in (here, there):
        end.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(10)
    for end in (here, there):
        end.close()


def test_a_proof_that_is_slow_is_made_again() -> None:
    """A receiver that asks nobody for a while, as one whose program keeps the interpreter, is dialled until it does."""
    one, zero = ZmqTransport(1, 2, TOKEN), ZmqTransport(0, 2, TOKEN)
    zero.connect([zero.endpoint, one.endpoint])
    zero.send(1, b"head", None, 0)
    one._router.poll(200)
    end = monotonic() + TIMEOUT_MS / 1000
    found = one.poll(1.0)
    while not found:
        assert monotonic() < end
        found = one.poll(1.0)
    assert [(each.peer, each.header) for each in found] == [(0, b"head")]
    zero.close()
    one.close()
