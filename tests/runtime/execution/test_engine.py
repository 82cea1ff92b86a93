"""The copy engine, alone with a scripted peer and in pairs over loopback."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.regions.rectangle import Rect
from maniple.runtime.control.loopback import LoopbackHub
from maniple.runtime.devices.event import DONE, at_once
from maniple.runtime.execution.engine import CopyEngine
from maniple.runtime.peers.peer_queue import HEADER, SLACK
from maniple.runtime.storage.copy_kernels import LOAN_BYTES, bind_loan
from maniple.runtime.storage.push import Incoming, LocalFold, Movement, Outgoing, PeerCopy
from maniple.runtime.transports.transport import Delivery, Transport

TIMEOUT_S = 30.0


class ScriptEnd(BaseException):
    """The peer has nothing more to say for now."""


class Script(Transport):
    """A peer, rank 1, that says what the test wrote down, and remembers what it was sent: header, payload, account."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 2
        self.says: deque[list[Delivery]] = deque()
        self.sent: list[tuple[tuple[int, int], bytes | None, int]] = []

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        assert peer == 1
        self.sent.append((HEADER.unpack(header)[:2], None if payload is None else bytes(payload), account))

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        assert timeout_s is None
        if not self.says:
            raise ScriptEnd
        return self.says.popleft()

    def wake(self) -> None: ...
    def count_bytes(self, account: int) -> int:
        raise NotImplementedError

    def total(self) -> int:
        raise NotImplementedError

    def close(self) -> None: ...


class Rig:
    """An engine whose loop is run in the test's own thread, one round for each thing the peer says."""

    def __init__(self, credit: int = 100, early: int = 0) -> None:
        self.script = Script()
        self.failures: list[BaseException] = []
        self.engine = CopyEngine(self.script, credit, self.failures.append, early_bytes=early)
        self.finished: list[int] = []
        self.landed: list[tuple[int, bytes]] = []

    def round(self, *says: Delivery) -> list[tuple[tuple[int, int], bytes | None, int]]:
        """One turn of the loop; gives what it sent."""
        self.script.sent.clear()
        self.script.says.append(list(says))
        self.engine.run()
        self.failures = [error for error in self.failures if not isinstance(error, ScriptEnd)]
        self.engine._failed = self.failures.append
        return list(self.script.sent)

    def movement(self, row: int) -> Movement:
        return Movement(row, finished=lambda: self.finished.append(row))

    def push(self, row: int, size: int) -> Movement:
        """A movement of one push of `size` bytes whose value is the row."""
        movement = self.movement(row)
        movement.outgoing.append(Outgoing(1, size, lambda: memoryview(bytes([row]) * size), movement))
        return movement

    def arrival(self, row: int, size: int) -> Movement:
        movement = self.movement(row)
        movement.incoming.append(
            Incoming(1, size, at_once(lambda payload: self.landed.append((row, bytes(payload)))), movement)
        )
        return movement

    def submit(self, *movements: Movement, start: bool = True) -> None:
        self.engine.submit(
            [push for movement in movements for push in movement.outgoing],
            [push for movement in movements for push in movement.incoming],
        )
        for movement in movements if start else ():
            self.engine.start(movement, 40 + movement.row)


def says(granted: int, landed: int, payload: bytes | None = None) -> Delivery:
    """What the peer says: pushes of ours that it released, bytes of ours that landed there."""
    return Delivery(1, HEADER.pack(granted, landed, 0), None if payload is None else memoryview(payload))


def payloads(sent: Sequence[tuple[tuple[int, int], bytes | None, int]]) -> list[bytes | None]:
    return [payload for _, payload, _ in sent]


def test_a_push_waits_for_its_release_and_carries_its_account() -> None:
    rig = Rig()
    rig.submit(rig.push(3, 4))
    assert rig.round() == []
    assert rig.finished == []
    assert rig.round(says(1, 0)) == [((0, 0), b"\3\3\3\3", 43)]
    assert rig.finished == [3]
    assert rig.failures == []


