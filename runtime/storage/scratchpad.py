"""Scratchpads: memory that the bodies of one processor take turns with, since it runs one of them at a time.

Bodies bound to a scratchpad keep views of it, and what is in it is theirs from the start of a call to its end only. On
the host it is a stretch of addresses, SPAN bytes and more than any body may need, of which only what is written is
taken: as much as the largest body needs. On a device, where addresses are not to be had without memory, it is made of
pieces: where one is too small the next is at least twice as large, and older ones stay as long as a body has views of
them.

    body     takes           ends      taken on the host, MiB      pieces on a device      together
    first    2               2         2                           2                       2
    second   3, and 2 more   3, 5      5                           2, 4, 8                 14
    third    1               1         5                           (the last one)          14

Each piece is at most twice the largest need, so all together are below four times that need.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch
    from torch import Tensor

    from maniple.runtime.schedule.launch import Point

__all__: list[str] = []

ALIGNMENT = 64
"""Bytes to whose multiples every view begins: a line of the cache."""
SPAN = 1 << 28
"""Bytes of addresses of a scratchpad on the host, or more where a body needs more."""


@final
class Scratchpad:
    """Memory for the bodies of one processor."""

    def __init__(self) -> None:
        self._piece: Tensor | None = None
        self.allocated = 0
        """Bytes of all pieces that were made on a device."""
        self.ends: tuple[int, ...] = ()
        """Where that ends which the body that was bound last has taken at a time, from the beginning of the pad."""

    def turn(self) -> ScratchTurn:
        """The turn of one body."""
        self.ends = ()
        return ScratchTurn(self)

    def piece(self, size: int, near: Tensor) -> Tensor:
        """At least so many bytes, for the body whose turn it is.

        Args:
            size: how many.
            near: what they lie beside, in the memory of one device.
        """
        import torch  # a search makes scratchpads and binds nothing

        from maniple.runtime.storage import host_bytes

        self.ends += (size,)
        before = 0 if self._piece is None else self._piece.numel()
        if self._piece is None or before < size:
            on_host = host_bytes.in_host_memory(near)
            made = _grown(before, size, on_host=on_host)
            self._piece = host_bytes.reserve(made) if on_host else near.new_empty(made, dtype=torch.uint8)
            self.allocated += 0 if on_host else made
        return self._piece

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A stretch in which bodies are bound that go before it ends: what they take is not among what others have."""
        before, self._piece, self.allocated = (self._piece, self.allocated), None, 0
        try:
            yield
        finally:
            self._piece, self.allocated = before


@final
class ScratchTurn:
    """What one body takes of a scratchpad: views, none of which overlap, whoever takes them for it.

    Args:
        pad: the scratchpad.
    """

    def __init__(self, pad: Scratchpad) -> None:
        self._pad, self._end = pad, 0

    def view(self, shape: Sequence[int], dtype: torch.dtype, near: Tensor) -> Tensor:
        """A view of its own.

        Args:
            shape: its shape.
            dtype: its dtype.
            near: what it lies beside.
        """
        return self.views([(shape, dtype)], near)[0]

    def views(self, forms: Sequence[tuple[Sequence[int], torch.dtype]], near: Tensor) -> list[Tensor]:
        """Several views, in one piece.

        Args:
            forms: shape and dtype of each.
            near: what they lie beside.
        """
        places = []
        for shape, dtype in forms:
            size = prod(shape) * dtype.itemsize
            places.append(slice(self._end, self._end + size))
            self._end += -(-size // ALIGNMENT) * ALIGNMENT
        piece = self._pad.piece(self._end, near)
        both = zip(places, forms, strict=True)
        return [piece[place].view(dtype).view(tuple(shape)) for place, (shape, dtype) in both]


@final
class Scratchpads:
    """The scratchpads of a program, by processor."""

    def __init__(self) -> None:
        self._pads: dict[int, Scratchpad] = {}

    def of(self, processor: int) -> Scratchpad:
        """That of a processor."""
        return self._pads.setdefault(processor, Scratchpad())


@final
@dataclass(frozen=True)
class LaunchScratch:
    """The scratchpads of a launch.

    Args:
        points: its tasks.
        scratchpads: those of the program.
    """

    points: Sequence[Point]
    scratchpads: Scratchpads

    def pad(self, point: int) -> Scratchpad:
        """That of the processor that runs a task."""
        return self.scratchpads.of(self.points[point].processor)


def taken_bytes(ends: Iterable[int], *, on_host: bool) -> int:
    """The bytes that a scratchpad takes.

    Args:
        ends: what bodies have taken, one after the other; see `Scratchpad.ends`.
        on_host: whether it is the host's, and not a device's.
    """
    total = piece = used = 0
    for end in ends:
        if end > piece:
            total, used = total + used, 0
            piece = _grown(piece, end, on_host=on_host)
        used = max(used, end if on_host else piece)
    return total + used


def _grown(before: int, size: int, *, on_host: bool) -> int:
    """The bytes of the next piece, where the one before is too small."""
    return max(size, 2 * before, SPAN if on_host else 0)
