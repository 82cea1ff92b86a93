"""What is in flight stays within the credits, and nothing lands where somebody still reads."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from placed_program import Placed, opened, tighten
from thread_ranks import run_on_ranks
from trained_networks import NETWORKS, SHORT, trained

import maniple as mp
from maniple.regions.index_space import IndexSpace
from maniple.runtime.analysis.dependence import Node
from maniple.runtime.control.loopback import LoopbackHub
from maniple.runtime.control.world import World
from maniple.runtime.execution.engine import CopyEngine
from maniple.runtime.execution.ready_queue import LiveRegion, ReadyQueue
from maniple.runtime.lanes import movement_binding
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.transports.transport import Delivery

# How long a test waits for what must not happen.
NEVER_S = 0.02


class Flight:
    """The bytes between each two ranks, counted on the wire: from the sender's hands until they have landed.

    Args:
        credit: the most that may be under way, unless it is a single push.
    """

    def __init__(self, credit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak = 0
        self.largest = 0
        self.faults: list[str] = []
        self._lock = threading.Lock()
        self._bytes: defaultdict[tuple[int, int], int] = defaultdict(int)
        put, receive = LoopbackHub.put, CopyEngine._receive

        def counted_put(hub: LoopbackHub, peer: int, delivery: Delivery) -> None:
            if delivery.payload is not None:
                size, pair = delivery.payload.nbytes, (delivery.peer, peer)
                with self._lock:
                    before = self._bytes[pair]
                    self._bytes[pair] += size
                    self.peak = max(self.peak, before + size)
                    self.largest = max(self.largest, size)
                    if before and before + size > credit:
                        self.faults.append(f"{before} + {size} bytes from {pair[0]} to {pair[1]}")
            put(hub, peer, delivery)

        def counted_receive(engine: CopyEngine, delivery: Delivery) -> None:
            receive(engine, delivery)
            if delivery.payload is not None:
                with self._lock:
                    self._bytes[delivery.peer, engine.transport.rank] -= delivery.payload.nbytes

        monkeypatch.setattr(LoopbackHub, "put", counted_put)
        monkeypatch.setattr(CopyEngine, "_receive", counted_receive)


@cache
def free(ranks: int, strategy: str, seed: int) -> set[tuple[float, ...]]:
    """The losses of ranks that send as they like."""
    network = NETWORKS["residual"]

    def body(world: World) -> tuple[float, ...]:
        plan = mp.search(network.graph("float32"), host_machine(world), strategy=strategy, seed=seed)
        return trained(network, "float32", plan, world, SHORT).losses

    return set(run_on_ranks(ranks, body))


@pytest.mark.parametrize("credit", [1, 100, 700, 5000])
@pytest.mark.parametrize(("ranks", "strategy", "seed"), [(2, "spatial", 0), (3, "data_parallel", 0), (4, "random", 8)])
def test_bytes_in_flight_stay_within_the_credit(
    ranks: int, strategy: str, seed: int, credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NETWORKS["residual"]
    flight = Flight(credit, monkeypatch)

    def body(world: World) -> tuple[tuple[float, ...], int]:
        runtime = tighten(world, credit)
        plan = mp.search(network.graph("float32"), host_machine(world), strategy=strategy, seed=seed)
        losses = trained(network, "float32", plan, world, SHORT).losses
        engine = runtime.resources.engine
        return losses, 0 if engine is None else engine.peak_in_flight

    found = run_on_ranks(ranks, body, shuffle=credit)
    assert flight.faults == []
    assert all(told <= max(credit, flight.largest) for _, told in found)
    assert max(told for _, told in found) >= flight.peak > 0  # a sender knows of a landing only later
    assert {losses for losses, _ in found} == free(ranks, strategy, seed)


def test_a_credit_that_is_ignored_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(10, monkeypatch)
    network = NETWORKS["residual"]

    def body(world: World) -> None:
        plan = mp.search(network.graph("float32"), host_machine(world), strategy="spatial")
        trained(network, "float32", plan, world, SHORT)

    run_on_ranks(2, body)  # with the default credits
    assert flight.faults != []


@mp.task
def write(x: mp.WriteDiscard, value: int) -> None:
    x.fill_(value)


@mp.task
def look(x: mp.Read, value: int, overwritten: object) -> bool:
    assert isinstance(overwritten, threading.Event)
    overwritten.clear()  # set by the landing of this very value
    before = bool((x == value).all())
    overwritten.wait(NEVER_S)
    return before and bool((x == value).all())


def rewrite_what_is_read(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Rank 0 writes a region over and over, as fast as it may, and rank 1 takes its time to read each value."""
    landed = threading.Event()
    bind = movement_binding.bind_unpack

    def bind_unpack(view: torch.Tensor, points: IndexSpace | None = None) -> Callable[[memoryview], int]:
        land = bind(view, points)

        def landing(payload: memoryview) -> int:
            written = land(payload)
            landed.set()
            return written

        return landing

    monkeypatch.setattr(movement_binding, "bind_unpack", bind_unpack)

    def body(world: World) -> list[bool]:
        session = opened(world)
        x = session.region((300,), "int64", "x")
        seen = []
        for value in range(8):
            session.launch(write, x, value, mapper=Placed([0]))
            seen.append(session.launch(look, x, value, landed, mapper=Placed([1])))
        return [future.get() for future in seen]

    return run_on_ranks(2, body)[0]