def test_a_push_that_is_lent_is_not_copied_and_ends_when_the_transport_lets_go_of_it() -> None:
    rig = Rig()
    held: list[memoryview] = []

    class Keeps(Script):
        lends = True

        def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
            super().send(peer, header, payload, account)
            held.extend([] if payload is None else [payload])

    rig.script.__class__ = Keeps
    tile = torch.ones(LOAN_BYTES, dtype=torch.uint8)
    movement, small = rig.push(3, LOAN_BYTES), rig.push(4, 4)
    movement.outgoing[0].pack = lambda: pytest.fail("it is copied")
    movement.outgoing[0].lend = bind_loan(tile, Rect((0,), (LOAN_BYTES,)))
    rig.submit(movement, small)
    sent = payloads(rig.round(says(2, 0)) + rig.round(says(2, LOAN_BYTES)))
    assert sent == [bytes(tile.numpy()), b"\4\4\4\4"]
    assert rig.finished == [4]
    tile[0] = 7
    assert held[0][0] == 7
    held.clear()
    rig.round(says(2, LOAN_BYTES))
    assert (rig.finished, rig.failures) == ([4, 3], [])


def test_a_payload_that_is_written_where_it_belongs_needs_no_landing() -> None:
    rig = Rig()
    first, second, later = rig.arrival(1, 3), rig.arrival(2, 4), rig.arrival(3, 4)
    places = [memoryview(bytearray(size)) for size in (3, 4, 4)]
    for movement, place in zip((first, second, later), places, strict=True):
        movement.incoming[0].place = place
    rig.submit(first, second)
    rig.submit(later, start=False)
    rig.round()
    place = rig.script.place
    assert place is not None
    assert place(1, 3, 0) is places[0]
    assert place(1, 4, 1) is places[1]
    assert place(1, 5, 1) is None, "whoever receives it refuses what has another size"
    assert place(1, 4, 2) is None, "its destination is not released"
    assert place(1, 4, 3) is None, "nobody waits for it"
    rig.round(Delivery(1, HEADER.pack(0, 0, 0), places[0]), says(0, 0, b"abcd"))
    assert (rig.landed, rig.finished, rig.failures) == ([(2, b"abcd")], [1, 2], [])
    assert first.incoming[0].wire.written == 3


def test_a_release_waits_for_a_push_that_is_not_ready() -> None:
    rig = Rig()
    movement = rig.push(3, 4)
    rig.submit(movement, start=False)
    assert rig.round(says(1, 0)) == []
    rig.engine.start(movement, 9)
    assert rig.round() == [((0, 0), b"\3\3\3\3", 9)]


def test_pushes_leave_in_the_order_of_the_queue() -> None:
    rig = Rig()
    first, second = rig.push(1, 2), rig.push(2, 2)
    rig.submit(first, second, start=False)
    rig.engine.start(second, 0)
    assert rig.round(says(2, 0)) == []
    rig.engine.start(first, 0)
    assert payloads(rig.round()) == [b"\1\1", b"\2\2"]
    assert rig.finished == [1, 2]


def test_bytes_in_flight_stay_within_the_credit() -> None:
    rig = Rig(credit=100)
    rig.submit(*(rig.push(row, 40) for row in range(4)))
    assert payloads(rig.round(says(4, 0))) == [bytes([0]) * 40, bytes([1]) * 40]
    assert rig.round(says(4, 10)) == []
    assert payloads(rig.round(says(4, 40))) == [bytes([2]) * 40]
    assert payloads(rig.round(says(4, 160))) == [bytes([3]) * 40]
    assert rig.engine.peak_in_flight == 80


def test_a_push_beyond_the_credit_goes_alone() -> None:
    rig = Rig(credit=100)
    rig.submit(rig.push(0, 1), rig.push(1, 500), rig.push(2, 1))
    assert payloads(rig.round(says(3, 0))) == [b"\0"]
    assert payloads(rig.round(says(3, 1))) == [bytes([1]) * 500]
    assert payloads(rig.round(says(3, 501))) == [b"\2"]


def test_a_starved_peer_is_told_of_releases_at_once() -> None:
    rig = Rig()
    rig.submit(rig.arrival(7, 3))
    assert rig.round() == [((1, 0), None, 0)]
    assert rig.round() == []
    rig.round(says(0, 0, b"abc"))
    assert rig.landed == [(7, b"abc")]
    assert rig.finished == [7]


def test_a_peer_with_releases_left_is_not_told_of_more() -> None:
    rig = Rig(credit=10**6)
    rig.submit(*(rig.arrival(row, 1) for row in range(2 * SLACK)))
    assert rig.round() == [((2 * SLACK, 0), None, 0)]
    rig.submit(rig.arrival(100, 1))
    for _ in range(SLACK - 1):
        assert rig.round(says(0, 0, b"x")) == []
    assert rig.round(says(0, 0, b"x")) == [((2 * SLACK + 1, SLACK), None, 0)]


