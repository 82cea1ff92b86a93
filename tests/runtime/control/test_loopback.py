"""Loopback: shuffled deliveries, and the control plane of ranks in one process."""

from __future__ import annotations

import threading

import pytest

from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.loopback import ControlHub, LoopbackHub

TIMEOUT_S = 30.0


def arrivals(seed: int | None) -> list[tuple[int, bytes]]:
    hub = LoopbackHub(4, shuffle=seed)
    for number in range(20):
        for sender in range(3):
            hub.endpoint(sender).send(3, bytes([number]), None, 0)
    found: list[tuple[int, bytes]] = []
    while len(found) < 60:
        found += [(one.peer, one.header) for one in hub.endpoint(3).poll(TIMEOUT_S)]
    return found


def test_without_a_seed_deliveries_come_as_they_were_sent() -> None:
    assert arrivals(None) == [(sender, bytes([number])) for number in range(20) for sender in range(3)]


def test_a_seed_mixes_pairs_but_keeps_the_order_of_each() -> None:
    mixed = arrivals(1)
    assert mixed != arrivals(None)
    assert mixed != arrivals(2)
    assert mixed == arrivals(1)
    for sender in range(3):
        assert [header for peer, header in mixed if peer == sender] == [bytes([number]) for number in range(20)]


def test_bytes_that_change_after_sending_do_not_arrive() -> None:
    hub = LoopbackHub(2)
    body = bytearray(b"before")
    hub.endpoint(0).send(1, b"", memoryview(body), 0)
    body[:] = b"after!"
    (delivery,) = hub.endpoint(1).poll(0)
    assert delivery.payload is not None
    assert bytes(delivery.payload) == b"before"


def in_threads(hub: ControlHub, values: list[bytes]) -> list[list[bytes] | RankStopped]:
    found: list[list[bytes] | RankStopped] = [[] for _ in values]

    def gather(rank: int) -> None:
        try:
            found[rank] = hub.endpoint(rank).gather(values[rank])
        except RankStopped as error:
            found[rank] = error

    threads = [threading.Thread(target=gather, args=(rank,), daemon=True) for rank in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    return found


def test_a_gather_gives_every_rank_all_payloads_in_rank_order() -> None:
    hub = ControlHub(3)
    for turn in range(3):
        values = [b"%d%d" % (turn, rank) for rank in range(3)]
        assert in_threads(hub, values) == [values] * 3


def test_ranks_that_make_different_calls_are_stopped_and_the_message_names_both() -> None:
    hub = ControlHub(2, ranks_per_node=1)
    hub.endpoint(0).call("step 1")
    with pytest.raises(RankStopped, match=r"node 1 \(rank 1\) diverged at call 1.*step 2.*step 1"):
        hub.endpoint(1).call("step 2")
    with pytest.raises(RankStopped, match="diverged"):
        hub.endpoint(0).call("step 3")
    heard: list[str] = []
    for rank in range(2):
        hub.endpoint(rank).on_stop(lambda error: heard.append(str(error)))
    assert heard == [heard[0]] * 2


def test_ranks_that_pass_different_inputs_are_stopped() -> None:
    hub = ControlHub(2)
    hub.endpoint(0).call("step 1", b"one")
    with pytest.raises(RankStopped, match="its inputs differ"):
        hub.endpoint(1).call("step 1", b"two")


def test_a_failure_reaches_every_rank_once() -> None:
    hub = ControlHub(3)
    heard: list[str] = []
    for rank in range(3):
        hub.endpoint(rank).on_stop(lambda error, rank=rank: heard.append(f"{rank}: {error}"))  # type: ignore[misc]
    hub.endpoint(2).call("trainer.step 5")
    hub.endpoint(2).fail("", "ValueError: no")
    hub.endpoint(1).fail("", "KeyError: later")
    reason = "node 2 (rank 2) raised ValueError: no during `trainer.step 5`"
    assert heard == [f"{rank}: {reason}" for rank in range(3)]
    late: list[str] = []
    hub.endpoint(0).on_stop(lambda error: late.append(str(error)))
    assert late == [reason]


def test_a_gather_under_way_ends_when_the_run_is_stopped() -> None:
    hub = ControlHub(2)
    caught: list[str] = []

    def gather() -> None:
        with pytest.raises(RankStopped) as error:
            hub.endpoint(0).gather(b"x")
        caught.append(str(error.value))

    thread = threading.Thread(target=gather, daemon=True)
    thread.start()
    hub.endpoint(1).fail("reading", "OSError: gone")
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert caught == ["node 1 (rank 1) raised OSError: gone during `reading`"]


def test_a_rank_that_ends_while_others_wait_for_it_is_blamed() -> None:
    hub = ControlHub(2)
    hub.endpoint(1).close()
    with pytest.raises(RankStopped, match=r"node 1 \(rank 1\) ended before its first call"):
        hub.endpoint(0).call("step 1")


def test_ranks_that_end_alike_are_not_blamed() -> None:
    hub = ControlHub(2)
    for rank in range(2):
        hub.endpoint(rank).call("step 1")
    for rank in range(2):
        hub.endpoint(rank).close()
    hub.endpoint(0).on_stop(lambda error: pytest.fail(f"nobody stops it: {error}"))