def test_nothing_lands_where_somebody_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rewrite_what_is_read(monkeypatch) == [True] * 8


def test_a_release_that_comes_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ReadyQueue.link

    def hasty(issuer: ReadyQueue, live: LiveRegion, edges: Sequence[tuple[Node, Node]]) -> None:
        link(issuer, live, [(before, after) for before, after in edges if after.use >= 0])  # no movement waits

    monkeypatch.setattr(ReadyQueue, "link", hasty)
    assert not all(rewrite_what_is_read(monkeypatch))


def test_a_slow_receiver_holds_the_sender_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pushes of 800 bytes with a credit of 2000: while nothing lands, two are under way and no third."""
    gate, second, third = threading.Event(), threading.Event(), threading.Event()
    sent: Counter[int] = Counter()
    bind, put = movement_binding.bind_unpack, LoopbackHub.put

    def bind_unpack(view: torch.Tensor, points: IndexSpace | None = None) -> Callable[[memoryview], int]:
        land = bind(view, points)

        def landing(payload: memoryview) -> int:
            assert gate.wait(30)
            return land(payload)

        return landing

    def counted_put(hub: LoopbackHub, peer: int, delivery: Delivery) -> None:
        if delivery.payload is not None:  # which waits for no release: it may go early
            sent[peer] += 1
            (second if sent[peer] == 2 else third if sent[peer] == 3 else threading.Event()).set()
        put(hub, peer, delivery)

    monkeypatch.setattr(movement_binding, "bind_unpack", bind_unpack)
    monkeypatch.setattr(LoopbackHub, "put", counted_put)

    def body(world: World) -> tuple[bool, list[bool]]:
        session = opened(world, credit_bytes=2000)
        regions = [session.region((100,), "int64", f"x{number}") for number in range(8)]
        for number, x in enumerate(regions):
            session.launch(write, x, number, mapper=Placed([0]))
        free = threading.Event()
        free.set()
        seen = [session.launch(look, x, number, free, mapper=Placed([1])) for number, x in enumerate(regions)]
        held = True
        if world.rank == 0:
            assert second.wait(30)
            held = not third.wait(NEVER_S)
            gate.set()
        return held, [future.get() for future in seen]

    found = run_on_ranks(2, body)
    assert [held for held, _ in found] == [True, True]
    assert [right for _, right in found] == [[True] * 8] * 2
    assert sent == {1: 8}
