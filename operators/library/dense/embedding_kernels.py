"""Kernels of the embedding: rows of the tile's part of the table; the gradient is never as large as the batch."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.process.error import RunError

if TYPE_CHECKING:
    from maniple.operators.library.dense.embedding import Embedding


def _rows(context: TileContext, numbers: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The numbers relative to the tile's part of the table, which of them lie in it (None: all do), and which in none.

    On a device nobody looks whether there is one (None), and each of these is a launch or two.

    Raises:
        RunError: A number is no row of the table: split by rows, nobody would answer for it.
    """
    operator = cast("Embedding", context.operator)
    low, high = context.tile.range("v")
    flat, whole, here = numbers.reshape(-1), (low, high) == (0, operator.num_embeddings), in_host_memory(numbers)
    if whole and not here:
        rows = flat.clamp(0, high - 1)
        return rows, None, rows != flat
    wrong = (flat < 0) | (flat >= operator.num_embeddings)
    if here and bool(wrong.any()):
        found = int(flat[wrong][0])
        raise RunError(f"embedding: expected row numbers from 0 to {operator.num_embeddings - 1}, got {found}")
    if whole:
        return flat, None, None
    apart = flat - low
    rows = apart.clamp(0, high - low - 1)
    return rows, rows == apart, None if here else wrong


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The rows that the tile has, zeros for others."""
    numbers, table, (result,) = tensors.operand(0), tensors.operand(1), tensors.results
    lies_dense = result.is_contiguous() and result.dtype == table.dtype
    place = result.view(-1, table.shape[1]) if lies_dense else None

    def run() -> None:
        rows, inside, wrong = _rows(context, numbers)
        found = table.index_select(0, rows) if place is None else torch.index_select(table, 0, rows, out=place)
        if inside is not None:
            found *= inside.unsqueeze(1)
        if wrong is not None:
            found.masked_fill_(wrong.unsqueeze(1), nan)
        if place is None:
            result.copy_(found.view(result.shape))

    return run


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Each gradient added to its row."""
    gradient, numbers, target = tensors.gradient(), tensors.operand(0), tensors.target(1)
    padding = cast("Embedding", context.operator).padding_idx

    def run() -> None:
        rows, inside, wrong = _rows(context, numbers)
        slopes = gradient.reshape(-1, gradient.shape[-1])
        kept = inside if wrong is None or inside is not None else ~wrong
        if padding is not None:
            real = numbers.reshape(-1) != padding
            kept = real if kept is None else kept & real
        if kept is not None and wrong is None:
            rows, slopes = rows[kept], slopes[kept]
        elif kept is not None:  # how many are kept only the device knows: the others add nothing
            slopes = slopes.masked_fill(~kept.unsqueeze(1), 0)
        if 1 not in tensors.adds:
            target.zero_()
        target.index_add_(0, rows, slopes)

    return run


KERNELS = Kernels(bind_forward, bind_backward, accumulates=(1,))
