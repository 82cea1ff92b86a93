"""Peer links: how tiles travel between GPUs of ranks of one host, for machines that are found and for the runtime.

Two processes that use one GPU take turns on it, and a copy within its memory is work of the GPU's: a tile waits for two
turns. Its copy engines, which move tiles to the host and back, work beside that. So a pair that shares a GPU uses
memory of the host for tiles below `TURNS_WORTH`, where it can, and memory of the device above; a pair with a GPU each
uses memory of the device for all. (Two processes on one H100, nothing else on it, without this runtime: 64 KiB took
308 us within the GPU's memory and 55 us over the host's, 1 MiB 324 and 73, 64 MiB 395 and 1727.)
"""

from __future__ import annotations

from maniple.runtime.machine.machine_part import Rate

__all__: list[str] = []

TURNS_WORTH = 8 << 20
"""Prior: bytes of a tile from which two turns on a GPU take less than the way over the host's memory."""
RING_BYTES = 32 << 20
"""Bytes of memory in which tiles from one GPU to one other rank wait, unless a tile is larger."""
SHARED_GPU = Rate(latency_s=55e-6, bandwidth=39e9)
"""Prior: from one rank to another that uses the same GPU, over pinned memory of the host, as found on an H100."""


def uses_device(size: int, *, device: bool, host: bool, shares: bool) -> bool | None:
    """Say whether a tile goes through memory of a device, or of the host; None where it goes through neither.

    Args:
        size: bytes of the tile.
        device: whether the receiver can open memory of the sender's device.
        host: whether it can open memory of the host that the sender has made.
        shares: whether both use the same GPU.
    """
    if device and not (host and shares and size < TURNS_WORTH):
        return True
    return False if host else None


def ring_bytes(peers: int) -> int:
    """The memory of a GPU that rings of one rank may take.

    Args:
        peers: the other ranks of its host.
    """
    return peers * RING_BYTES
