"""The kernels that the runtime itself runs: fold, pack and unpack, each bound once to instances that stay in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Bits = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

__all__: list[str] = []

# Bytes up to which a copy is over before letting go of the interpreter lock would pay.
BRIEF = 16 << 10

# numpy has no bfloat16; moving bits needs only a type of the same width.
_SAME_WIDTH = {torch.bfloat16: torch.int16}

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


def bind_fold(op: str, target: torch.Tensor, parts: Sequence[torch.Tensor]) -> Callable[[], object]:
    """Bind `target := parts[0] op parts[1] op ...`, in this order.

    Args:
        op: symbol of the reduction operator.
        target: the view written.
        parts: views of the same shape; one of them may be `target` itself, which is then folded into in place.
    """
    in_place, out = _IN_PLACE[op], _OUT[op]
    others = [part for part in parts if part.data_ptr() != target.data_ptr()]
    ordered = others if len(others) == len(parts) else [target, *others]
    if op == "+" and len(ordered) > 2:
        from maniple.runtime.fold import bind_sum  # imports numba, so only where it is used

        if (fused := bind_sum(target, ordered)) is not None:
            return fused
    if len(others) < len(parts):
        return lambda: [in_place(target, part) for part in others]
    if len(others) == 1:
        only = others[0]
        return lambda: target.copy_(only)
    first, second, *rest = others
    if not rest:
        return lambda: out(first, second, out=target)

    def fold() -> None:
        out(first, second, out=target)
        for part in rest:
            in_place(target, part)

    return fold


def _bits(view: torch.Tensor) -> Bits:
    return view.view(_SAME_WIDTH[view.dtype]).numpy() if view.dtype in _SAME_WIDTH else view.numpy()


class Wire:
    """What one thread has written into memories of other ranks.

    Args:
        written: bytes, counted from what was copied.
    """

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = 0

    def take(self) -> int:
        """Give the count and begin again."""
        written, self.written = self.written, 0
        return written


def bits_of(memory: Bytes, dtype: str, shape: tuple[int, ...]) -> Bits:
    """View bytes of another rank's memory as an instance there."""
    width = torch_dtype(dtype)
    return memory.view(torch.empty(0, dtype=_SAME_WIDTH.get(width, width)).numpy().dtype).reshape(shape)


def bind_push(view: torch.Tensor, target: Bits, wire: Wire) -> Callable[[], object]:
    """Bind the copy of a view into another rank's memory.

    Args:
        view: what is copied.
        target: where to; the same shape.
        wire: counts what was written.
    """
    bits = _bits(view)
    if bits.flags.c_contiguous and target.flags.c_contiguous and 0 < bits.nbytes <= BRIEF:
        source, place = (part.reshape(-1).view(np.uint8).data for part in (bits, target))

        def push_brief() -> None:
            place[:] = source
            wire.written += place.nbytes

        return push_brief

    def push() -> None:
        np.copyto(target, bits)
        wire.written += target.nbytes

    return push


def bind_pack(view: torch.Tensor) -> Callable[[], memoryview]:
    """Bind the copy of a view into fresh contiguous bytes, which a transport may keep."""
    bits = _bits(view)
    return lambda: bits.copy(order="C").reshape(-1).view(np.uint8).data


def bind_unpack(view: torch.Tensor) -> Callable[[memoryview], object]:
    """Bind the copy of received bytes into a view."""
    bits = _bits(view)
    shape, dtype = bits.shape, bits.dtype
    return lambda payload: np.copyto(bits, np.frombuffer(payload, dtype=dtype).reshape(shape))
