"""Symmetry: the ways to exchange processors that leave a machine as it is.

0 - 1   2 - 3      two hosts with two equal GPUs each, all ranks: 0 and 1 may be exchanged, 2 and 3, and the hosts

The first processor of a memory is like no other there: inputs arrive at it, and a CPU copies what is sent. The first of
a rank also fetches the loss.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.machine_part import Processor

__all__: list[str] = []

MOST = 6
"""Of more processors only the machine as it is is considered: n! exchanges would have to be checked."""

Exchange = tuple[int, ...]
"""For every processor the one that takes its place."""


def symmetries(machine: Machine) -> tuple[Exchange, ...]:
    """The exchanges that keep processors, memories, and what transfers between them share; first the one of nothing.

    Args:
        machine: the machine.
    """
    count = len(machine.processors)
    if count > MOST:
        return (tuple(range(count)),)
    return tuple(exchange for exchange in permutations(range(count)) if _keeps(machine, exchange))


def _keeps(machine: Machine, exchange: Exchange) -> bool:
    memory_of: dict[int, int] = {}
    for processor in machine.processors:
        image = machine.processors[exchange[processor.id]]
        if _role(machine, image) != _role(machine, processor):
            return False
        if replace(image, id=processor.id, memory=processor.memory, name=processor.name) != processor:
            return False
        if memory_of.setdefault(processor.memory, image.memory) != image.memory:
            return False
    hosts: dict[int, int] = {}
    for one, other in memory_of.items():
        first, second = machine.memories[one], machine.memories[other]
        same = (first.capacity_bytes, first.bandwidth) == (second.capacity_bytes, second.bandwidth)
        if not same or hosts.setdefault(first.host, second.host) != second.host:
            return False
    links: dict[int, int] = {}
    for one, other in product(memory_of, memory_of):
        if one != other:
            here = machine.routes.route(one, other)
            there = machine.routes.route(memory_of[one], memory_of[other])
            if [machine.routes.rate(link) for link in here] != [machine.routes.rate(link) for link in there]:
                return False
            if any(links.setdefault(a, b) != b for a, b in zip(here, there, strict=True)):
                return False
    return True


def _role(machine: Machine, processor: Processor) -> tuple[bool, bool]:
    """Whether a processor is the first of its memory, and of its rank."""
    rank = machine.memories[processor.memory].rank
    return machine.processors_of(processor.memory)[0] == processor.id, machine.first_of(rank) == processor.id
