"""Host bytes: where what lasts lies in the host's memory."""

from __future__ import annotations

import mmap

import torch

from maniple.process import huge_pages

__all__: list[str] = []


def in_host_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies where the host computes: on no device, and on none that stands in for one."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"


def take(size: int, least: int = huge_pages.PAGE, *, zero: bool = False) -> torch.Tensor:
    """Give bytes of the host's memory, whatever mode or default device the caller is in.

    Args:
        size: how many.
        least: as many as lie on huge pages; of what is taken and let go of again and again the C library keeps pieces,
            which nobody clears.
        zero: whether they are zero; else they have any content. Huge pages are: the system clears each when it is
            first written to, and until then none is taken.
    """
    with torch.inference_mode(mode=False):
        pages = huge_pages.take(size) if size >= least else None
        if pages is None:
            make = torch.zeros if zero else torch.empty
            return make(size, dtype=torch.int8, device="cpu")
        return torch.frombuffer(pages, dtype=torch.int8, count=size)


def reserve(size: int) -> torch.Tensor:
    """Give addresses of bytes of the host's memory, of which those are taken, a page at a time, that are written.

    Args:
        size: how many.

    Raises:
        MemoryError: the system gives this process no more addresses.
    """
    try:
        addresses = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes of addresses for scratch: {error}; raise the limit (ulimit -v)") from error
    with torch.inference_mode(mode=False):
        return torch.frombuffer(addresses, dtype=torch.uint8)
