"""Bodies at homes: copies of what lives there, and sums of micro-batches' gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.operators.lowering.operator_body import PureBinder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

__all__: list[str] = []


@dataclass(frozen=True)
class CastBinder(PureBinder):
    """Binds a copy of a weight at its home, which may be a cast: views are its values, and what to write."""

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return ("cast",)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        value, half = (view for view in views if view is not None)
        return lambda: half.copy_(value)


@dataclass(frozen=True)
class SumBinder(PureBinder):
    """Binds the addition of a micro-batch's gradient at home: views are it, and the sum.

    Args:
        first: whether nothing was added yet: it is copied.
    """

    first: bool

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return "sum", self.first

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        part, total = (view for view in views if view is not None)
        return (lambda: total.copy_(part)) if self.first else (lambda: total.add_(part))
