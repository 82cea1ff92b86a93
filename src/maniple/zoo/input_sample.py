"""Samples: what one sample of a model's input is, so that batches can be described and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """One input of a model, without its sample dimension.

    Args:
        shape: In elements.
        values: Integers 0 .. values-1 (class or word numbers); None: floats.
    """

    shape: tuple[int, ...]
    values: int | None = None

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"int64"``."""
        return "float32" if self.values is None else "int64"

    def meta(self, batch: int) -> Tensor:
        """A batch without storage."""
        return torch.empty((batch, *self.shape), dtype=getattr(torch, self.dtype), device="meta")

    def draw(self, batch: int, chance: torch.Generator) -> Tensor:
        """A batch of numbers drawn uniformly (integers) or normally (floats)."""
        if self.values is None:
            return torch.randn((batch, *self.shape), generator=chance)
        return torch.randint(self.values, (batch, *self.shape), generator=chance)
