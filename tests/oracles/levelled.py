"""Machines of hosts whose memories share one slow card to a network: what crosses it had better cross once."""

from __future__ import annotations

from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor, ProcessorKind


def levelled(hosts: int, members: int, kind: ProcessorKind = "cpu") -> Machine:
    """Hosts of so many memories, each of a rank of its own with one processor."""
    links = []
    for memory in range(hosts * members):
        card = f"card{memory // members}"
        links += [Link(memory, card, 1e-6, 1e12), Link(card, memory, 1e-6, 1e12)]
    for host in range(hosts):
        links += [Link(f"card{host}", "network", 1e-6, 1e7), Link("network", f"card{host}", 1e-6, 1e7)]
    count = range(hosts * members)
    return Machine(
        f"{hosts} hosts of {members}",
        tuple(Host(host, f"host{host}") for host in range(hosts)),
        tuple(Memory(m, m, m // members, 1 << 34, 1e12) for m in count),
        tuple(Processor(m, kind, m, 1, 1e11, f"p{m}") for m in count),
        tuple(links),
        None,
        None,
        (*(f"card{host}" for host in range(hosts)), "network"),
    )
