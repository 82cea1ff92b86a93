"""Streams of tiles: in turn with messages, where they belong, from proved ranks alone, and never less than was sent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from time import monotonic

import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.copy_kernels import LOAN_BYTES, bind_loan
from maniple.runtime.transports.proof import HANDSHAKE_S, STREAM_GREETING, STREAM_HEAD, stream_greeting
from maniple.runtime.transports.redial import PATIENCE_S
from maniple.runtime.transports.streams.inlet import _AT_ONCE, _GATHERED, LEAST, Message
from maniple.runtime.transports.streams.tile_streams import MOST_CALLERS, TileStreams
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Guard
from maniple.runtime.transports.zeromq import ZmqTransport
from maniple.testing.fault_link import FaultLink, LinkFault

TIMEOUT_S = 30.0
Pair = tuple[ZmqTransport, ZmqTransport]


def parts(transport: ZmqTransport) -> tuple[str, str, int]:
    """The address of messages, the key, and the port of streams."""
    where, _, told = transport.endpoint.partition("#")
    key, _, port = told.partition(":")
    return where, key, int(port)


@contextmanager
def pair(guard: Guard = Guard(), fault: LinkFault | None = None) -> Iterator[tuple[ZmqTransport, ZmqTransport]]:  # noqa: B008 - a value
    """Two ranks, whose stream from 0 to 1 is up; it leads over a link if that has a fault."""
    zero, one = (ZmqTransport(rank, 2, "secret", guard=guard) for rank in range(2))
    where, key, port = parts(one)
    with FaultLink(f"tcp://{LOOPBACK}:{port}", fault, framed=False) as link:
        if fault is not None:
            port = int(link.endpoint.rpartition(":")[2])
        zero.connect([zero.endpoint, f"{where}#{key}:{port}"])
        one.connect([zero.endpoint, one.endpoint])
        zero.send(1, b"first", memoryview(bytes(LEAST)), 0)
        found: list[Delivery] = []
        end = monotonic() + TIMEOUT_S
        while not found or not is_up(zero):
            found += turn(zero, one)
            assert monotonic() < end
        yield zero, one
        for transport in (zero, one):
            transport.close()


def is_up(zero: ZmqTransport) -> bool:
    assert zero._streams is not None
    return zero._streams._outlets[1].is_up


def turn(zero: ZmqTransport, one: ZmqTransport) -> list[Delivery]:
    zero.poll(0.001)
    return one.poll(0.001)


def arrivals(zero: ZmqTransport, one: ZmqTransport, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    end = monotonic() + TIMEOUT_S
    while len(found) < count:
        found += turn(zero, one)
        assert monotonic() < end
    return found


def until(transport: ZmqTransport, end: float) -> None:
    while monotonic() < end:
        transport.poll(0.1)


def body(size: int, number: int) -> bytes:
    return bytes([number % 251]) * (size - size // 2) + bytes([number % 83]) * (size // 2)


sizes = st.lists(st.sampled_from([None, 0, 1, LEAST - 1, LEAST, LEAST + 1, 70_000, 3 << 20]), min_size=1, max_size=12)


@pytest.mark.parametrize("guard", [Guard(), Guard(verify=True)], ids=str)
def test_tiles_and_messages_arrive_whole_and_in_turn(guard: Guard) -> None:
    with pair(guard) as (zero, one):

        @settings(max_examples=15, deadline=None)
        @given(sizes)
        def law(sent: Sequence[int | None]) -> None:
            bodies = [None if size is None else body(size, number) for number, size in enumerate(sent)]
            for number, each in enumerate(bodies):
                zero.send(1, b"%d" % number, None if each is None else memoryview(each), 0)
            came = [(each.header, each.payload) for each in arrivals(zero, one, len(sent))]
            assert [header for header, _ in came] == [b"%d" % number for number in range(len(sent))]
            assert [None if payload is None else bytes(payload) for _, payload in came] == bodies

        law()
        assert zero._streams is not None
        assert zero._streams._outlets[1]._sent > 0


def test_a_tile_is_received_where_it_belongs() -> None:
    with pair() as (zero, one):
        asked: list[tuple[int, int, int]] = []
        places = {size: memoryview(bytearray(size)) for size in (LEAST, 2 * LEAST)}

        def place(peer: int, size: int, behind: int) -> memoryview | None:
            asked.append((peer, size, behind))
            return places.get(size)

        one.place = place
        for size in (LEAST, 2 * LEAST, 3 * LEAST):
            zero.send(1, b"", memoryview(body(size, 9)), 0)
        before = one.poll(0)
        came = before + arrivals(zero, one, 3 - len(before))
        assert [payload is places.get(payload.nbytes) for payload in (each.payload for each in came) if payload] == [
            True,
            True,
            False,
        ]
        assert [bytes(each.payload or b"") for each in came] == [
            body(size, 9) for size in (LEAST, 2 * LEAST, 3 * LEAST)
        ]
        assert [size for _, size, _ in asked] == [LEAST, 2 * LEAST, 3 * LEAST]
        assert asked[0] == (0, LEAST, 0)
        assert all(behind < number + 1 for number, (_, _, behind) in enumerate(asked))


def test_a_loan_ends_when_its_bytes_have_left_and_is_not_copied() -> None:
    """The receiver reads nothing before: the socket has the bytes."""
    with pair() as (zero, one):
        tile = torch.full((LOAN_BYTES,), 7, dtype=torch.uint8)
        lend = bind_loan(tile, Rect((0,), (LOAN_BYTES,)))
        assert lend is not None
        back = threading.Event()
        zero.send(1, b"lent", lend(back.set), 1)
        while not back.is_set():
            zero.poll(0.001)
        tile.fill_(8)
        (delivery,) = arrivals(zero, one, 1)
        assert bytes(delivery.payload or b"") == bytes([7]) * LOAN_BYTES
        assert zero.count_bytes(1) == LOAN_BYTES


def test_a_tile_that_is_larger_than_the_sockets_hold_goes_as_they_drain() -> None:
    with pair() as (zero, one):
        sent = body(64 << 20, 3)
        zero.send(1, b"large", memoryview(sent), 0)
        zero.send(1, b"behind", None, 0)
        large, behind = arrivals(zero, one, 2)
        assert (large.header, behind.header) == (b"large", b"behind")
        assert bytes(large.payload or b"") == sent


def test_a_stream_that_breaks_between_tiles_goes_on() -> None:
    with pair(fault=LinkFault("none")) as (zero, one):
        zero.send(1, b"before", memoryview(body(LEAST, 1)), 0)
        assert arrivals(zero, one, 1)[0].header == b"before"
        assert zero._streams is not None
        outlet, inlet = zero._streams._outlets[1], (one._streams or zero._streams)._inlets[0]
        assert inlet._link is not None
        first = inlet._link
        inlet._link.shutdown(socket.SHUT_RDWR)
        end = monotonic() + TIMEOUT_S
        while not outlet.broke:
            turn(zero, one)
            assert monotonic() < end
        zero.send(1, b"meanwhile", memoryview(body(LEAST, 2)), 0)
        came: list[Delivery] = []
        while outlet.broke or inlet._link is first:
            came += turn(zero, one)
            assert monotonic() < end
        zero.send(1, b"after", memoryview(body(LEAST, 3)), 0)
        came += arrivals(zero, one, 2 - len(came))
        assert [(each.header, bytes(each.payload or b"")) for each in came] == [
            (b"meanwhile", body(LEAST, 2)),
            (b"after", body(LEAST, 3)),
        ]
        assert inlet._done == 2


def test_a_stream_that_breaks_within_a_tile_is_an_error_with_the_rank() -> None:
    with pair(fault=LinkFault("cut", message=1)) as (zero, one):
        zero.send(1, b"cut", memoryview(bytes(10 << 20)), 0)
        with pytest.raises(RunError, match=r"rank 1: \d+ bytes of tiles of rank 0 were lost; the connection"):
            arrivals(zero, one, 1)


def test_a_corrupted_tile_is_refused_by_name() -> None:
    with pair(Guard(verify=True), LinkFault("corrupt", message=1)) as (zero, one):
        zero.send(1, b"head", memoryview(bytes(LEAST)), 0)
        with pytest.raises(RunError, match="rank 1: message 1 of rank 0 is not what it sent: its seal is wrong"):
            arrivals(zero, one, 1)


def test_a_rank_whose_tiles_are_encrypted_has_no_stream() -> None:
    with closing(ZmqTransport(0, 1, "secret", guard=Guard(encrypt=True))) as alone:
        assert alone._streams is None
        assert ":" not in alone.endpoint.partition("#")[2]


@pytest.mark.parametrize(
    ("number", "length", "size"), [(0, 4, LEAST - 1), (0, 4, 2**62), (0, 5000, LEAST), (2**31, 4, LEAST)]
)
def test_a_head_of_what_there_cannot_be_is_an_error(number: int, length: int, size: int) -> None:
    one = ZmqTransport(1, 2, "secret")
    _, key, port = parts(one)
    with closing(one), socket.create_connection((LOOPBACK, port), TIMEOUT_S) as link:
        one.poll(TIMEOUT_S)
        asked = link.recv(16, socket.MSG_WAITALL)
        link.sendall(stream_greeting(key, asked, (0, 1), 0, b"n" * 16))
        one.poll(TIMEOUT_S)
        assert len(link.recv(16, socket.MSG_WAITALL)) == 16
        link.sendall(STREAM_HEAD.pack(number, length, size))
        with pytest.raises(
            RunError, match=rf"rank 1: rank 0 sends a tile of {size} bytes by a stream; the wire is brok"
        ):
            until(one, monotonic() + TIMEOUT_S)


@contextmanager
def opened(one: ZmqTransport, carried: int = 0) -> Iterator[socket.socket]:
    """A stream of rank 0 to a rank, by hand; its hello has come by ZeroMQ."""
    one._received[0] = 0
    _, key, port = parts(one)
    with socket.create_connection((LOOPBACK, port), TIMEOUT_S) as link:
        one.poll(TIMEOUT_S)
        asked = link.recv(16, socket.MSG_WAITALL)
        link.sendall(stream_greeting(key, asked, (0, 1), carried, b"n" * 16))
        one.poll(TIMEOUT_S)
        assert len(link.recv(16, socket.MSG_WAITALL)) == 16
        yield link


def wakes(one: ZmqTransport, wait_ms: int) -> bool:
    """Whether what has come by the stream of rank 0 wakes a rank."""
    assert one._streams is not None
    link = one._streams._inlets[0]._link
    assert link is not None
    return link.fileno() in dict(one._poller.poll(wait_ms))


def test_a_rank_is_woken_by_a_good_part_of_a_tile_and_by_its_end() -> None:
    one, size = ZmqTransport(1, 2, "secret"), 1 << 20
    with closing(one), opened(one) as link:
        link.sendall(STREAM_HEAD.pack(0, 4, size) + b"head" + bytes(1000))
        assert one.poll(TIMEOUT_S) == []
        link.sendall(bytes(1000))
        assert not wakes(one, 100)
        link.sendall(bytes(_GATHERED))
        assert wakes(one, 1000 * int(TIMEOUT_S))
        assert one.poll(TIMEOUT_S) == []
        left = size - 2000 - _GATHERED
        for part in (_GATHERED, left - _GATHERED):
            link.sendall(bytes(part))
        found: list[Delivery] = []
        while not found:
            assert wakes(one, 1000 * int(TIMEOUT_S))
            found = one.poll(TIMEOUT_S)
        assert [(each.header, len(each.payload or b"")) for each in found] == [(b"head", size)]
        next_head = STREAM_HEAD.pack(1, 0, LEAST)
        link.sendall(next_head[:2])
        assert not wakes(one, 100)
        link.sendall(next_head[2:])
        assert wakes(one, 1000 * int(TIMEOUT_S))


@pytest.mark.parametrize("rest", [1, 1000, _GATHERED])
def test_a_short_tile_behind_a_long_one_is_not_waited_for(rest: int) -> None:
    """What woke the rank for the last part of the long one is more than the short one is."""
    one, size = ZmqTransport(1, 2, "secret"), 1 << 20
    with closing(one), opened(one) as link:
        link.sendall(STREAM_HEAD.pack(0, 4, size) + b"long" + bytes(size - rest))
        found: list[Delivery] = []
        while wakes(one, 100):
            found += one.poll(0)
        assert found == []
        link.sendall(bytes(rest))
        while not found:
            found = one.poll(TIMEOUT_S)
        link.sendall(STREAM_HEAD.pack(1, 5, LEAST) + b"short" + bytes(LEAST))
        end = monotonic() + TIMEOUT_S
        while len(found) < 2:
            found += one.poll(TIMEOUT_S)
            assert monotonic() < end
        assert [each.header for each in found] == [b"long", b"short"]


def test_many_tiles_are_read_in_one_turn_and_others_have_theirs() -> None:
    one = ZmqTransport(1, 2, "secret")
    with closing(one), opened(one) as link:
        tiles = b"".join(STREAM_HEAD.pack(number, 0, LEAST) + bytes([number]) * LEAST for number in range(_AT_ONCE + 9))
        sending = threading.Thread(target=link.sendall, args=(tiles,))
        sending.start()
        found: list[Delivery] = []
        end = monotonic() + TIMEOUT_S
        while len(found) < _AT_ONCE + 9:
            came = one.poll(TIMEOUT_S)
            assert len(came) <= _AT_ONCE
            found += came
            assert monotonic() < end
        sending.join()
        assert [bytes(each.payload or b"")[:1] for each in found] == [bytes([number]) for number in range(_AT_ONCE + 9)]


def test_what_a_broken_stream_still_has_is_read_though_it_would_wake_nobody() -> None:
    """The stream that follows says how much that is, and the end of the first one never comes."""
    one, size = ZmqTransport(1, 2, "secret"), 1 << 20
    with closing(one), opened(one) as first:
        said = STREAM_HEAD.pack(0, 4, size) + b"head" + bytes(1000)
        first.sendall(said)
        assert one.poll(TIMEOUT_S) == []
        first.sendall(bytes(500))
        with opened(one, len(said) + 500) as second:
            second.sendall(bytes(size - 1500))
            found: list[Delivery] = []
            end = monotonic() + TIMEOUT_S
            while not found:
                found = one.poll(TIMEOUT_S)
                assert monotonic() < end
        assert [(each.header, len(each.payload or b"")) for each in found] == [(b"head", size)]


def test_each_way_waits_for_what_comes_before_by_the_other() -> None:
    """A tile that overtakes a message of ZeroMQ, and a message that overtakes a tile."""
    with pair() as (zero, one):
        assert one._streams is not None
        held, read = one._received[0], one._streams.inlet(0)
        for number in range(3):
            zero.send(1, b"message %d" % number, memoryview(body(9, number)), 0)
            zero.send(1, b"tile %d" % number, memoryview(body(LEAST, number)), 0)
        assert read._done == 0
        assert one._received[0] == held
        came = arrivals(zero, one, 6)
        assert [each.header for each in came] == [
            b"%s %d" % (kind, number) for number in range(3) for kind in (b"message", b"tile")
        ]
        assert [bytes(each.payload or b"") for each in came] == [
            body(size, number) for number in range(3) for size in (9, LEAST)
        ]


# Who may open a stream


class Clocked:
    """Streams of rank 1 of three, with a clock of the test's."""

    def __init__(self) -> None:
        self.poller, self.now = zmq.Poller(), 0.0
        self.streams = TileStreams(self.poller, 1, 3, "key of 1", LOOPBACK, clock=lambda: self.now)

    def serve(self) -> None:
        self.streams.serve(dict(self.poller.poll(50)))

    def call(self) -> tuple[socket.socket, bytes]:
        """Connect, and hear what is asked."""
        link = socket.create_connection((LOOPBACK, self.streams.port), TIMEOUT_S)
        self.serve()
        return link, link.recv(16, socket.MSG_WAITALL)


