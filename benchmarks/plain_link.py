"""What two hosts reach by plain sockets, and what their interfaces count: what `wire.py` holds its figures against."""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from maniple.runtime.control.world import World
from maniple.runtime.schedule.roofline import BANDWIDTH_EFFICIENCY

ECHOES = 50
"""How often a byte goes there and back for a link's latency."""
Side = Callable[[], None]


@contextmanager
def plain(world: World, ends: tuple[int, int], interface: str) -> Iterator[socket.socket | None]:
    """A connection of plain TCP between two ranks; None at all others."""
    with socket.create_server((interface, 0)) as listening:
        told = world.control.gather(json.dumps(listening.getsockname()[:2]).encode())
        if world.rank == ends[0]:
            with socket.create_connection(tuple(json.loads(told[ends[1]]))) as link:
                yield link
        elif world.rank == ends[1]:
            link, _ = listening.accept()
            with link:
                yield link
        else:
            yield None


def send_plain(link: socket.socket | None, *, sends: bool, size: int, count: int) -> Side:
    """Send bytes of one buffer, or receive them into another, and hear of the end."""
    buffer = memoryview(bytearray(size))

    def go() -> None:
        if link is None:
            return
        if sends:
            for _ in range(count):
                link.sendall(buffer)
            link.recv(1)
            return
        for _ in range(count):
            came = 0
            while came < size:
                came += link.recv_into(buffer[came:])
        link.sendall(b"!")

    return go


def measure_link(link: socket.socket | None, *, begins: bool, size: int) -> tuple[float, float, float]:
    """What plain TCP has while so many bytes go both ways at once.

    Returns:
        The seconds of a byte one way; bytes per second each way; seconds that this end's processor computes for a byte
        that goes and one that comes.
    """
    if link is None:
        return 0.0, 0.0, 0.0
    trips, buffer, room = [], memoryview(bytearray(size)), memoryview(bytearray(size))
    for _ in range(ECHOES):
        begun = time.perf_counter()
        for sends in (begins, not begins):
            if sends:
                link.sendall(b"!")
            else:
                link.recv(1)
        trips.append(time.perf_counter() - begun)
    rates, computing = [], time.process_time()
    for _ in range(3):
        begun, came = time.perf_counter(), 0
        sending = threading.Thread(target=link.sendall, args=(buffer,))
        sending.start()
        while came < size:
            came += link.recv_into(room[came:])
        sending.join()
        rates.append(size / (time.perf_counter() - begun))
    computed = (time.process_time() - computing) / (3 * size)
    return statistics.median(trips) / 2, statistics.median(rates), computed


def measure_memory(size: int) -> float:
    """Bytes per second that a copy of so many reads and writes, as processors of machines reach it."""
    row, other, times = torch.ones(size // 4), torch.empty(size // 4), []
    for _ in range(5):
        begun = time.perf_counter()
        other.copy_(row)
        times.append(time.perf_counter() - begun)
    return 2 * size / statistics.median(times) / BANDWIDTH_EFFICIENCY


def sent_by(interface: str) -> tuple[int, int]:
    """The bytes and packets that an interface of this host has sent; a packet is cut into frames only behind it."""
    folder = Path("/sys/class/net", interface, "statistics")
    return int((folder / "tx_bytes").read_text()), int((folder / "tx_packets").read_text())


def counted(side: Side, interface: str) -> tuple[int, int]:
    """The bytes and packets that the interface sends in one round of a side."""
    before = sent_by(interface)
    side()
    after = sent_by(interface)
    return after[0] - before[0], after[1] - before[1]
