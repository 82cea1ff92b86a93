"""The data plane's contract, kept by every transport: order per pair, integrity, measured bytes, waking, closing."""

from __future__ import annotations

import importlib.util
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import torch

from maniple.process.error import RequestError, RunError
from maniple.regions.rectangle import Rect
from maniple.runtime.control.loopback import LoopbackHub
from maniple.runtime.control.world import World
from maniple.runtime.execution.run_measurement import gather_bytes
from maniple.runtime.storage.copy_kernels import LOAN_BYTES, bind_loan
from maniple.runtime.transports import gloo as gloo_transport
from maniple.runtime.transports import gloo_group
from maniple.runtime.transports.gloo import GlooTransport
from maniple.runtime.transports.gloo_group import GlooGroup
from maniple.runtime.transports.registry import TRANSPORTS
from maniple.runtime.transports.shared_or_gloo import SharedOrGloo
from maniple.runtime.transports.shared_or_sockets import SharedOrSockets
from maniple.runtime.transports.transport import REMEMBERED, Delivery, Guard, Meter, Transport
from maniple.runtime.transports.zeromq import ZmqTransport

TIMEOUT_S = 30.0
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "custom_transport.py"
Made = Callable[[int], Sequence[Transport]]


def loopback(size: int) -> list[Transport]:
    hub = LoopbackHub(size)
    return [hub.endpoint(rank) for rank in range(size)]


def shuffled(size: int) -> list[Transport]:
    hub = LoopbackHub(size, shuffle=5)
    return [hub.endpoint(rank) for rank in range(size)]


def joined(kind: Callable[[int, int, str], Transport], size: int) -> list[Transport]:
    """Ends that have told each other their endpoints, as ranks do at the join."""
    made = [kind(rank, size, "secret") for rank in range(size)]
    for transport in made:
        transport.connect([other.endpoint for other in made])
    return made


def zeromq(size: int) -> list[Transport]:
    return joined(ZmqTransport, size)


def gloo(size: int) -> list[Transport]:
    """Tiles of 2 KiB already are large, so that both ways are taken in turn."""
    """Ends that take both ways in turn."""
    return joined(partial(GlooTransport, least=5000), size)


def guarded(size: int) -> list[Transport]:
    made: list[Transport] = [ZmqTransport(rank, size, "secret", guard=Guard(True, True)) for rank in range(size)]
    for transport in made:
        transport.connect([other.endpoint for other in made])
    return made


