"""Copying elements in main memory, by what says how many bytes it wrote; needs no torch, as the launcher has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__: list[str] = []


def copy_into(target: npt.NDArray[Any], source: npt.NDArray[Any]) -> int:
    """Copy elements into a place of the same shape; gives the bytes that were written."""
    np.copyto(target, source)
    return target.nbytes
