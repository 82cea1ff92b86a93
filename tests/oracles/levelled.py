"""Machines on which other plans than direct are quickest.

Hosts whose memories share one slow card to a network: what crosses it had better cross once. Pairs of memories of one
host, with a slow way from pair to pair: what goes round crosses it once in each direction.
"""

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


def paired(members: int, kind: ProcessorKind = "cpu", launch_s: float = 1e-5) -> Machine:
    """One host of so many memories, two on a switch; the less a launch takes, the more pieces pay."""
    links = []
    for memory in range(members):
        switch = f"pair{memory // 2}"
        links += [Link(memory, switch, 1e-9, 1e9), Link(switch, memory, 1e-9, 1e9)]
    switches = [f"pair{pair}" for pair in range((members + 1) // 2)]
    for switch in switches:
        links += [Link(switch, "host", 1e-9, 1e6), Link("host", switch, 1e-9, 1e6)]
    count = range(members)
    return Machine(
        f"{members} in pairs",
        (Host(0, "host0"),),
        tuple(Memory(m, m, 0, 1 << 34, 1e8) for m in count),
        tuple(Processor(m, kind, m, 1, 1e11, f"p{m}", launch_s) for m in count),
        tuple(links),
        None,
        None,
        (*switches, "host"),
    )
