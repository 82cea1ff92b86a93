"""Presets: machines by name whose constants were written down before anything was run on them.

Every constant is nominal: peak rates as vendors state them (dense, float32), link rates as NCCL models them in one
direction (``src/graph/topo.h``), decimal units. `docs/reference/machines.md` has the source of each. Latencies are
textbook values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor

if TYPE_CHECKING:
    from maniple.runtime.machine.machine_file import Parts
    from maniple.runtime.machine.machine_part import End

__all__: list[str] = []

GPU_LAUNCH_S = 7e-6
"""Seconds that a kernel launch costs at least."""
NVLINK_S = 1e-6
"""Seconds of one NVLink hop, through an NVSwitch or not."""
PCIE_S = 0.5e-6
"""Seconds of one PCI Express hop; from GPU to GPU are two or more."""
NETWORK_S = 1.25e-6
"""Seconds of one hop between a host and the network; from host to host are two."""
PCIE3 = 12e9
"""Bytes per second of PCI Express 3 x16, one direction."""

_NAME = re.compile(r"([a-z][a-z0-9]*)x([1-9][0-9]{0,4})")

Wire = Callable[[int, range], list[Link]]
"""The links of one host, both directions: from its number and the memories of its GPUs."""


@final
@dataclass(frozen=True, slots=True)
class GpuHost:
    """A kind of GPU and the host that it comes in.

    Args:
        flops_per_s: peak, float32, dense, without tensor cores.
        memory_bytes: of one GPU.
        memory_bandwidth: bytes per second.
        per_host: GPUs of one host.
        wires: how they are joined to each other and to the network.
        switches: names of the switches of a host, its number to follow.
        peaks: dense, in other types, in tensor cores where it has them.
    """

    flops_per_s: float
    memory_bytes: int
    memory_bandwidth: float
    per_host: int
    wires: Wire
    switches: tuple[str, ...]
    peaks: tuple[tuple[str, float], ...] = ()


def _both(first: End, second: End, latency_s: float, bandwidth: float) -> list[Link]:
    return [Link(first, second, latency_s, bandwidth), Link(second, first, latency_s, bandwidth)]


def _p100(host: int, gpus: range) -> list[Link]:
    """Four GPUs with one NVLink between any two, on a PCIe switch with the one network card."""
    links = [link for a in gpus for b in gpus if a < b for link in _both(a, b, NVLINK_S, 18e9)]
    for gpu in gpus:
        links += _both(gpu, f"pcie{host}", PCIE_S, PCIE3)
    return links + _both(f"pcie{host}", "network", NETWORK_S, 12e9)


def _k80(host: int, gpus: range) -> list[Link]:
    """Two cards of two GPUs: a card's GPUs share its PCIe switch, both cards share the way to the network."""
    links = []
    for gpu in gpus:
        links += _both(gpu, f"card{host}.{(gpu - gpus.start) // 2}", PCIE_S, PCIE3)
    for card in range(2):
        links += _both(f"card{host}.{card}", f"pcie{host}", PCIE_S, PCIE3)
    return links + _both(f"pcie{host}", "network", NETWORK_S, 6.8e9)


_CUBE_MESH = ((1, 1, 2, 2, 0, 0, 0), (2, 1, 0, 2, 0, 0), (2, 0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 2), (2, 1), (2,))
"""NVLinks between GPU i and GPUs i+1 .. 7 of the eight of a DGX-1V."""


def _v100(host: int, gpus: range) -> list[Link]:
    """The hybrid cube mesh: six NVLinks a GPU; two GPUs share a PCIe switch and a network card."""
    links = []
    for first, row in enumerate(_CUBE_MESH):
        for second, wide in enumerate(row, first + 1):
            if wide and second < len(gpus):
                links += _both(gpus[first], gpus[second], NVLINK_S, 20e9 * wide)
    for gpu in gpus:
        links += _both(gpu, f"pcie{host}.{(gpu - gpus.start) // 2}", PCIE_S, PCIE3)
    for card in range(4):
        links += _both(f"pcie{host}.{card}", "network", NETWORK_S, 12e9)
        links += _both(f"pcie{host}.{card}", f"cpu{host}", PCIE_S, PCIE3)
    return links


