"""Parameters as an optimizer sees them: whatever has their names and shapes, such as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__: list[str] = []


class Parameter(Protocol):
    """One of them."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        ...

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        ...


class Model(Protocol):
    """What has parameters."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """All of them."""
        ...
