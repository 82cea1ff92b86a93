"""The runtime's own kernels on CUDA: folds of any number of parts in one pass, and tiles that lie in rows with gaps.

A fold reads every part once and writes once, where torch's operations of two tensors write after each. Numbers of 16
bits are added in single precision and rounded after each addition, as torch does: the bits are the same on any device.

    pack     unit after unit of the row without gaps, each from where it lies in the instance
    unpack   the same the other way

A tile is a box of rows with strides, or several, and where a unit lies follows from its number: neither is listed. A
unit is as wide as where all rows begin and how long they are allows, 16 bytes at most.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import gcd, prod
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch

from maniple.regions.index_space import RectSet
from maniple.runtime.devices.cuda_kernels import (
    EVERY_BLOCK,
    FORMS,
    MOST_BLOCKS,
    Grid,
    as_numba,
    bind_launch,
    cuda,
    flat,
    load_four,
    store_four,
    to_device,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from maniple.regions.index_space import IndexSpace

__all__: list[str] = []

SHORTEST_ROW = 128
"""Bytes of rows below which an index of torch is as good."""
_WIDEST, NARROWEST = 16, 8
"""Bytes of a unit: rows that begin at other places torch's own copy moves as fast."""
_WIDTHS = {16: torch.int32, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


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
def fold_kernel(op: str, dtype: torch.dtype, *, wide: bool) -> Any:
    """The kernel of a reduction operator for a kind of number.

    Args:
        op: Its symbol.
        dtype: One of those that have forms.
        wide: Whether all lies so that one load takes four elements.
    """
    load, store = FORMS[dtype].load, FORMS[dtype].store
    combine: Any = cuda.jit(_COMBINE[op], device=True)

    def fold(target: Any, parts: Any) -> None:
        groups = target.size // 4 if wide else 0
        if wide:
            for group in range(cuda.grid(1), groups, cuda.gridsize(1)):
                at = np.uint64(4 * group)
                first = load_four(parts[0], at)
                a, b, c, d = load(first[0]), load(first[1]), load(first[2]), load(first[3])
                for number in range(1, len(parts)):
                    other = load_four(parts[number], at)
                    a, b = load(store(combine(a, load(other[0])))), load(store(combine(b, load(other[1]))))
                    c, d = load(store(combine(c, load(other[2])))), load(store(combine(d, load(other[3]))))
                store_four(target, at, (store(a), store(b), store(c), store(d)))
        for i in range(4 * groups + cuda.grid(1), target.size, cuda.gridsize(1)):
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
    size, arrays = target.numel(), (flat(target), tuple(flat(part) for part in parts))
    wide = not any(part.data_ptr() % (4 * target.element_size()) for part in (target, *parts))
    kernel, work = fold_kernel(op, target.dtype, wide=wide), -(-size // 4) if wide else size
    return bind_launch(kernel, work, arrays, stream, most=EVERY_BLOCK if wide else MOST_BLOCKS)


@cuda.jit(device=True)
def _place(boxes: Any, number: Any) -> Any:
    """Where a unit of the row lies in the instance."""
    box, end = 0, boxes.shape[0]
    while end - box > 1:  # the last one that does not begin behind it
        middle = (box + end) // 2
        if boxes[middle, 0] <= number:
            box = middle
        else:
            end = middle
    rest, place = np.uint32(number - boxes[box, 0]), boxes[box, 1]
    for axis in range(2, COLUMNS - 1, 2):
        if boxes[box, axis] != 1:
            extent = np.uint32(boxes[box, axis])
            more = np.uint32(rest // extent)
            place += np.int64(rest - more * extent) * boxes[box, axis + 1]
            rest = more
    return np.uint64(place + np.int64(rest) * boxes[box, COLUMNS - 1])


@lru_cache(maxsize=8)
def move_kernel(*, packs: bool, wide: bool) -> Any:
    """The kernel of a tile's way: a thread has two units under way at a time.

    Args:
        packs: Whether it goes from the instance into the row, and not the other way.
        wide: Whether a unit is four elements of the arrays, which one load takes.
    """
    four = np.uint64(4)

    def move(boxes: Any, count: int, source: Any, target: Any) -> None:
        step = cuda.gridsize(1)
        for i in range(cuda.grid(1), count, 2 * step):
            j = i + step if i + step < count else i
            near, other = np.uint64(i), np.uint64(j)
            far, another = _place(boxes, i), _place(boxes, j)
            if not packs:
                near, other, far, another = far, another, near, other
            if wide:
                unit, then = load_four(source, four * far), load_four(source, four * another)
                store_four(target, four * near, unit)
                store_four(target, four * other, then)
            else:
                first, second = source[far], source[another]
                target[near] = first
                target[other] = second

    return cuda.jit(move)


class Rows(NamedTuple):
    """A tile as boxes, whose elements lie one behind another in a row without gaps.

    Args:
        boxes: (boxes, COLUMNS) int64, of each where it begins in the row and in the instance, and then, from the
            innermost dimension on, the extent of each and its stride in the instance; of the outermost the stride
            alone. All but the extents of outer dimensions are in bytes.
        size: bytes of the tile.
        span: bytes of the instance from the tile's first to its last.
    """

    boxes: npt.NDArray[np.int64]
    size: int
    span: int

    def in_units(self, unit: int) -> npt.NDArray[np.int64]:
        """The boxes in units of so many bytes."""
        found = self.boxes.copy()
        found[:, _BYTES] //= unit
        found[:, 3] = 1
        return found


COLUMNS = 9
_BYTES = [0, 1, 2, 5, 7, 8]  # beginnings, the length of a row, and the strides of dimensions outside of it


def rows_of(shape: Sequence[int], strides: Sequence[int], points: IndexSpace, itemsize: int) -> Rows | None:
    """Cut a tile into boxes of rows; None where they are so short that an index is as good.

    Args:
        shape: Of the view of the bounds of the points.
        strides: In elements.
        points: The elements of the tile.
        itemsize: Bytes of an element.
    """
    boxes: Iterable[tuple[Sequence[int], Sequence[int]]] = [((0,) * len(shape), shape)]
    if isinstance(points, RectSet):
        boxes = [(tuple(np.subtract(rect.lo, points.lo).tolist()), rect.shape) for rect in points.rects]
    found: list[list[int]] = []
    at = span = rows = 0
    for low, extents in boxes:
        dims = _merged(extents, strides)
        if dims[-1][1] != 1 and dims[-1][0] != 1:
            return None
        length, outer = dims[-1][0], dims[:-1]
        start, rows = sum(map(mul, low, strides)), rows + prod(extent for extent, _ in outer)
        cut = outer[:-_OUTER] if len(outer) > _OUTER else []  # dimensions of which each place is a box of its own
        inner = [(1, 0)] * (_OUTER - len(outer)) + outer[len(cut) :]
        (_, last), *others = inner
        numbers = [number for extent, stride in reversed(others) for number in (extent, stride * itemsize)]
        for place in product(*(range(extent) for extent, _ in cut)):
            begin = start + sum(index * stride for index, (_, stride) in zip(place, cut, strict=True))
            found.append([at * itemsize, begin * itemsize, length * itemsize, 1, *numbers, last * itemsize])
            at += length * prod(extent for extent, _ in inner)
        span = max(span, start + 1 + sum((extent - 1) * stride for extent, stride in dims))
    if at * itemsize < SHORTEST_ROW * rows or len(found) > _MOST_BOXES:
        return None
    return Rows(np.asarray(found, dtype=np.int64), at * itemsize, span * itemsize)


_OUTER = 3
_MOST_BOXES = 1 << 12


def _merged(extents: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Extents and strides, outermost first, of as few dimensions as possible."""
    found: list[tuple[int, int]] = []
    for extent, stride in zip(extents, strides, strict=True):
        if extent == 1:
            continue
        if found and found[-1][1] == extent * stride:
            found[-1] = found[-1][0] * extent, stride
        else:
            found.append((extent, stride))
    return found or [(1, 1)]


def unit_of(view: torch.Tensor, rows: Rows) -> int:
    """The most bytes that one load can take wherever a row begins."""
    return gcd(int(np.gcd.reduce(rows.boxes[:, _BYTES], axis=None)), view.data_ptr(), _WIDEST)


@final
class TileMover:
    """Moves a tile between an instance on CUDA and a row without gaps.

    Args:
        view: of the bounds of the points.
        rows: of the tile.
    """

    def __init__(self, view: torch.Tensor, rows: Rows) -> None:
        size = view.element_size()
        flat_view = view.as_strided((rows.span // size,), (1,))
        self._unit = max(unit_of(view, rows), size)
        self._wide = self._unit == _WIDEST
        self._held = _WIDTHS[self._unit]
        self._count, self._dtype = rows.size // size, view.dtype
        self._there = as_numba(flat_view.view(self._held))
        self._units = rows.size // self._unit
        self._boxes = to_device(rows.in_units(self._unit))
        pack, unpack = (move_kernel(packs=packs, wide=self._wide) for packs in (True, False))
        self._pack, self._unpack = [Grid(kernel, -(-self._units // 2), most=EVERY_BLOCK) for kernel in (pack, unpack)]

    def pack(self, row: torch.Tensor | None = None, stream: object = None) -> torch.Tensor:
        """The tile's elements in a row, of which there may be one already, once what was launched has ended."""
        row = torch.empty(self._count, dtype=self._dtype) if row is None else row
        self._pack.on(stream)(self._boxes, self._units, self._there, self._bits(row))
        return row

    def unpack(self, row: torch.Tensor, stream: object = None) -> None:
        """Put a row of this device into the places of the tile."""
        if row.data_ptr() % self._unit:
            row = row.clone()
        self._unpack.on(stream)(self._boxes, self._units, self._bits(row), self._there)

    def _bits(self, row: torch.Tensor) -> Any:
        return as_numba(row.view(self._held))


def mover_of(view: torch.Tensor, points: IndexSpace) -> TileMover | None:
    """What moves a tile by one kernel; None where torch's own copy or index is as good."""
    if view.is_contiguous() and not isinstance(points, RectSet):
        return None
    rows = rows_of(view.shape, view.stride(), points, view.element_size())
    if rows is None or (not isinstance(points, RectSet) and unit_of(view, rows) < NARROWEST):
        return None
    return TileMover(view, rows)
