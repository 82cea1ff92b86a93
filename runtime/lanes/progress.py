"""Progress: how many steps every processor has taken, as counters that all ranks of a host see, and waits for them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from ctypes import c_int64
from functools import cached_property, partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.transports.shared_memory import LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import ModuleType

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.transports.shared_memory import SharedMemory

__all__: list[str] = []

# Slots of a rank's board: runs begun, the tables of the latest runs, its latest barriers, then its processors.
BEGUN = 0
TABLES = 4
BARRIERS = 1 + TABLES
FIRST_PROCESSOR = BARRIERS + 2
# How often to look for a counter without the interpreter lock before looking at anything else: some 20 us. Lanes that
# share cores look once: who looks again keeps the lane that it waits for from going on.
LOOKS = 30_000
SPIN_S = 2e-3
# A wait that goes on sleeps for an eighth of the time that it has lasted, within these bounds.
NAP_S = (50e-6, 2e-3)
# The same of lanes that are rung; what is not is the raising of a counter by compiled code that goes on.
DOZE_S = (1e-3, 20e-3)


class Progress:
    """Counters of steps taken, by processor.

    A wait first spins outside the interpreter lock, for longer where every processor of the host has its own cores;
    then it sleeps in steps that grow with the wait. So a wait costs a core for 2 ms at most and is late by an eighth at
    most, and nobody has to wake anybody: a rank that died leaves no lock and no missed signal behind.

    Lanes of one process that share cores are *crowded*. There a wait that spins, or looks every now and then, takes the
    core from the lane that it waits for, and one that sleeps is late, each of a chain of lanes anew. So nobody spins,
    and who raises a counter rings those who sleep for it; sleeps still end by themselves, for compiled code rings
    nobody before it ends.

        four lanes, one core      lane 0    lane 1    lane 2           lane 3
        they wait in a chain      runs, rings 1       asleep           asleep
                                  asleep    runs, rings 2              asleep

    Args:
        shared: the boards of this host's ranks; None where counters are this process's own.
        rank: this rank.
        roomy: whether every processor of this host has its own cores.
        patient: whether waits block; else they only look.
        check: raises when the run was stopped or has failed.
    """

    def __init__(
        self, shared: SharedMemory | None, rank: int, *, roomy: bool, patient: bool = True, check: Callable[[], None]
    ) -> None:
        self._shared = shared
        self._rank = rank
        self._spin_s = SPIN_S if roomy else 0.0
        self._patient = patient
        self.crowded = patient and not roomy and shared is None
        """Whether lanes of this process alone wait for each other, and share cores."""
        self.looks = LOOKS if patient and not self.crowded else 1
        """How often a wait looks before anything else is done."""
        self._check = check
        self._addresses: dict[int, int] = {}
        self._lock = threading.Lock()
        self._asleep: dict[int, list[tuple[int, threading.Lock]]] = {}
        self.blocked = 0
        self._told: list[int | None] = [None] * TABLES
        self._own: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []

    @cached_property
    def _counter(self) -> ModuleType:
        # Compiled, and not loaded where nobody waits for anybody.
        from maniple.runtime.transports import shared_counter

        return shared_counter

    def find_counters(self, machine: Machine) -> None:
        """Find the counters of a machine's processors: those of this host where ranks share memory, else our own."""
        near = frozenset((self._rank,)) if self._shared is None else self._shared.ranks
        for rank in sorted(near):
            owned = [processor for memory in machine.memories_of(rank) for processor in machine.processors_of(memory)]
            for local, processor in enumerate(owned):
                if self._shared is not None:
                    self._addresses[processor] = self._shared.counter(rank, FIRST_PROCESSOR + local)
                elif processor not in self._addresses:
                    self._own.append(np.zeros(1, np.int64))
                    self._addresses[processor] = int(self._own[-1].ctypes.data)

    def processor(self, processor: int) -> int:
        """Give the address of a processor's counter."""
        return self._addresses[processor]

    @property
    def watched(self) -> bool:
        """Whether there are processors that see each other's counters."""
        return len(self._addresses) > 1

    def publisher(self, processor: int) -> Callable[[int], None]:
        """Give what raises a processor's counter; it does nothing where there is no other processor to see it."""
        if not self.watched:
            return _ignore
        if self.crowded:
            return partial(self._publish, self._addresses[processor])
        return partial(self._counter.publish, self._addresses[processor])

    def _publish(self, address: int, value: int) -> None:
        """Raise a counter, and ring who sleeps for it."""
        self._counter.publish(address, value)
        # Read after the counter was raised: who is not there yet looks once more before it sleeps.
        if address in self._asleep:
            self.ring(address)

    def ring(self, address: int) -> None:
        """Wake who sleeps for a counter, if it is high enough by now; nobody does where lanes are not crowded."""
        if not self._asleep:
            return
        with self._lock:
            for value, latch in self._asleep.get(address, ()):
                if self._counter.has_reached(address, value, 1) and latch.locked():
                    latch.release()

    def begin(self, run: int, table: int) -> None:
        """Tell the ranks of this host that a run has begun here.

        Args:
            run: its number.
            table: where in this rank's file the places of its instances are.
        """
        if self._shared is not None:
            slot = run % TABLES
            if self._told[slot] != table:
                self._counter.publish(self._shared.counter(self._rank, 1 + slot), table)
                self._told[slot] = table
            self._counter.publish(self._shared.counter(self._rank, BEGUN), run)

    def board(self, rank: int) -> tuple[int, int]:
        """Give the addresses of another rank's counter of runs, and of the first of its tables' places."""
        return self._counter_of(rank, BEGUN), self._counter_of(rank, 1)

    def meet(self, rank: int, run: int) -> int:
        """Wait until another rank of this host has begun a run; gives its table's place.

        Raises:
            RunError: the run was stopped or has failed.
        """
        begun, tables = self.board(rank)
        self.wait(begun, run)
        return int(self._counter.value_of(tables + LINE * (run % TABLES)))

    def tell(self, slot: int, word: int) -> None:
        """Raise a counter of this rank's board, of those that ranks of this host share."""
        self._counter.publish(self._counter_of(self._rank, slot), word)

    def hear(self, rank: int, slot: int, least: int) -> int:
        """Wait until a counter of a rank's board is that high; gives it.

        Raises:
            RunError: the run was stopped or has failed.
        """
        address = self._counter_of(rank, slot)
        self.wait(address, least)
        return int(self._counter.value_of(address))

    def _counter_of(self, rank: int, slot: int) -> int:
        if self._shared is None:
            raise ValueError(f"rank {rank} shares no memory with this one")
        return self._shared.counter(rank, slot)

    def spins(self, since_s: float) -> bool:
        """Say whether a wait that has lasted since then would go on spinning.

        Raises:
            RunError: the run was stopped or has failed.
        """
        self._check()
        return perf_counter() - since_s < self._spin_s

    def wait(self, address: int, value: int) -> bool:
        """Wait until a counter has reached a value; says whether it has.

        Raises:
            RunError: the run was stopped or has failed.
        """
        reached = self._counter.has_reached
        if reached(address, value, self.looks):
            return True
        if not self._patient:
            return False
        begun = perf_counter()
        while self.spins(begun):
            if reached(address, value, LOOKS):
                return True
        with self.blocking():
            while not reached(address, value, self.looks):
                self._check()
                waited = perf_counter() - begun
                least_s, most_s = DOZE_S if self.crowded else NAP_S
                nap_s = min(max(waited / 8, least_s), most_s)
                if self.crowded:
                    self._doze(address, value, nap_s)
                else:
                    sleep(nap_s)
        return True

    def _doze(self, address: int, value: int, seconds: float) -> None:
        """Sleep until a counter is rung for, or for some time."""
        latch = threading.Lock()
        latch.acquire()
        own = value, latch
        with self._lock:
            self._asleep.setdefault(address, []).append(own)
        try:
            if not self._counter.has_reached(address, value, 1):
                sleep_until(latch, seconds)
        finally:
            with self._lock:
                others = [other for other in self._asleep[address] if other is not own]
                if others:
                    self._asleep[address] = others
                else:
                    del self._asleep[address]

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Count a thread of a processor as one that waits, inside."""
        with self._lock:
            self.blocked += 1
        try:
            yield
        finally:
            with self._lock:
                self.blocked -= 1

    def steps(self, processors: Collection[int]) -> int:
        """Sum up the counters of some processors, as far as they have any."""
        found = [self._addresses[processor] for processor in processors if processor in self._addresses]
        return sum(c_int64.from_address(address).value for address in found)


def sleep_until(latch: threading.Lock, seconds: float) -> None:
    """Sleep until a lock is released, or for some time."""
    latch.acquire(timeout=seconds)


def _ignore(value: int) -> None:
    """Stand for the raising of a counter that nobody sees."""
