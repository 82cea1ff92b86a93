"""Ranks as threads of one process: a data plane and a control plane without sockets, for tests of whole worlds."""

from __future__ import annotations

import threading
from collections import deque
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, final

from maniple.process.error import RunError
from maniple.runtime.control.agreement import Agreement, Fault, Told
from maniple.runtime.control.control import Control, RankStopped, Roll, place
from maniple.runtime.transports.transport import Delivery, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.process.clock import Clock

__all__: list[str] = []


class LoopbackHub:
    """The wires between ranks that are threads of this process.

    Args:
        size: number of ranks.
        shuffle: a seed; deliveries of different peers then overtake each other at random, which no program may notice.
    """

    def __init__(self, size: int, shuffle: int | None = None) -> None:
        self.size = size
        self.changed = [threading.Condition() for _ in range(size)]
        # queues[to][sender]: one queue per pair, so that shuffling cannot reorder a pair
        self.queues: list[list[deque[Delivery]]] = [[deque() for _ in range(size)] for _ in range(size)]
        self.randoms = [None if shuffle is None else Random(shuffle * size + rank) for rank in range(size)]
        self._arrivals: list[deque[int]] = [deque() for _ in range(size)]
        self._ends = [LoopbackTransport(self, rank) for rank in range(size)]

    def endpoint(self, rank: int) -> LoopbackTransport:
        """Give one rank's end."""
        return self._ends[rank]

    def put(self, peer: int, delivery: Delivery) -> None:
        """Append to a pair's queue and wake the receiver."""
        with self.changed[peer]:
            self.queues[peer][delivery.peer].append(delivery)
            self._arrivals[peer].append(delivery.peer)
            self.changed[peer].notify_all()

    def waiting(self, rank: int) -> bool:
        """Tell whether something lies there for a rank."""
        return bool(self._arrivals[rank])

    def take(self, rank: int) -> list[Delivery]:
        """Take what lies there for a rank; when shuffling, part of it, with the peers in random order."""
        arrivals = self._arrivals[rank]
        random = self.randoms[rank]
        order = list(arrivals)
        arrivals.clear()
        if random is not None and order:
            random.shuffle(order)
            keep = random.randrange(len(order))
            arrivals.extend(order[len(order) - keep :])
            order = order[: len(order) - keep]
        return [self.queues[rank][peer].popleft() for peer in order]


@final
class LoopbackTransport(Transport):
    """One rank's end of a loopback hub. Payloads are copied, so that bytes changed after sending do not arrive."""

    way = "this process"

    def __init__(self, hub: LoopbackHub, rank: int) -> None:
        super().__init__(rank, hub.size, "")
        self._hub = hub
        self._woken = False
        self._closed = False

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """Copy a header and a payload into the receiver's queue."""
        if self._closed:
            raise RunError(f"rank {self.rank}: the loopback transport is closed")
        self.check_peer(peer)
        copied = None
        if payload is not None:
            copied = memoryview(bytearray(payload))
            self.meter.add(account, copied.nbytes)
        self._hub.put(peer, Delivery(self.rank, bytes(header), copied))

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """Wait for something, and take it."""
        changed = self._hub.changed[self.rank]
        with changed:
            changed.wait_for(lambda: self._hub.waiting(self.rank) or self._woken or self._closed, timeout_s)
            if self._closed:
                raise RunError(f"rank {self.rank}: the loopback transport is closed")
            self._woken = False
            return self._hub.take(self.rank)

    def wake(self) -> None:
        """Make a poll return."""
        if self._woken:
            return
        with self._hub.changed[self.rank]:
            self._woken = True
            self._hub.changed[self.rank].notify_all()

    def close(self) -> None:
        """End it."""
        with self._hub.changed[self.rank]:
            self._closed = True
            self._hub.changed[self.rank].notify_all()


