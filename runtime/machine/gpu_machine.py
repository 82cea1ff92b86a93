"""Machines of GPUs that were found: what their properties and the presets say of them, before anything is measured.

peaks, memory's rate   of the preset whose name the device's has in it; else of the device's own properties
capacity               the device's memory without what contexts and tiles on their way take, evenly over those that
                       share it
launch                 a preset's; ``maniple calibrate`` measures it, and what the host takes
sharing                processors that are dealt one device have its number
links                  those of the preset, where every host has GPUs of one kind and each has its own; where ranks
                       share a GPU, the rate of `peer_link`
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from maniple.runtime.machine.machine_part import Host, Memory, Processor
from maniple.runtime.machine.peer_link import SHARED_GPU, ring_bytes
from maniple.runtime.machine.preset import GPU_LAUNCH_S, GPUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.process.inventory import Inventory
    from maniple.runtime.machine.machine_part import Link, Rate

__all__: list[str] = []

CONTEXT_BYTES = 600 * 2**20
"""Prior: what a process's CUDA context, cuBLAS's and cuDNN's workspaces take of a device."""
FRAGMENTED = 0.02
"""Prior: the share of a device's memory that torch's allocator cannot hand out, since it lies in pieces."""
LANES = {6: 64, 7: 64, 8: 64, 9: 128, 10: 128, 12: 128}
"""Float32 units of a multiprocessor by the major compute capability; 8.6 and 8.9 have 128."""


class Rates(NamedTuple):
    """What a GPU can do at most.

    Args:
        flops_per_s: float32, dense, without tensor cores.
        memory_bandwidth: bytes per second.
        peaks: dense, in other types, as far as they are told.
    """

    flops_per_s: float
    memory_bandwidth: float
    peaks: tuple[tuple[str, float], ...] = ()


class GpuParts(NamedTuple):
    """The parts of a machine, as far as they are known of GPUs.

    Args:
        hosts: its hosts.
        memories: one for each GPU processor.
        processors: the processors.
        links: none where they are not known.
        switches: those of the links.
        within_host: between GPUs of one host, where ranks share them; None where that says nothing.
    """

    hosts: tuple[Host, ...]
    memories: tuple[Memory, ...]
    processors: tuple[Processor, ...]
    links: tuple[Link, ...]
    switches: tuple[str, ...]
    within_host: Rate | None


def kind_of(name: str) -> str | None:
    """The preset of a device by the name that its driver gives it: `NVIDIA H100 80GB HBM3` is an h100."""
    words = name.lower().replace("-", " ").split()
    return next((kind for kind in GPUS if kind in words), None)


def rates_of(name: str, properties: Sequence[int]) -> Rates | None:
    """The rates of a device: those of its preset, or what its properties say; None where neither does.

    Args:
        name: what its driver calls it.
        properties: see ``Device.properties``. Memory moves two bits of each line in a cycle.
    """
    kind = kind_of(name)
    if kind is not None:
        return Rates(GPUS[kind].flops_per_s, GPUS[kind].memory_bandwidth, GPUS[kind].peaks)
    major, minor, multiprocessors, clock_khz, memory_clock_khz, lines = properties
    lanes = 128 if (major, minor) in {(8, 6), (8, 9)} else LANES.get(major, 0)
    if not (lanes and multiprocessors and clock_khz and memory_clock_khz and lines):
        return None
    return Rates(2.0e3 * lanes * multiprocessors * clock_khz, 2.0e3 * memory_clock_khz * lines / 8)


def gpu_parts_of(
    inventories: Sequence[Inventory], nodes: Sequence[int], processors: int, assumed_bytes: int, assumed: Rates
) -> GpuParts:
    """Put the parts together: each GPU is a processor with a memory of its own.

    The processors of a host are dealt out over its devices; those that share one share its memory evenly.

    Args:
        inventories: of every rank.
        nodes: the node of every rank.
        processors: of each rank.
        assumed_bytes: memory of a device that does not say it.
        assumed: rates of one that does not say them.
    """
    names = [inventory.host for inventory in inventories]
    numbers: dict[tuple[str, int], int] = {}
    memories, made, kinds = list[Memory](), list[Processor](), list[str | None]()
    shared = False
    for index, (rank, local) in enumerate((rank, local) for rank in range(len(names)) for local in range(processors)):
        place, count = names[:rank].count(names[rank]) * processors + local, names.count(names[rank]) * processors
        own = inventories[rank]
        sizes = own.gpu_bytes or (assumed_bytes,) * count
        device = place % len(sizes)
        sharers = sum(other % len(sizes) == device for other in range(count))
        shared |= sharers > 1
        told = rates_of(own.gpu_names[device], own.gpu_properties[device]) if own.gpu_properties else None
        rates = told or assumed
        beside = CONTEXT_BYTES + ring_bytes(names.count(names[rank]) - 1)
        taken = beside * sharers + FRAGMENTED * sizes[device] if own.gpu_names else 0
        kinds.append(kind_of(own.gpu_names[device]) if own.gpu_names else None)
        capacity = max(1, int(sizes[device] - taken) // sharers)
        memories.append(Memory(index, rank, nodes[rank], capacity, rates.memory_bandwidth))
        number = numbers.setdefault((names[rank], device), len(numbers)) if sharers > 1 else None
        made.append(Processor(index, "gpu", index, 1, rates.flops_per_s, f"g{index}", peaks=rates.peaks, device=number))
        if own.gpu_names:
            made[-1] = replace(made[-1], launch_s=GPU_LAUNCH_S)
    hosts = tuple(Host(node, names[nodes.index(node)]) for node in sorted(set(nodes)))
    links, switches = ((), ()) if shared else _wires(kinds, memories, hosts)
    real = all(inventory.gpu_names for inventory in inventories)
    return GpuParts(hosts, tuple(memories), tuple(made), links, switches, SHARED_GPU if shared and real else None)


def _wires(
    kinds: Sequence[str | None], memories: Sequence[Memory], hosts: Sequence[Host]
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """The links and switches of hosts whose GPUs are all of one kind; none where they are not."""
    if len(set(kinds)) != 1 or kinds[0] is None or len(memories) == 1:
        return (), ()
    kind = GPUS[kinds[0]]
    links: list[Link] = []
    switches: list[str] = []
    for host in hosts:
        own = [memory.id for memory in memories if memory.host == host.id]
        if len(own) > kind.per_host or own != [*range(own[0], own[0] + len(own))]:
            return (), ()
        links += kind.wires(host.id, range(own[0], own[0] + len(own)))
        switches += [switch.format(host.id) for switch in kind.switches]
    return tuple(links), (*switches, "network")