def test_counters_ride_on_data() -> None:
    rig = Rig(credit=10**6)
    rig.submit(rig.arrival(0, 3), rig.push(1, 2))
    assert rig.round(says(1, 0)) == [((1, 0), b"\1\1", 41)]
    rig.submit(rig.push(2, 2))
    assert rig.round(says(2, 2, b"abc")) == [((1, 3), b"\2\2", 42)]


def test_landed_bytes_are_told_at_a_quarter_of_the_credit() -> None:
    rig = Rig(credit=100)
    rig.submit(*(rig.arrival(row, 13) for row in range(4)))
    rig.round()
    assert rig.round(says(0, 0, bytes(13))) == []
    assert rig.round(says(0, 0, bytes(13))) == [((4, 26), None, 0)]


def test_landed_bytes_are_told_when_the_next_push_waits_for_them() -> None:
    """20 bytes are less than a quarter, but the peer must hear of them before it may send 90 more."""
    rig = Rig(credit=100)
    rig.submit(rig.arrival(0, 20), rig.arrival(1, 90))
    assert rig.round() == [((2, 0), None, 0)]
    assert rig.round(says(0, 0, bytes(20))) == [((2, 20), None, 0)]


def test_a_later_movement_is_released_after_those_before_it() -> None:
    rig = Rig()
    first, second = rig.arrival(1, 1), rig.arrival(2, 1)
    rig.submit(first, second, start=False)
    rig.engine.start(second, 0)
    assert rig.round() == []
    rig.engine.start(first, 0)
    assert rig.round() == [((2, 0), None, 0)]
    rig.round(says(0, 0, b"a"), says(0, 0, b"b"))
    assert rig.landed == [(1, b"a"), (2, b"b")]


def test_before_a_long_tile_a_peer_is_told_what_it_may_wait_for() -> None:
    """The header of a long tile is heard when all of it is there, and the peer's own tile would wait for that."""
    rig = Rig(credit=10**6)
    rig.submit(rig.arrival(0, 3), rig.push(1, LOAN_BYTES))
    assert [(told, payload is None) for told, payload, _ in rig.round(says(1, 0))] == [((1, 0), True), ((1, 0), False)]


def test_a_few_bytes_go_before_they_are_released() -> None:
    rig = Rig(credit=10**6, early=10)
    rig.submit(*(rig.push(row, 4) for row in range(4)))
    assert payloads(rig.round()) == [bytes([0]) * 4, bytes([1]) * 4]
    assert payloads(rig.round(says(1, 4))) == [bytes([2]) * 4]
    assert rig.round(says(1, 4)) == []
    assert payloads(rig.round(says(2, 8))) == [bytes([3]) * 4]
    assert rig.finished == [0, 1, 2, 3]


@pytest.mark.parametrize("known", [True, False])
def test_a_tile_that_comes_early_lands_when_its_destination_is_free(*, known: bool) -> None:
    """Also where the program has not come to the movement yet."""
    rig = Rig(credit=10**6, early=10)
    first, second = rig.arrival(1, 4), rig.arrival(2, 4)
    place = memoryview(bytearray(4))
    first.incoming[0].place = place
    if known:
        rig.submit(first, second, start=False)
        rig.round()
    where = rig.script.place
    assert where is not None
    assert where(1, 4, 0) is None, "somebody may still read there"
    rig.round(says(0, 0, b"abcd"), says(0, 0, b"efgh"))
    assert rig.landed == []
    if not known:
        rig.submit(first, second, start=False)
    rig.engine.start(second, 0)
    rig.round()
    assert rig.landed == []
    rig.engine.start(first, 0)
    assert rig.round() == [((2, 0), None, 0)], "the peer may send early again"
    assert (rig.landed, rig.finished, rig.failures) == ([(1, b"abcd"), (2, b"efgh")], [1, 2], [])


def test_what_came_early_lands_once_what_can_go_has_gone() -> None:
    """The peer waits for that, and nobody for the landing."""
    rig = Rig(credit=10**6, early=10)
    movement = rig.push(1, 4)
    movement.incoming += rig.arrival(2, 4).incoming
    sent_before: list[int] = []
    movement.incoming[0].land = at_once(lambda _: sent_before.append(len(rig.script.sent)))
    movement.incoming[0].movement = movement
    rig.submit(movement, start=False)
    rig.round(says(1, 0, b"abcd"))
    rig.engine.start(movement, 0)
    assert payloads(rig.round()) == [bytes([1]) * 4]
    assert (sent_before, rig.finished) == ([1], [1])


