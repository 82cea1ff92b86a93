"""Host bytes: where what lasts lies in the host's memory."""

from __future__ import annotations

import torch

from maniple.process import huge_pages

__all__: list[str] = []


def take(size: int, least: int = huge_pages.PAGE) -> torch.Tensor:
    """Give bytes of the host's memory, of any content, whatever mode or default device the caller is in.

    Args:
        size: how many.
        least: as many as lie on huge pages; of what is taken and let go of again and again the C library keeps pieces,
            which nobody clears.
    """
    with torch.inference_mode(mode=False):
        pages = huge_pages.take(size) if size >= least else None
        if pages is None:
            return torch.empty(size, dtype=torch.int8, device="cpu")
        return torch.frombuffer(pages, dtype=torch.int8, count=size)
