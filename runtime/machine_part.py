"""The parts of a machine: processor, memory, host, link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

__all__: list[str] = []

ProcessorKind = Literal["cpu"]
"""The kinds of processor that exist."""


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
    """

    id: int
    kind: ProcessorKind
    memory: int
    cores: int
    flops_per_s: float
    name: str


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """What holds instances: the main memory that one rank uses.

    Args:
        id: 0, 1, ... over the whole machine; equal to the rank.
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
    """The way from one memory to another, in this direction.

    Args:
        source: id of the memory that bytes leave.
        target: id of the memory that they reach.
        latency_s: seconds before the first byte arrives.
        bandwidth: bytes per second from then on.
    """

    source: int
    target: int
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
