"""The parts of a machine: processor, memory, host, link; and the ends that links join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

__all__: list[str] = []

ProcessorKind = Literal["cpu", "gpu"]
"""The kinds of processor that exist."""
End = int | str
"""An end of a link: the id of a memory, or the name of a switch."""
LAUNCH_S = 5e-6
"""Prior: seconds that starting a task costs a CPU processor."""


@final
@dataclass(frozen=True, slots=True)
class Feed:
    """What a host does to feed a GPU, and what that takes.

    Args:
        eager_s: seconds of the host for a task that the GPU is given by itself, while it works on those before.
        run_s: seconds of a run beside what the GPU does, from when it is submitted to when its end is heard.
        staging: bytes per second that it copies into pinned memory, before the GPU fetches them from there.
        upload: bytes per second from pinned memory to the GPU's.
        download: bytes per second back.
    """

    eager_s: float
    run_s: float
    staging: float
    upload: float
    download: float


@final
@dataclass(frozen=True, slots=True)
class Processor:
    """What runs tasks one at a time.

    Args:
        id: 0, 1, ... over the whole machine.
        kind: what it is.
        memory: id of the memory that it works on.
        cores: how many cores it owns.
        flops_per_s: peak rate in float32, all its cores together.
        name: what timelines call it.
        launch_s: seconds that starting any task costs; on a GPU, of a task that is a node of a captured graph.
        peaks: peak rates in other types by name; types that are not there have that of float32. ``tf32`` is float32 in
            tensor cores.
        feed: of a GPU, what its host takes for it; None where nobody measured it: then ports cost as tasks do.
        device: of a GPU that is shared, a number of it: processors with one number are one device, which runs a task of
            one of them at a time; None: a device of its own.
    """

    id: int
    kind: ProcessorKind
    memory: int
    cores: int
    flops_per_s: float
    name: str
    launch_s: float = LAUNCH_S
    peaks: tuple[tuple[str, float], ...] = ()
    feed: Feed | None = None
    device: int | None = None

    def peak(self, dtype: str) -> float:
        """The peak rate in a type."""
        return dict(self.peaks).get(dtype, self.flops_per_s)


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """What holds instances: the part of main memory that one rank uses, or the memory of one GPU of a rank.

    Args:
        id: 0, 1, ... over the whole machine, those of one rank next to each other.
        rank: the process that owns it.
        host: id of its host.
        capacity_bytes: how much it holds.
        bandwidth: bytes per second that its processors together read or write.
    """

    id: int
    rank: int
    host: int
    capacity_bytes: int
    bandwidth: float


@final
@dataclass(frozen=True, slots=True)
class Host:
    """A node: the ranks of one host. The local launcher emulates several nodes on one computer.

    Args:
        id: 0, 1, ... over the whole machine.
        name: what messages call it.
    """

    id: int
    name: str


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A way for bytes from one end to the other, in this direction: all that cross it share its bandwidth.

    Args:
        source: the memory (id) or switch (name) that bytes leave.
        target: the memory (id) or switch (name) that they reach.
        latency_s: seconds before the first byte arrives.
        bandwidth: bytes per second from then on.
    """

    source: End
    target: End
    latency_s: float
    bandwidth: float


@final
@dataclass(frozen=True, slots=True)
class Rate:
    """The speed of every link of a class that is not listed by itself.

    Args:
        latency_s: seconds before the first byte arrives.
        bandwidth: bytes per second from then on.
    """

    latency_s: float
    bandwidth: float