def example(size: int) -> list[Transport]:
    found = importlib.util.spec_from_file_location("custom_transport", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return joined(module.UnixTransport, size)


@pytest.fixture(params=[loopback, shuffled, zeromq, gloo, guarded, example])
def ends(request: pytest.FixtureRequest) -> Iterator[Made]:
    made: list[Transport] = []

    def make(size: int) -> Sequence[Transport]:
        made.extend(request.param(size))
        return made

    yield make
    for transport in made:
        transport.close()


def take(transport: Transport, count: int) -> list[Delivery]:
    """Poll until so many deliveries are there; a poll may end without one, as when a connection is greeted."""
    found: list[Delivery] = []
    end = monotonic() + TIMEOUT_S
    while len(found) < count:
        found += transport.poll(TIMEOUT_S)
        assert monotonic() < end, f"{len(found)} of {count} arrived"
    return found


def test_the_example_delivers_no_part_of_a_message() -> None:
    """A socket is closed in the middle of a head, a header and a payload."""
    whole = struct.pack("<IIq", 0, 2, 3) + b"hd" + b"abc"
    for cut in range(1, len(whole)):
        zero, one = example(2)
        with closing(zero), closing(one), socket.socket(socket.AF_UNIX) as link:
            link.connect(one.endpoint)
            link.sendall(whole)
            assert shown(take(one, 1)) == [(0, b"hd", b"abc")]
            link.sendall(whole[:cut])
            link.close()
            for _ in range(2):
                with pytest.raises(RunError, match=r"expected the rest of a message, .*messages were lost"):
                    take(one, 1)


def shown(deliveries: Sequence[Delivery]) -> list[tuple[int, bytes, bytes | None]]:
    return [(one.peer, one.header, None if one.payload is None else bytes(one.payload)) for one in deliveries]


def test_headers_and_payloads_arrive_as_they_were_sent(ends: Made) -> None:
    zero, one = ends(2)
    body = bytes(range(256)) * 1000
    zero.send(1, b"head", memoryview(body), 1)
    zero.send(1, b"alone", None, 1)
    zero.send(1, b"empty", memoryview(b""), 1)
    assert shown(take(one, 3)) == [(0, b"head", body), (0, b"alone", None), (0, b"empty", b"")]


@pytest.mark.parametrize("made", [zeromq, guarded])
@pytest.mark.parametrize("size", [LOAN_BYTES, 1 << 20])
def test_what_is_lent_comes_back_once_it_has_left(made: Made, size: int) -> None:
    zero, one = made(2)
    with closing(zero), closing(one):
        assert zero.lends
        lend = bind_loan(torch.full((size,), 7, dtype=torch.uint8), Rect((0,), (size,)))
        assert lend is not None
        back = threading.Event()
        zero.send(1, b"lent", lend(back.set), 1)
        (delivery,) = take(one, 1)
        assert delivery.payload == bytes([7]) * size
        assert back.wait(TIMEOUT_S)


@pytest.mark.parametrize("made", [zeromq, guarded, gloo])
def test_a_large_payload_is_written_where_it_belongs(made: Made) -> None:
    """By those that can: they ask which payload of its sender it is, with those that they still have."""
    zero, one = made(2)
    with closing(zero), closing(one):
        asked: list[tuple[int, int, int]] = []
        places = [memoryview(bytearray(1_100_000)), memoryview(bytearray(1_200_000))]

        def place(peer: int, size: int, behind: int) -> memoryview | None:
            asked.append((peer, size, behind))
            return places[len(asked) - 1] if len(asked) <= len(places) else None

        one.place = place
        zero.send(1, b"", memoryview(b"small"), 0)
        for size in (1_100_000, 1_200_000, 1_300_000):
            zero.send(1, b"", memoryview(bytes([size // 100_000]) * size), 0)
        zero.send(1, b"last", None, 0)
        returned: list[Delivery] = []
        behind = []
        while len(returned) < 5:
            before, known = sum(delivery.payload is not None for delivery in returned), len(asked)
            returned += one.poll(TIMEOUT_S)
            behind += [1 + number - before for number in range(known, len(asked))]
        assert asked == [(0, size, few) for size, few in zip((1_100_000, 1_200_000, 1_300_000), behind, strict=True)]
        assert [delivery.payload is place for delivery, place in zip(returned[1:3], places, strict=True)] == [
            True,
            True,
        ]
        assert [bytes(delivery.payload or b"") for delivery in returned] == [
            b"small",
            *(bytes([size // 100_000]) * size for size in (1_100_000, 1_200_000, 1_300_000)),
            b"",
        ]


def test_the_order_of_every_pair_is_kept(ends: Made) -> None:
    made = ends(3)
    count = 200

    def send(transport: Transport) -> None:
        for number in range(count):
            payload = memoryview(bytes([number]) * (1 + 997 * number % 70000))
            transport.send(2, number.to_bytes(4, "little"), payload if number % 3 else None, 0)

    threads = [threading.Thread(target=send, args=(transport,)) for transport in made[:2]]
    for thread in threads:
        thread.start()
    found = take(made[2], 2 * count)
    for thread in threads:
        thread.join(TIMEOUT_S)
    for peer in range(2):
        mine = [one for one in found if one.peer == peer]
        assert [int.from_bytes(one.header, "little") for one in mine] == list(range(count))
        for number, one in enumerate(mine):
            if number % 3:
                assert one.payload is not None
                assert bytes(one.payload) == bytes([number]) * (1 + 997 * number % 70000)
            else:
                assert one.payload is None


def test_a_payload_stays_valid_while_later_ones_arrive(ends: Made) -> None:
    zero, one = ends(2)
    zero.send(1, b"", memoryview(b"a" * 100_000), 0)
    (first,) = take(one, 1)
    for _ in range(20):
        zero.send(1, b"", memoryview(b"b" * 100_000), 0)
    take(one, 20)
    assert first.payload is not None
    assert bytes(first.payload) == b"a" * 100_000


def test_payload_bytes_are_measured_by_account_where_they_are_sent(ends: Made) -> None:
    zero, one = ends(2)
    zero.send(1, b"a header is not counted", memoryview(bytes(10)), 1)
    zero.send(1, b"", memoryview(bytes(5)), 2)
    zero.send(1, b"", memoryview(bytes(7)), 1)
    zero.send(1, b"", None, 1)
    assert (zero.count_bytes(1), zero.count_bytes(2), zero.count_bytes(3), zero.total()) == (17, 5, 0, 22)
    take(one, 4)
    assert (one.count_bytes(1), one.total()) == (0, 0)


def test_wake_ends_a_poll_without_end(ends: Made) -> None:
    zero, _ = ends(2)
    ended = threading.Event()

    def wait() -> None:
        assert zero.poll(None) == []
        ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    zero.wake()
    assert ended.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)


def test_a_wake_before_the_poll_is_not_lost_and_several_count_as_one(ends: Made) -> None:
    zero, _ = ends(2)
    for _ in range(3):
        zero.wake()
    assert zero.poll(None) == []
    assert zero.poll(0) == []


def test_a_poll_that_does_not_wait_finds_nothing(ends: Made) -> None:
    zero, _ = ends(2)
    assert zero.poll(0) == []
    assert zero.poll(0.001) == []


def test_a_closed_transport_refuses_and_may_be_closed_again(ends: Made) -> None:
    zero, _ = ends(2)
    zero.close()
    zero.close()
    zero.wake()
    with pytest.raises(RunError, match="closed"):
        zero.send(1, b"", memoryview(b"x"), 0)
    with pytest.raises(RunError, match="closed"):
        zero.poll(0)


def test_closing_ends_a_poll_under_way(ends: Made) -> None:
    zero, _ = ends(2)
    begun, caught = threading.Event(), list[RunError]()

    def wait() -> None:
        begun.set()
        try:
            while True:
                zero.poll(None)
        except RunError as error:
            caught.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(TIMEOUT_S)
    zero.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert "closed" in str(caught[0])


@pytest.mark.parametrize("peer", [0, 2, -1])
def test_there_is_no_way_to_send_to_oneself_or_to_nobody(ends: Made, peer: int) -> None:
    zero, _ = ends(2)
    with pytest.raises(RunError, match=r"expected another rank of 0\.\.1"):
        zero.send(peer, b"", memoryview(b"x"), 0)
    assert zero.total() == 0


def test_a_tile_that_gloo_cannot_bring_is_an_error_that_names_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once: the launcher knows better which rank died, and why."""
    monkeypatch.setattr(gloo_transport, "GRACE_S", 0.2)
    zero, one = gloo(2)
    with closing(zero), closing(one):
        zero.send(1, b"small", memoryview(b"x"), 0)
        assert shown(take(one, 1)) == [(0, b"small", b"x")]
        zero.send(1, b"head", memoryview(bytes(10_000_000)), 0)
        zero.close()  # nobody has asked for the tile yet
        with pytest.raises(RunError, match=r"rank 1: the connection of Gloo with rank 0 broke: .*"):
            take(one, 1)


def test_a_rank_that_gloo_does_not_connect_is_an_error_and_no_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_group, "MEET_S", 0.2)
    alone = GlooGroup(0, 2, "127.0.0.1")
    with pytest.raises(RunError, match=r"expected a connection with every other rank within 0 s; it opens ports"):
        alone.send(memoryview(bytes(9)), 1)
    alone.leave()


def test_an_interface_that_gloo_cannot_bind_to_is_refused() -> None:
    with pytest.raises(RunError, match=r"Gloo cannot be opened on 192\.0\.2\.1: .*"):
        GlooGroup(0, 2, "192.0.2.1")


def test_a_meter_knows_the_latest_accounts_and_the_total_of_all() -> None:
    meter = Meter()
    meter.add(1, 3)
    meter.add(2, 4)
    meter.add(1, 5)
    meter.add(1 + REMEMBERED, 7)
    meter.add(1, 9)  # late, and of an account whose place is taken
    assert [meter.of(account) for account in (1, 2, 1 + REMEMBERED, 2 + REMEMBERED)] == [None, 4, 7, 0]
    assert meter.total == 28


def test_bytes_of_a_run_too_long_ago_are_refused() -> None:
    world = World.solo(processors=1, cores=1)
    world.local.add(1, 3)
    world.local.add(1 + REMEMBERED, 4)
    assert gather_bytes(world, 1 + REMEMBERED) == 4
    with pytest.raises(RequestError, match="run 1 are known no more"):
        gather_bytes(world, 1)


def test_transports_come_by_name() -> None:
    named = {"shared": SharedOrSockets, "zmq": ZmqTransport, "shared-gloo": SharedOrGloo, "gloo": GlooTransport}
    assert set(named) <= set(TRANSPORTS.names())
    assert {name: TRANSPORTS.lookup(name) for name in named} == named
    assert [TRANSPORTS.lookup(name).shares_memory for name in named] == [True, False, True, False]
    with pytest.raises(RequestError, match=r"transport 'zmp': there is no such transport; did you mean 'zmq'\?"):
        TRANSPORTS.lookup("zmp")


def test_a_transport_says_what_it_is() -> None:
    class Mute(Transport):
        way = "nothing"

    with pytest.raises(RequestError, match="which lacks close, poll, send, wake"):
        TRANSPORTS.register("mute", Mute)
    with pytest.raises(RequestError, match=r"lacks .*way"):
        TRANSPORTS.register("bare", Transport)  # type: ignore[type-abstract]
    assert "bare" not in TRANSPORTS.names()


def test_every_rank_is_told_the_endpoints_of_all() -> None:
    (alone,) = joined(ZmqTransport, 1)
    assert alone.endpoints == (alone.endpoint,)
    with pytest.raises(RunError, match="expected the endpoints of 1 ranks, got 2"):
        alone.connect(["a", "b"])
    alone.close()