def test_what_came_early_is_told_to_have_landed_when_the_next_push_waits_for_it() -> None:
    rig = Rig(credit=100, early=20)
    rig.submit(rig.arrival(0, 20), rig.arrival(1, 90), start=False)
    rig.round(says(0, 0, bytes(20)))
    rig.engine.start(rig.engine._peers[1].ungranted[0].movement, 0)
    assert rig.round()[-1] == ((1, 20), None, 0)


def test_what_may_come_early_is_released_by_a_message_of_its_own_once_half_of_it_has_come() -> None:
    rig = Rig(credit=10**6, early=10)
    rig.submit(rig.arrival(0, 4), rig.arrival(1, 4))
    assert rig.round() == []
    assert rig.round(says(0, 0, b"abcd")) == [], "the other one may come as well"
    assert rig.round(says(0, 0, b"efgh")) == [((2, 8), None, 0)]
    rig.submit(rig.arrival(2, 4))
    assert rig.round() == []
    assert rig.round(says(0, 0, b"ijkl")) == []
    assert rig.finished == [0, 1, 2]


def test_a_tile_that_may_come_through_memory_that_both_have_open_is_released_at_once() -> None:
    """Its sender waits for that, however few bytes there are."""
    rig = Rig(credit=10**6, early=10)
    movement = rig.arrival(0, 4)
    movement.incoming[0].take = PeerCopy((), lambda _row, _after: DONE)
    rig.submit(movement)
    assert rig.round() == [((1, 0), None, 0)]


@pytest.mark.parametrize("known", [True, False])
def test_no_more_comes_early_than_is_kept(*, known: bool) -> None:
    rig = Rig(credit=10**6, early=10)
    if known:
        rig.submit(*(rig.arrival(row, 4) for row in range(3)), start=False)
    for body in (b"abcd", b"efgh", b"ijkl"):
        rig.round(says(0, 0, body))
    wanted = "before its destination was released" if known else "of 4 bytes; expected no push"
    assert [str(error) for error in rig.failures] == [f"rank 1 sent a tile {wanted}"]
    assert rig.landed == []


def test_a_tile_that_came_early_with_another_size_ends_the_engine() -> None:
    rig = Rig(early=10)
    rig.round(says(0, 0, b"abcd"))
    rig.submit(rig.arrival(0, 3))
    rig.round()
    assert [str(error) for error in rig.failures] == ["rank 1 sent a tile of 4 bytes; expected 3 bytes"]


def test_a_collective_folds_what_landed_and_sends_the_fold_on() -> None:
    rig = Rig()
    movement = rig.movement(5)
    total = bytearray(b"\1")

    def fold() -> None:
        total[0] += rig.landed[-1][1][0]

    contribution = Outgoing(1, 1, lambda: memoryview(b"\7"), movement)
    result = Outgoing(1, 1, lambda: memoryview(bytes(total)), movement)
    movement.outgoing.append(contribution)
    movement.later.append(result)
    movement.folds[0] = LocalFold(1, at_once(fold), [result])
    land = at_once(lambda payload: rig.landed.append((5, bytes(payload))))
    movement.incoming += [Incoming(1, 1, land, movement, feeds=0), Incoming(1, 1, land, movement)]
    for _ in range(2):  # a movement runs again and again
        rig.engine.submit([contribution, result], list(movement.incoming))
        rig.engine.start(movement, 8)
        sent = rig.script.sent
        sent.clear()
        seen = rig.round(says(10, 0))
        assert payloads(seen) == [b"\7"]
        before = total[0]
        assert payloads([frame for frame in rig.round(says(10, 10, b"\2")) if frame[1]]) == [bytes([before + 2])]
        assert rig.finished.count(5) == _
        rig.round(says(10, 10, b"\4"))
        assert rig.finished.count(5) == _ + 1
    assert rig.failures == []


def test_a_fold_without_far_parts_runs_as_the_movement_starts() -> None:
    rig = Rig()
    movement = rig.movement(5)
    ran: list[str] = []
    result = Outgoing(1, 1, lambda: memoryview(b"\1"), movement)
    movement.later.append(result)
    movement.folds[0] = LocalFold(0, at_once(lambda: ran.append("fold")), [result])
    rig.engine.submit([result], [])
    rig.engine.start(movement, 0)
    assert payloads(rig.round(says(1, 0))) == [b"\1"]
    assert ran == ["fold"]
    assert rig.finished == [5]


