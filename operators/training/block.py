"""Blocks of weights, as their updates see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__: list[str] = []


@final
class Block(NamedTuple):
    """What an update changes, and what it reads, of a block of a weight.

    Args:
        value: the block's.
        gradient: the block's; only read.
        states: as ``AbstractOptimizer.states`` lists them.
    """

    value: Tensor
    gradient: Tensor
    states: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return self.value, self.gradient, *self.states


def can_share_kernel(blocks: Sequence[Block]) -> bool:
    """Whether one kernel of a GPU can update blocks: they lie there without gaps, and are of the same dtypes."""
    first = blocks[0].tensors
    return all(
        tensor.is_cuda and tensor.is_contiguous() and tensor.dtype == alike.dtype
        for block in blocks
        for tensor, alike in zip(block.tensors, first, strict=True)
    )