def _nvswitch(nvlink: float, network: float) -> Wire:
    """An NVSwitch that joins all GPUs of a host, and a network card for each GPU."""

    def wires(host: int, gpus: range) -> list[Link]:
        links = []
        for gpu in gpus:
            links += _both(gpu, f"nvswitch{host}", NVLINK_S / 2, nvlink)
            links += _both(gpu, "network", NETWORK_S, network)
        return links

    return wires


def _peaks(float64: float, tf32: float, half: float) -> tuple[tuple[str, float], ...]:
    """The peaks of a GPU that has tensor cores for these types."""
    return (("float64", float64), ("tf32", tf32), ("bfloat16", half), ("float16", half))


_A100 = _peaks(19.5e12, 156e12, 312e12)
_HOPPER = _peaks(67e12, 494.7e12, 989.4e12)
_BLACKWELL = _peaks(37e12, 1125e12, 2250e12)
GPUS: dict[str, GpuHost] = {
    "k80": GpuHost(4.1e12, 12 * 10**9, 240.6e9, 4, _k80, ("card{}.0", "card{}.1", "pcie{}")),
    "p100": GpuHost(10.6e12, 16 * 10**9, 732e9, 4, _p100, ("pcie{}",), (("float64", 5.3e12), ("float16", 21.2e12))),
    "v100": GpuHost(
        15.7e12,
        16 * 10**9,
        900e9,
        8,
        _v100,
        ("pcie{}.0", "pcie{}.1", "pcie{}.2", "pcie{}.3", "cpu{}"),
        (("float64", 7.8e12), ("float16", 125e12)),
    ),
    "a100": GpuHost(19.5e12, 80 * 10**9, 2039e9, 8, _nvswitch(240e9, 25e9), ("nvswitch{}",), _A100),
    "h100": GpuHost(67e12, 80 * 10**9, 3350e9, 8, _nvswitch(370.8e9, 50e9), ("nvswitch{}",), _HOPPER),
    "h200": GpuHost(67e12, 141 * 10**9, 4800e9, 8, _nvswitch(370.8e9, 50e9), ("nvswitch{}",), _HOPPER),
    "b200": GpuHost(75e12, 180 * 10**9, 7700e9, 8, _nvswitch(721.8e9, 50e9), ("nvswitch{}",), _BLACKWELL),
}
"""The kinds of GPU by name. A K80 counts as what programs see of it: two GPUs."""


def gpu_parts(name: str) -> Parts | None:
    """The fields of the machine ``GPUxCOUNT``, such as ``p100x16``; None where the name is not of that form.

    The last host may have fewer GPUs than the others. Each GPU is a rank with a memory of its own.

    Raises:
        RequestError: there is no such GPU.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    gpu, count = match.group(1), int(match.group(2))
    if gpu not in GPUS:
        raise RequestError(f"machine {name!r}: there is no GPU {gpu!r}; known: {', '.join(sorted(GPUS))}")
    kind = GPUS[gpu]
    hosts = -(-count // kind.per_host)
    links: list[Link] = []
    switches: list[str] = []
    for host in range(hosts):
        gpus = range(host * kind.per_host, min(count, (host + 1) * kind.per_host))
        links += kind.wires(host, gpus)
        switches += [switch.format(host) for switch in kind.switches]
    return (
        name,
        tuple(Host(host, f"node{host}") for host in range(hosts)),
        tuple(
            Memory(index, index, index // kind.per_host, kind.memory_bytes, kind.memory_bandwidth)
            for index in range(count)
        ),
        tuple(
            Processor(index, "gpu", index, 1, kind.flops_per_s, f"g{index}", GPU_LAUNCH_S, kind.peaks)
            for index in range(count)
        ),
        tuple(links),
        None,
        None,
        (*switches, "network"),
    )