@pytest.mark.parametrize("payload", [b"", b"abcd"])
def test_a_tile_of_another_size_ends_the_engine(payload: bytes) -> None:
    rig = Rig()
    rig.submit(rig.arrival(0, 3))
    rig.round()
    rig.round(says(0, 0, payload))
    (error,) = rig.failures
    assert isinstance(error, RunError)
    assert str(error) == f"rank 1 sent a tile of {len(payload)} bytes; expected 3 bytes"
    assert rig.landed == []


def test_a_tile_that_nobody_expects_ends_the_engine() -> None:
    rig = Rig()
    rig.round(says(0, 0, b"abc"))
    (error,) = rig.failures
    assert str(error) == "rank 1 sent a tile of 3 bytes; expected no push"


def test_a_failure_of_the_transport_ends_the_engine() -> None:
    rig = Rig()
    rig.submit(rig.push(0, 1))

    def broken(peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        raise RunError("the wire broke")

    rig.script.send = broken  # type: ignore[method-assign]
    rig.round(says(1, 0))
    assert [str(error) for error in rig.failures] == ["the wire broke"]


def test_closing_ends_the_thread_without_a_failure() -> None:
    hub = LoopbackHub(2)
    failures: list[BaseException] = []
    engine = CopyEngine(hub.endpoint(0), 100, failures.append)
    engine.begin()
    engine.close()
    assert not engine._thread.is_alive()
    assert failures == []


Plan = list[tuple[int, int, int]]  # sender, receiver, size of every push, in program order


def exchange(size: int, plan: Plan, credit: int, seed: int, early: int = 0) -> dict[int, bytes]:
    """Run a plan on real engines over a shuffled hub; every rank starts its movements in an order of its own."""
    hub = LoopbackHub(size, shuffle=seed)
    failed, all_done = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    landed: dict[int, bytes] = {}
    left = [2 * len(plan)]
    lock = threading.Lock()

    def note(error: BaseException) -> None:
        failures.append(error)
        failed.set()
        all_done.set()

    def finished() -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                all_done.set()

    engines = [CopyEngine(hub.endpoint(rank), credit, note, early_bytes=early) for rank in range(size)]
    try:
        for rank, engine in enumerate(engines):
            engine.begin()
            mine: list[Movement] = []
            outgoing: list[Outgoing] = []
            incoming: list[Incoming] = []
            for number, (sender, receiver, count) in enumerate(plan):
                movement = Movement(number, finished=finished)
                if rank == sender:
                    body = bytes([number]) * count
                    movement.outgoing.append(Outgoing(receiver, count, lambda body=body: memoryview(body), movement))  # type: ignore[misc]
                if rank == receiver:
                    land = lambda payload, number=number: landed.__setitem__(number, bytes(payload))  # noqa: E731
                    movement.incoming.append(Incoming(sender, count, at_once(land), movement))
                if rank in {sender, receiver}:
                    mine.append(movement)
                    outgoing += movement.outgoing
                    incoming += movement.incoming
            engine.submit(outgoing, incoming)
            Random(seed * size + rank).shuffle(mine)
            for movement in mine:
                engine.start(movement, 1)
        assert all_done.wait(TIMEOUT_S), "the engines wait for each other"
        assert failures == []
        for rank, engine in enumerate(engines):
            largest = max((count for sender, _, count in plan if sender == rank), default=0)
            assert engine.peak_in_flight <= max(credit, largest)
            assert hub.endpoint(rank).count_bytes(1) == sum(count for sender, _, count in plan if sender == rank)
        return landed
    finally:
        for engine in engines:
            engine.close()


pairs = st.integers(0, 2).flatmap(lambda a: st.sampled_from([b for b in range(3) if b != a]).map(lambda b: (a, b)))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(pairs, st.integers(1, 60)), min_size=1, max_size=30),
    st.sampled_from([1, 16, 64, 10**6]),
    st.integers(0, 99),
    st.sampled_from([0, 1, 50, 10**6]),
)
def test_whatever_was_sent_lands_whole_whatever_the_credit(
    pushes: list[tuple[tuple[int, int], int]], credit: int, seed: int, early: int
) -> None:
    plan = [(a, b, size) for (a, b), size in pushes]
    landed = exchange(3, plan, credit, seed, early)
    assert landed == {number: bytes([number]) * size for number, (_, _, size) in enumerate(plan)}


def test_a_large_push_after_a_small_one_does_not_wait_for_ever() -> None:
    assert exchange(2, [(0, 1, 20), (0, 1, 90)], credit=100, seed=0) == {0: bytes(20), 1: bytes([1]) * 90}