@pytest.fixture
def clocked() -> Iterator[Clocked]:
    made = Clocked()
    yield made
    made.streams.close()


@pytest.mark.parametrize(
    ("rank", "key", "receiver", "fresh"),
    [(0, "key of 2", 1, True), (2, "key of 1", 2, True), (1, "key of 1", 1, True), (3, "key of 1", 1, True),
     (0, "key of 1", 1, False)],
)  # fmt: skip
def test_a_wrong_proof_is_refused(clocked: Clocked, rank: int, key: str, receiver: int, fresh: bool) -> None:
    """Another run's, for another pair, of the rank itself, of no rank, and one that answers an older question."""
    link, asked = clocked.call()
    with link:
        link.sendall(stream_greeting(key, asked if fresh else bytes(16), (rank, receiver), 0, b"n" * 16))
        clocked.serve()
        assert clocked.streams.rejected == 1
        assert link.recv(1) == b""


@pytest.mark.parametrize("place", [0, 4, 12], ids=["rank", "bytes carried", "nonce"])
def test_nothing_of_a_greeting_can_be_put_in_its_place(clocked: Clocked, place: int) -> None:
    link, asked = clocked.call()
    with link:
        said = bytearray(stream_greeting("key of 1", asked, (0, 1), 0, b"n" * 16))
        said[place] ^= 2
        link.sendall(said)
        clocked.serve()
        assert clocked.streams.rejected == 1
        assert link.recv(1) == b""
    assert clocked.streams._inlets == {}


