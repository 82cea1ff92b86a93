"""Kernels of the embedding: rows of the tile's part of the table; the gradient is never as large as the batch."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch import Tensor

from maniple.operators.operator.operator import Kernels, TileContext
from maniple.regions.error import RunError

if TYPE_CHECKING:
    from maniple.operators.library.dense.embedding import Embedding


def _rows(context: TileContext, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
    """The numbers relative to the tile's part of the table, and which of them lie in it (None: all do).

    Raises:
        RunError: A number is no row of the table: split by rows, nobody would answer for it.
    """
    operator = cast("Embedding", context.operator)
    low, high = context.tile.range("v")
    flat = numbers.reshape(-1)
    wrong = (flat < 0) | (flat >= operator.num_embeddings)
    if bool(wrong.any()):
        found = int(flat[wrong][0])
        raise RunError(f"embedding: expected row numbers from 0 to {operator.num_embeddings - 1}, got {found}")
    if (low, high) == (0, operator.num_embeddings):
        return flat, None
    inside = (flat >= low) & (flat < high)
    return (flat - low).clamp_(0, high - low - 1), inside


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The rows that the tile has, zeros for others; see ``maniple.operators.operator.operator.BindForward``."""
    numbers, table = operands
    (result,) = results
    if numbers is None or table is None:
        raise TypeError("embedding: forward needs the numbers and the table")

    def run() -> None:
        rows, inside = _rows(context, numbers)
        found = table.index_select(0, rows)
        if inside is not None:
            found *= inside.unsqueeze(1)
        result.copy_(found.view(result.shape))

    return run


def bind_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """Each gradient added to its row; see ``maniple.operators.operator.operator.BindBackward``."""
    (gradient,) = result_gradients
    numbers, target = operands[0], operand_gradients[1]
    if gradient is None or numbers is None or target is None:
        raise TypeError("embedding: backward needs the numbers, the result's gradient and a place for the table's")
    padding = cast("Embedding", context.operator).padding_idx

    def run() -> None:
        rows, inside = _rows(context, numbers)
        slopes = gradient.reshape(-1, gradient.shape[-1])
        kept = inside
        if padding is not None:
            real = numbers.reshape(-1) != padding
            kept = real if kept is None else kept & real
        if kept is not None:
            rows, slopes = rows[kept], slopes[kept]
        target.zero_()
        target.index_add_(0, rows, slopes)

    return run


KERNELS = Kernels(bind_forward, bind_backward)
