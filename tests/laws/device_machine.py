"""Machines whose ranks have CPUs and GPUs, each GPU with a memory of its own."""

from __future__ import annotations

import maniple as mp
from maniple.runtime.machine.machine_part import Host, Memory, Processor

ROOM = 1 << 24


def device_machine(ranks: int, cpus: int, gpus: int, room: int = ROOM) -> mp.Machine:
    """A machine of equal ranks.

    Args:
        ranks: each a node.
        cpus: CPU processors of each, which share the first memory of the rank.
        gpus: GPU processors of each.
        room: bytes that each GPU holds.
    """
    memories: list[Memory] = []
    processors: list[Processor] = []
    for rank in range(ranks):
        owned = ([("cpu", cpus, ROOM)] if cpus else []) + [("gpu", 1, room)] * gpus
        for kind, count, size in owned:
            memories.append(Memory(len(memories), rank, rank, size, 1e9))
            for _ in range(count):
                number = len(processors)
                processors.append(Processor(number, kind, memories[-1].id, 1, 1e9, f"p{number}"))  # type: ignore[arg-type]
    hosts = tuple(Host(rank, f"node{rank}") for rank in range(ranks))
    return mp.Machine("devices", hosts, tuple(memories), tuple(processors))
