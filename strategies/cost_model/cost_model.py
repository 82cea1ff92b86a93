"""The interface of cost models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from maniple.runtime.launch import Launch

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]


class CostModel(Protocol):
    """What tells how long tasks take."""

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        ...

    def source(self, launch: Launch, point: int) -> str:
        """Where the number of one task comes from: ``analytic``, ``measured`` or ``interpolated``."""
        ...