class ControlHub:
    """What the control planes of ranks in one process share.

    Args:
        size: number of ranks.
        ranks_per_node: for the places in messages.
        clock: seconds; judges differences between three and more ranks.
        alone: whether one thread makes the programs of all ranks, so that none can wait for another's.
    """

    def __init__(self, size: int, ranks_per_node: int = 1, clock: Clock = monotonic, *, alone: bool = False) -> None:
        self.size = size
        self.alone = alone
        self.clock = clock
        self.ranks_per_node = ranks_per_node
        self.agreement = Agreement(size, ranks_per_node, patience_s=0.0)
        self.changed = threading.Condition()
        self.gathered: dict[int, tuple[bytes, ...]] = {}
        self.reason: str | None = None
        self.callbacks: list[Callable[[RankStopped], object]] = []
        self._ends = [LoopbackControl(self, rank) for rank in range(size)]

    def endpoint(self, rank: int) -> LoopbackControl:
        """Give one rank's end."""
        return self._ends[rank]

    def stop(self, reason: str) -> None:
        """Stop all ranks, once."""
        with self.changed:
            if self.reason is not None:
                return
            self.reason = reason
            callbacks, self.callbacks = self.callbacks, []
            self.changed.notify_all()
        for callback in callbacks:
            callback(RankStopped(reason))

    def blame(self, fault: Fault) -> None:
        """Stop all ranks because of one."""
        self.stop(f"{place(fault.rank, self.ranks_per_node)} {fault.text}")

    def check(self) -> None:
        """Raise when the run was stopped."""
        if self.reason is not None:
            raise RankStopped(self.reason)


@final
class LoopbackControl(Control):
    """One rank's end of a control hub."""

    def __init__(self, hub: ControlHub, rank: int) -> None:
        self.rank = rank
        self._hub = hub
        self._roll = Roll()
        self._gathers = 0

    def call(self, text: str, digest: bytes = b"", *, soon: bool = True) -> None:
        """Compare a call with the other ranks' so far."""
        hub = self._hub
        with hub.changed:
            hub.check()
            inputs = self._roll.add(text, digest)
            told = Told(self._roll.digest, inputs, text)
            fault = hub.agreement.call(self.rank, self._roll.sequence, told, hub.clock())
        if fault is not None:
            hub.blame(fault)
            hub.check()

    def gather(self, payload: bytes) -> list[bytes]:
        """Wait for every rank's payload."""
        hub = self._hub
        self._gathers += 1
        with hub.changed:
            hub.check()
            outcome = hub.agreement.gather(self.rank, payload)
            if isinstance(outcome, tuple):
                hub.gathered[self._gathers] = outcome
                hub.gathered.pop(self._gathers - 2, None)  # whoever is in this gather has returned from that one
                hub.changed.notify_all()
        if isinstance(outcome, Fault):
            hub.blame(outcome)
        elif outcome is None and hub.alone:
            raise RunError(f"rank {self.rank} would wait for the programs of other ranks, which its own thread makes")
        with hub.changed:
            hub.changed.wait_for(lambda: self._gathers in hub.gathered or hub.reason is not None)
            if self._gathers not in hub.gathered:  # what was complete before another rank failed is given
                hub.check()
            return list(hub.gathered[self._gathers])

    def fail(self, where: str, text: str) -> None:
        """Stop all ranks because of this one."""
        doing = where or self._hub.agreement.last[self.rank]
        self._hub.blame(Fault(self.rank, f"raised {text}" + (f" during `{doing}`" if doing else "")))

    def on_stop(self, callback: Callable[[RankStopped], object]) -> None:
        """Have a function called on the thread of the rank at fault."""
        with self._hub.changed:
            if self._hub.reason is None:
                self._hub.callbacks.append(callback)
                return
        callback(RankStopped(self._hub.reason))

    def close(self) -> None:
        """Say that this rank's program ended; does not wait, since the process goes on."""
        if self._hub.reason is None:
            with self._hub.changed:
                fault = self._hub.agreement.end(self.rank)
            if fault is not None:
                self._hub.blame(fault)
