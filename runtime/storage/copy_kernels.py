"""The kernels that the runtime itself runs: fold, pack and unpack, each bound once to instances that stay in place."""

from __future__ import annotations

import itertools
import weakref
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from maniple.process.copying import copy_into
from maniple.process.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.runtime.devices.pinned_rows import PINNED_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.regions.index_space import IndexSpace

    Bits = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

__all__: list[str] = []

# Bytes up to which a copy is over before letting go of the interpreter lock would pay.
BRIEF = 16 << 10
# Bytes from which on a tile goes on loan: what is shorter a socket copies anyway.
LOAN_BYTES = 64 << 10

# numpy has no bfloat16; moving bits needs only a type of the same width.
SAME_WIDTH = {torch.bfloat16: torch.int16}

_IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "+": torch.Tensor.add_,
    "*": torch.Tensor.mul_,
    "min": lambda target, part: torch.minimum(target, part, out=target),
    "max": lambda target, part: torch.maximum(target, part, out=target),
}
_OUT: dict[str, Callable[..., object]] = {
    "+": torch.add,
    "*": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def torch_dtype(name: str) -> torch.dtype:
    """Give torch's dtype for a region's dtype name."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        msg = f"{name!r} is not a dtype"
        raise TypeError(msg)
    return dtype


def check_values(what: str, values: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse what is no tensor, or one of another shape or dtype.

    Args:
        what: what it is for, as the message begins.
        values: what was given.
        shape: that it must have.
        dtype: the same.

    Raises:
        RequestError: says what came.
    """
    if isinstance(values, torch.Tensor):
        got = f"{tuple(values.shape)} and {values.dtype}"
    else:
        got = f"a {type(values).__module__}.{type(values).__qualname__}; make a tensor of it: torch.as_tensor(...)"
    if not isinstance(values, torch.Tensor) or tuple(values.shape) != shape or values.dtype != dtype:
        raise RequestError(f"{what}: expected a tensor of shape {shape} and dtype {dtype}, got {got}")


def to_host(view: torch.Tensor) -> torch.Tensor:
    """Copy a view of any memory to the host's; the copy is there when this returns."""
    copied = torch.empty_like(view, device="cpu")
    copied.copy_(view)
    return copied


def bind_leave(view: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Bind a copy to the host that is there once what runs in the view's stream now has ended: nobody waits for it.

    From CUDA it goes to pinned memory.

    Args:
        view: of any memory.
    """
    shape, dtype = view.shape, view.dtype
    row = PINNED_ROWS.take if view.device.type == "cuda" else _on_host

    def leave() -> torch.Tensor:
        copied = row(shape, dtype)
        copied.copy_(view, non_blocking=True)
        return copied

    return leave


def _on_host(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


# Boxes of at least as many elements, on average, are copied one by one; smaller ones element by element, by an index.
_LARGE_BOX = 32


def register_fold(symbol: str, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Make a function the kernel of a reduction operator.

    Args:
        symbol: the operator's.
        combine: gives the fold of two tensors of one shape, element by element, in a tensor of its own.
    """
    _IN_PLACE[symbol] = lambda target, part: target.copy_(combine(target, part))
    _OUT[symbol] = lambda first, second, out: out.copy_(combine(first, second))


def positions(points: RectSet) -> tuple[torch.Tensor, ...]:
    """Give the index of a sparse index space in a view of its bounds, where torch makes tensors at present."""
    return tuple(torch.as_tensor(axis) for axis in points.positions())


def bind_fold(
    op: str, target: torch.Tensor, parts: Sequence[torch.Tensor], points: IndexSpace | None = None
) -> Callable[[], object]:
    """Bind `target := parts[0] op parts[1] op ...`, in this order.

    Args:
        op: symbol of the reduction operator.
        target: the view written.
        parts: views of the same shape; one of them may be `target` itself, which then comes first.
        points: the elements to fold where the views are of the bounds of a sparse index space.
    """
    if isinstance(points, RectSet):
        return _bind_sparse_fold(op, target, parts, points)
    in_place, out = _IN_PLACE[op], _OUT[op]
    # A part that begins where the target does is the target itself: views of one fold have one shape.
    others = [part for part in parts if part.data_ptr() != target.data_ptr()]
    ordered = others if len(others) == len(parts) else [target, *others]
    if op == "+" and len(ordered) > 2 and not target.is_cuda:
        from maniple.runtime.storage.fold import bind_sum  # imports numba, so only where it is used

        if (fused := bind_sum(target, ordered)) is not None:
            return fused
    if target.is_cuda:
        from maniple.runtime.storage import copy_cuda_kernels

        if (one_pass := copy_cuda_kernels.bind_fold(op, target, ordered)) is not None:
            return one_pass
    # In place from the target on: the order in which it is `parts[0]`.
    if len(others) < len(parts):
        return lambda: [in_place(target, part) for part in others]
    if len(others) == 1:
        only = others[0]
        return lambda: target.copy_(only)
    # The first two at once, instead of a copy of the first and then an addition: one pass over memory less.
    first, second, *rest = others
    if not rest:
        return lambda: out(first, second, out=target)

    def fold() -> None:
        out(first, second, out=target)
        for part in rest:
            in_place(target, part)

    return fold


def _bind_sparse_fold(
    op: str, target: torch.Tensor, parts: Sequence[torch.Tensor], points: RectSet
) -> Callable[[], object]:
    # Few large boxes: folds of dense views, each bound once. Many small ones: an index, in one call of torch.
    if points.volume >= _LARGE_BOX * len(points):
        boxes = [rect.slices(points.lo) for rect in points.rects]
        folds = [bind_fold(op, target[box], [part[box] for part in parts]) for box in boxes]
        return lambda: [fold() for fold in folds]
    index, in_place = positions(points), _IN_PLACE[op]
    # The target, if it is among them, before all others, which keep their order: sorting is stable.
    first, *rest = sorted(parts, key=lambda part: part.data_ptr() != target.data_ptr())

    def fold() -> None:
        total = first[index]
        for part in rest:
            in_place(total, part[index])
        target[index] = total

    return fold


def _bits(view: torch.Tensor) -> Bits:
    return view.view(SAME_WIDTH[view.dtype]).numpy() if view.dtype in SAME_WIDTH else view.numpy()


def _copy_brief(place: memoryview, given: memoryview) -> int:
    place[:] = given
    return place.nbytes


class Wire:
    """What was written into memories, other than by those who own them.

    Whoever copies counts, and knows of no schedule: of each copy what it was told by the copy itself.

    Args:
        written: bytes.
    """

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = 0

    def take(self) -> int:
        """Give the count and begin again."""
        written, self.written = self.written, 0
        return written

    def counting(self, copy: Callable[..., int]) -> Callable[..., None]:
        """Bind a copy that gives the bytes that it wrote, and have them counted here."""

        def count(*arguments: object) -> None:
            self.written += copy(*arguments)

        return count


def bits_of(memory: Bytes, dtype: str, shape: tuple[int, ...]) -> Bits:
    """View bytes of another rank's memory as an instance there."""
    width = torch_dtype(dtype)
    return memory.view(torch.empty(0, dtype=SAME_WIDTH.get(width, width)).numpy().dtype).reshape(shape)


def bind_push(view: torch.Tensor, target: Bits, wire: Wire, points: IndexSpace | None = None) -> Callable[[], object]:
    """Bind the copy of a view into another rank's memory.

    Args:
        view: what is copied.
        target: where to; the same shape.
        wire: counts what was written.
        points: the elements that are, where the view is of the bounds of a sparse index space.
    """
    bits = _bits(view)
    if isinstance(points, RectSet):
        pick, put = _picker(bits, points), _putter(target, points)

        def push_sparse() -> None:
            wire.written += put(pick())

        return push_sparse
    return Push(bits, target, wire)


class Push:
    """The copy of a dense view into another rank's memory.

    Args:
        source: what is copied.
        target: where to; the same shape.
        wire: counts what was written.
    """

    __slots__ = ("_copy", "_source", "_target", "_wire")

    def __init__(self, source: Bits, target: Bits, wire: Wire) -> None:
        self._source, self._target, self._wire = source, target, wire
        self._copy = partial(copy_into, target, source)
        # Assigning a memoryview keeps the interpreter lock. numpy's copy lets go of it, and who takes it meanwhile may
        # keep it for longer than a brief copy takes.
        if source.flags.c_contiguous and target.flags.c_contiguous and 0 < target.nbytes <= BRIEF:
            given, place = (part.reshape(-1).view(np.uint8).data for part in (source, target))
            self._copy = partial(_copy_brief, place, given)

    def __call__(self) -> None:
        """Copy it."""
        self._wire.written += self._copy()

    def box(self, axes: int) -> list[int] | None:
        """Give the copy as words for compiled code; None where it takes more nested loops.

        Args:
            axes: how many nested loops there may be.
        """
        # From the innermost axis out: as long as both sides are dense, axes are one run of bytes. Each further one is a
        # loop around it; axes of one element are neither.
        run = self._target.itemsize
        loops: list[tuple[int, int, int]] = []
        bothways = zip(self._target.shape, self._target.strides, self._source.strides, strict=True)
        for extent, to, of in reversed([*bothways]):
            if extent != 1 and not loops and to == of == run:
                run *= extent
            elif extent != 1:
                loops.insert(0, (extent, to, of))
        if len(loops) > axes:
            return None
        # Missing loops outside, where going round once costs least.
        loops = [(1, 0, 0)] * (axes - len(loops)) + loops
        return [self._target.ctypes.data, self._source.ctypes.data, run, *(word for loop in loops for word in loop)]


def bind_pack(view: torch.Tensor, points: IndexSpace | None = None) -> Callable[[], memoryview]:
    """Bind the copy of a view into fresh contiguous bytes, which a transport may keep.

    Args:
        view: what is sent.
        points: the elements of it that are, where it is of the bounds of a sparse index space.
    """
    bits = _bits(view)
    if isinstance(points, RectSet):
        pick = _picker(bits, points)
        return lambda: pick().reshape(-1).view(np.uint8).data
    # A copy even of what is contiguous: a transport keeps the bytes after the instance is written again.
    return lambda: bits.copy(order="C").reshape(-1).view(np.uint8).data


def bind_loan(view: torch.Tensor, points: IndexSpace) -> Callable[[Callable[[], None]], memoryview] | None:
    """Bind the loan of a tile's own bytes, where it is one stretch of memory that is worth it.

    Args:
        view: where it lies.
        points: its elements.

    Returns:
        What gives the bytes, and calls what it is given once nobody refers to them any more, from any thread.
    """
    lies = stretch(view, points)
    if lies is None or lies.nbytes < LOAN_BYTES:
        return None

    def lend(back: Callable[[], None]) -> memoryview:
        shown = np.frombuffer(lies, np.uint8)
        weakref.finalize(shown, back).atexit = False
        return shown.data

    return lend


def _picker(bits: Bits, points: RectSet) -> Callable[[], Bits]:
    """Bind the copy of a sparse index space's elements into one row."""
    if points.volume < _LARGE_BOX * len(points):
        index = points.positions()
        return lambda: bits[index]
    boxes = [bits[rect.slices(points.lo)] for rect in points.rects]
    return lambda: np.concatenate([box.reshape(-1) for box in boxes])


def _putter(bits: Bits, points: RectSet) -> Callable[[Bits], int]:
    """Bind the copy of a row of elements to where they are in a sparse index space; it gives the bytes it wrote."""
    if points.volume < _LARGE_BOX * len(points):
        index = points.positions()
        size = index[0].size * bits.itemsize

        def scatter(row: Bits) -> int:
            bits[index] = row
            return size

        return scatter
    boxes = [bits[rect.slices(points.lo)] for rect in points.rects]
    # Boxes lie in the row one after another: each begins where the one before it ends.
    ends = list(itertools.accumulate(rect.volume for rect in points.rects))

    def put(row: Bits) -> int:
        pairs = zip(boxes, ends, strict=True)
        return sum(copy_into(box, row[end - box.size : end].reshape(box.shape)) for box, end in pairs)

    return put


def stretch(view: torch.Tensor, points: IndexSpace) -> memoryview | None:
    """The bytes of a tile, where it is one stretch of memory, in the order in which `bind_pack` sends them.

    Args:
        view: where it lies.
        points: its elements.
    """
    bits = _bits(view)
    if isinstance(points, RectSet) or not bits.flags.c_contiguous or not bits.size:
        return None
    return bits.reshape(-1).view(np.uint8).data


def bind_unpack(view: torch.Tensor, points: IndexSpace | None = None) -> Callable[[memoryview], int]:
    """Bind the copy of received bytes into a view; it gives the bytes that it wrote.

    Args:
        view: where they go.
        points: the elements that are received, where the view is of the bounds of a sparse index space.
    """
    bits = _bits(view)
    if isinstance(points, RectSet):
        put = _putter(bits, points)
        return lambda payload: put(np.frombuffer(payload, dtype=bits.dtype))
    shape, dtype = bits.shape, bits.dtype
    return lambda payload: copy_into(bits, np.frombuffer(payload, dtype=dtype).reshape(shape))
