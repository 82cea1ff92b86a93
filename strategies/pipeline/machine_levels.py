"""The levels of a machine, as a segmentation sees them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from maniple.strategies.pipeline.stage_costs import Level

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


def levels(machine: Machine) -> tuple[Level, ...]:
    """The levels, innermost first: processors of one memory, memories of one host, hosts.

    Processors of one memory send nothing. A machine whose hosts or memories differ in size is one level, at the
    slowest bandwidth.
    """
    hosts = sorted({memory.host for memory in machine.memories})
    per_memory = {len(machine.processors_of(memory.id)) for memory in machine.memories}
    per_host = {sum(memory.host == host for memory in machine.memories) for host in hosts}
    if len(per_memory) > 1 or len(per_host) > 1:
        return (Level(len(machine.processors), slowest(machine)),)
    found = [
        Level(per_memory.pop()),
        Level(per_host.pop(), _bandwidth(machine, near=True)),
        Level(len(hosts), _bandwidth(machine, near=False)),
    ]
    return tuple(level for level in found if level.members > 1) or (Level(1),)


def slowest(machine: Machine) -> float:
    """Bytes per second of the slowest link between memories; infinite where there is one memory."""
    return min(_bandwidth(machine, near=True), _bandwidth(machine, near=False))


def flat(machine: Machine, devices: int) -> Level:
    """One level of some of a machine's processors, at the bandwidth of its slowest link."""
    return Level(devices, slowest(machine))


def share_bytes(machine: Machine) -> float:
    """What a processor may hold: the least share of a memory."""
    return min(memory.capacity_bytes / len(machine.processors_of(memory.id)) for memory in machine.memories)


def _bandwidth(machine: Machine, *, near: bool) -> float:
    """The slowest link between memories of one host, or of different hosts."""
    return min(
        (
            machine.link(a.id, b.id).bandwidth
            for a in machine.memories
            for b in machine.memories
            if a.id != b.id and (a.host == b.host) is near
        ),
        default=math.inf,
    )