def test_a_flood_of_strangers_keeps_no_rank_out(clocked: Clocked) -> None:
    """However many wait to be accepted, a turn accepts a bounded number, and a rank that speaks is heard."""
    flood = [socket.create_connection((LOOPBACK, clocked.streams.port), TIMEOUT_S) for _ in range(MOST_CALLERS + 30)]
    clocked.serve()
    assert len(clocked.streams._callers) == MOST_CALLERS
    link, asked = clocked.call()
    with link:
        link.sendall(stream_greeting("key of 1", asked, (0, 1), 0, b"n" * 16))
        clocked.serve()
        assert len(link.recv(16, socket.MSG_WAITALL)) == 16
    assert list(clocked.streams._inlets) == [0]
    for each in flood:
        each.close()


def test_a_stranger_is_let_go_of_in_time_and_nothing_of_it_is_kept(clocked: Clocked) -> None:
    link, _ = clocked.call()
    with link:
        link.sendall(b"half")
        clocked.serve()
        assert clocked.streams.wait_s(None) is not None
        clocked.now = HANDSHAKE_S + 1
        clocked.serve()
        assert link.recv(1) == b""
    assert clocked.streams.wait_s(None) is None


def test_no_more_strangers_are_kept_than_a_few(clocked: Clocked) -> None:
    links = [clocked.call()[0] for _ in range(MOST_CALLERS + 5)]
    assert [link.recv(1) for link in links[:5]] == [b""] * 5
    assert len(clocked.streams._callers) == MOST_CALLERS
    for link in links:
        link.close()


