"""The runtime's own kernels on CUDA: folds of any number of parts in one pass, and tiles that lie in rows with gaps.

A fold reads every part once and writes once, where torch's operations of two tensors write after each. Numbers of 16
bits are added in single precision and rounded after each addition, as torch does: the bits are the same on any device.

    pack     rows of the tile: where each begins in the instance, where in the row without gaps, and how many elements
    unpack   the same the other way

A warp takes a row, and what it moves at a time is as wide as where all rows begin and how long they are allows.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch

from maniple.regions.index_space import RectSet
from maniple.runtime.devices.cuda_kernels import FORMS, as_numba, bind_launch, cuda, flat, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from maniple.regions.index_space import IndexSpace

__all__: list[str] = []

WARP = 32
SHORTEST_ROW = 128
"""Bytes of rows below which an index of torch is as good."""
LONGEST_ROW = 1 << 15
"""Bytes of a row that one warp takes; longer ones are cut."""
_WIDTHS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def _add(a: Any, b: Any) -> Any:
    return a + b


def _multiply(a: Any, b: Any) -> Any:
    return a * b


def _smaller(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b  # noqa: PLR0124  (a NaN stays, as in torch)


def _larger(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b  # noqa: PLR0124


_COMBINE = {"+": _add, "*": _multiply, "min": _smaller, "max": _larger}


@lru_cache(maxsize=64)
def fold_kernel(op: str, dtype: torch.dtype) -> Any:
    """The kernel of a reduction operator for a kind of number.

    Args:
        op: Its symbol.
        dtype: One of those that have forms.
    """
    load, store = FORMS[dtype].load, FORMS[dtype].store
    combine: Any = cuda.jit(_COMBINE[op], device=True)

    def fold(target: Any, parts: Any) -> None:
        for i in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            total = load(parts[0][i])
            for number in range(1, len(parts)):
                total = load(store(combine(total, load(parts[number][i]))))
            target[i] = store(total)

    return cuda.jit(fold)


def bind_fold(
    op: str, target: torch.Tensor, parts: Sequence[torch.Tensor], stream: object = None
) -> Callable[[], None] | None:
    """Bind ``target := parts[0] op parts[1] op ...`` in one pass; None where torch's operations are to do it.

    Args:
        op: symbol of the reduction operator.
        target: written; it may be the first part.
        parts: of the same shape.
        stream: of numba; by default torch's current one at each call.
    """
    known = op in _COMBINE and target.dtype in FORMS
    if not known or len(parts) <= 2 or not all(part.is_contiguous() for part in (target, *parts)):
        return None
    arrays = (flat(target), tuple(flat(part) for part in parts))
    return bind_launch(fold_kernel(op, target.dtype), target.numel(), arrays, stream)


def _move(rows: Any, source: Any, target: Any) -> None:
    lane, warp = cuda.grid(1) % WARP, cuda.grid(1) // WARP
    for number in range(warp, rows.shape[0], cuda.gridsize(1) // WARP):
        first, then, count = rows[number, 0], rows[number, 1], rows[number, 2]
        for i in range(lane, count, WARP):
            target[then + i] = source[first + i]


move_kernel: Any = cuda.jit(_move)


class Rows(NamedTuple):
    """A tile as rows, each of elements that lie one behind another on both sides.

    Args:
        table: (rows, 3) int64: where each begins in the instance and in the row without gaps, and how many elements
            it has.
        span: elements of the instance from the tile's first to its last.
    """

    table: npt.NDArray[np.int64]
    span: int


def rows_of(shape: Sequence[int], strides: Sequence[int], points: IndexSpace, itemsize: int) -> Rows | None:
    """Cut a tile into rows; None where they are so short that an index is as good.

    Args:
        shape: Of the view of the bounds of the points.
        strides: In elements.
        points: The elements of the tile.
        itemsize: Bytes of an element.
    """
    boxes: Iterable[tuple[Sequence[int], Sequence[int]]] = [((0,) * len(shape), shape)]
    if isinstance(points, RectSet):
        boxes = [(tuple(np.subtract(rect.lo, points.lo).tolist()), rect.shape) for rect in points.rects]
    found, at, most = [], 0, max(1, LONGEST_ROW // itemsize)
    for low, extents in boxes:
        length, axis = 1, len(extents)
        while axis > 0 and (extents[axis - 1] == 1 or strides[axis - 1] == length):
            axis -= 1
            length *= extents[axis]
        starts = np.asarray([int(np.dot(low, strides)) if len(low) else 0])
        for extent, stride in zip(extents[:axis], strides[:axis], strict=True):
            starts = (starts[:, None] + np.arange(extent) * stride).reshape(-1)
        pieces = np.arange(0, length, most)
        counts = np.minimum(most, length - pieces)
        goals = at + np.arange(len(starts)) * length
        found.append(
            np.stack(
                [
                    (starts[:, None] + pieces).reshape(-1),
                    (goals[:, None] + pieces).reshape(-1),
                    np.broadcast_to(counts, (len(starts), len(pieces))).reshape(-1),
                ],
                axis=1,
            )
        )
        at += prod(extents)
    table = np.ascontiguousarray(np.concatenate(found), dtype=np.int64)
    if at * itemsize < SHORTEST_ROW * len(table):
        return None
    return Rows(table, int((table[:, 0] + table[:, 2]).max()))


@final
class TileMover:
    """Moves a tile between an instance on CUDA and a row without gaps.

    Args:
        view: of the bounds of the points.
        rows: of the tile.
    """

    def __init__(self, view: torch.Tensor, rows: Rows) -> None:
        size = view.element_size()
        table = rows.table * size
        unit = gcd(int(np.gcd.reduce(table, axis=None)), view.data_ptr(), 8)
        flat_view = view.as_strided((rows.span,), (1,))
        if unit < size or flat_view.storage_offset() * size % unit:
            unit = size
        self._unit = _WIDTHS[unit]
        self._count, self._dtype = int(rows.table[:, 2].sum()), view.dtype
        self._there = as_numba(flat_view.view(self._unit))
        self._pack = to_device(table // unit)
        self._unpack = to_device(np.ascontiguousarray(table[:, [1, 0, 2]] // unit))
        self._threads = WARP * len(table)

    def pack(self, stream: object = None) -> torch.Tensor:
        """The tile's elements in a row, once what was launched has ended."""
        row = torch.empty(self._count, dtype=self._dtype)
        bind_launch(move_kernel, self._threads, (self._pack, self._there, self._bits(row)), stream)()
        return row

    def unpack(self, row: torch.Tensor, stream: object = None) -> None:
        """Put a row of this device into the places of the tile."""
        bind_launch(move_kernel, self._threads, (self._unpack, self._bits(row), self._there), stream)()

    def _bits(self, row: torch.Tensor) -> Any:
        return as_numba(row.view(self._unit))


def mover_of(view: torch.Tensor, points: IndexSpace) -> TileMover | None:
    """What moves a tile by one kernel; None where torch's own copy or index is as good."""
    if view.is_contiguous() and not isinstance(points, RectSet):
        return None
    rows = rows_of(view.shape, view.stride(), points, view.element_size())
    return None if rows is None else TileMover(view, rows)
