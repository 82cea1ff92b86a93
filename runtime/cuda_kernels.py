"""The runtime's kernels on CUDA: folds in one pass, and the halos of an instance packed in one launch.

Import this where a GPU is used and nowhere else: it imports numba's CUDA target, or its simulator.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from numba import config
from numba import cuda as _cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.regions.rectangle import Rect

__all__: list[str] = []

_SIMULATED = bool(vars(config)["ENABLE_CUDASIM"])

cuda: Any = _cuda  # untyped, and its names are there only once it knows its target

DeviceArray = Any  # a torch tensor on CUDA, or a device array of numba

THREADS = 128  # of a block
_MOST_BLOCKS = 4096  # more do not fill a GPU better; a thread takes every gridsize-th element


def launched(kernel: Any, work: int, arguments: tuple[object, ...], stream: object = 0) -> Callable[[], None]:
    """A kernel bound to its arguments and to a grid of blocks of ``THREADS`` threads.

    Args:
        kernel: What ``cuda.jit`` gave; takes any number of blocks.
        work: Threads that have something to do.
        arguments: Device arrays (which stay where they are) and numbers.
        stream: Of numba.
    """
    blocks = max(1, min(_MOST_BLOCKS, -(-work // THREADS)))
    configured = kernel[blocks, THREADS, stream]
    return lambda: configured(*arguments)


def seen_by_numba(array: DeviceArray) -> Any:
    """A device array as kernels take it: numba's own as it is, torch's memory shared; the host's in the simulator."""
    if not isinstance(array, torch.Tensor):
        return array
    return array.numpy() if _SIMULATED else cuda.as_cuda_array(array)


def current_stream() -> object:
    """The stream into which torch puts work now, as numba takes it; the simulator has none."""
    if _SIMULATED:
        return 0
    from maniple.runtime.cuda_device import numba_stream

    return numba_stream()


def flat(array: DeviceArray) -> Any:
    """The elements of a contiguous device array in one dimension."""
    seen = seen_by_numba(array)
    return seen if seen.ndim == 1 else seen.reshape(seen.size)


@cuda.jit(device=True)
def _sum(a: float, b: float) -> float:
    return a + b


@cuda.jit(device=True)
def _product(a: float, b: float) -> float:
    return a * b


@cuda.jit(device=True)
def _least(a: float, b: float) -> float:
    return a if a < b or a != a else b  # noqa: PLR0124  (a NaN is what differs from itself, and it wins, as in torch)


@cuda.jit(device=True)
def _greatest(a: float, b: float) -> float:
    return a if a > b or a != a else b  # noqa: PLR0124


_COMBINE = {"+": _sum, "*": _product, "min": _least, "max": _greatest}


@lru_cache
def _fold_kernel(op: str) -> Any:
    combine = _COMBINE[op]

    @cuda.jit
    def fold(target: Any, parts: tuple[Any, ...]) -> None:
        for i in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            value = parts[0][i]
            for part in parts[1:]:
                value = combine(value, part[i])
            target[i] = value

    return fold


def bind_fold(op: str, target: DeviceArray, parts: Sequence[DeviceArray], stream: object = 0) -> Callable[[], None]:
    """Bind `target := parts[0] op parts[1] op ...`, in this order and in one pass.

    Args:
        op: symbol of the reduction operator.
        target: contiguous; it may be one of the parts.
        parts: contiguous arrays of one shape and dtype; at least two.
        stream: of numba.
    """
    written = flat(target)
    return launched(_fold_kernel(op), written.size, (written, tuple(flat(part) for part in parts)), stream)


def packing(covered: Rect, rects: Sequence[Rect]) -> npt.NDArray[np.int64]:
    """The table by which rectangles of an instance are packed: a row for each.

    A row holds the rectangle's first place in the packed buffer, its first place in the instance, its shape, and the
    instance's strides; all in elements. Two columns of [0:4, 0:6] and a row of it:

        [0:4, 0:1]    0  0    4 1    6 1
        [0:4, 5:6]    4  5    4 1    6 1
        [3:4, 0:6]    8 18    1 6    6 1

    Args:
        covered: what the instance holds, row-major.
        rects: inside it; none is empty.
    """
    strides = [prod(covered.shape[axis + 1 :]) for axis in range(covered.ndim)]
    table = np.empty((len(rects), 2 + 2 * covered.ndim), np.int64)
    first = 0
    for row, rect in enumerate(rects):
        base = sum((low - origin) * stride for low, origin, stride in zip(rect.lo, covered.lo, strides, strict=True))
        table[row] = [first, base, *rect.shape, *strides]
        first += rect.volume
    return table


@cuda.jit(device=True)
def _place(table: Any, rank: int, packed: int) -> int:
    """Where in the instance the element lies that is ``packed`` in the buffer."""
    row = 0
    while row + 1 < table.shape[0] and table[row + 1, 0] <= packed:
        row += 1
    left = packed - table[row, 0]
    place = table[row, 1]
    for axis in range(rank - 1, -1, -1):
        extent = table[row, 2 + axis]
        place += left % extent * table[row, 2 + rank + axis]
        left //= extent
    return int(place)


@cuda.jit
def _pack(table: Any, rank: int, instance: Any, buffer: Any) -> None:
    for i in range(cuda.grid(1), buffer.size, cuda.gridsize(1)):
        buffer[i] = instance[_place(table, rank, i)]


@cuda.jit
def _unpack(table: Any, rank: int, instance: Any, buffer: Any) -> None:
    for i in range(cuda.grid(1), buffer.size, cuda.gridsize(1)):
        instance[_place(table, rank, i)] = buffer[i]


def bind_pack(
    instance: DeviceArray, covered: Rect, rects: Sequence[Rect], buffer: DeviceArray, stream: object = 0
) -> Callable[[], None]:
    """Bind the copy of rectangles of an instance, one after the other, into a buffer: one launch for all halos.

    Args:
        instance: contiguous.
        covered: what it holds.
        rects: inside that.
        buffer: one dimension, as many elements as the rectangles have together.
        stream: of numba.
    """
    return _bind(_pack, instance, covered, rects, buffer, stream)


def bind_unpack(
    instance: DeviceArray, covered: Rect, rects: Sequence[Rect], buffer: DeviceArray, stream: object = 0
) -> Callable[[], None]:
    """Bind the way back: see `bind_pack`."""
    return _bind(_unpack, instance, covered, rects, buffer, stream)


def _bind(
    kernel: Any, instance: DeviceArray, covered: Rect, rects: Sequence[Rect], buffer: DeviceArray, stream: object
) -> Callable[[], None]:
    packed = flat(buffer)
    table = cuda.to_device(packing(covered, rects))
    return launched(kernel, packed.size, (table, covered.ndim, flat(instance), packed), stream)