def test_an_impostor_in_a_receivers_place_is_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as impostor, closing(ZmqTransport(0, 2, "secret")) as zero:
        one = ZmqTransport(1, 2, "secret")
        where, key, _ = parts(one)
        zero.connect([zero.endpoint, f"{where}#{key}:{impostor.getsockname()[1]}"])
        zero.send(1, b"", memoryview(bytes(LEAST)), 0)
        link, _ = impostor.accept()
        with link:
            link.sendall(bytes(16))
            zero.poll(0.5)
            assert len(link.recv(STREAM_GREETING.size, socket.MSG_WAITALL)) == STREAM_GREETING.size
            link.sendall(bytes(16))
            with pytest.raises(
                RunError, match=r"rank 0: what answers at \S*127.0.0.1:\d+ does not know the key of rank 1"
            ):
                zero.poll(TIMEOUT_S)
        one.close()


def test_a_peer_that_takes_no_stream_gets_its_tiles_by_messages() -> None:
    zero, one = (ZmqTransport(rank, 2, "secret") for rank in range(2))
    with closing(zero), closing(one), socket.create_server((LOOPBACK, 0)) as taken:
        where, key, _ = parts(one)
        zero.connect([zero.endpoint, f"{where}#{key}:{taken.getsockname()[1]}"])
        for number in range(3):
            zero.send(1, b"", memoryview(body(LEAST, number)), 0)
        came = [bytes(each.payload or b"") for each in arrivals(zero, one, 3)]
        assert came == [body(LEAST, number) for number in range(3)]


def test_a_message_behind_a_tile_whose_stream_does_not_come_back_is_an_error_with_the_rank(clocked: Clocked) -> None:
    def room(_peer: int, size: int, _others: int) -> memoryview:
        return memoryview(bytearray(size))

    taken: list[Message] = []
    assert not clocked.streams.inlet(0).hold(0, Message(b"in its turn", None))
    assert clocked.streams.inlet(2).hold(1, Message(b"behind a tile", None))
    read = partial(clocked.streams.read, {}, [0, 0, 1], room, lambda _peer, message: taken.append(message))
    read()
    assert clocked.streams.wait_s(None) == 1.0
    clocked.now = PATIENCE_S + 1
    with pytest.raises(RunError, match="rank 1: the stream of tiles with rank 2 broke, and cannot be made again"):
        read()
    assert taken == []


def test_an_interface_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(RunError, match=r"no port of 192\.0\.2\.1 could be bound for tiles: .*; see maniple doctor"):
        TileStreams(zmq.Poller(), 0, 2, "key", "192.0.2.1")


def test_the_greeting_is_as_long_as_its_fields() -> None:
    assert STREAM_GREETING.size == struct.calcsize("<IQ") + 32
