"""Bodies of a task as a step runs them, each on tensors of its own: what is timed.

A task of a further micro-batch adds to what the first one wrote: in place where its body can, else by way of scratch,
which all bodies of a processor take turns with. So it is bound as the runtime binds it.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.lanes.accumulation_binding import bind_added
from maniple.runtime.schedule.accumulation import joining
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.runtime.storage.scratch import Signed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maniple.regions.rectangle import Rect
    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []

DRAWN = 1 << 16
"""Different numbers of a tensor, from 0 to 1, which are repeated: making all of a large one takes longer than its task.

They have no order.

In a row that rises or falls a processor knows beforehand how comparisons end, and finds the largest of each window
of a maximum pool in a fraction of the time that it takes of activations.
"""
MASK, MULTIPLIER = (1 << 32) - 1, 0x9E3779B1
"""Bits of a hash, and what it multiplies with: 2^32 over the golden ratio (Knuth, section 6.4)."""
STRIDE = 7919
"""How far whole numbers that follow each other are apart, modulo how many rows there are: a prime, so they meet all."""

Views = list["torch.Tensor | None"]


@final
class TimedBody:
    """A task's body, to be bound as often as it has tensors to take turns with.

    Args:
        launch: the launch.
        point: which of its tasks.
        cores: that its processor owns.
        boxes: of the instances that it sees, by requirement.

    Raises:
        RequestError: the launch has no body.
    """

    def __init__(self, launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None]) -> None:
        if launch.binder is None:
            raise RequestError(f"{launch.name}: there is no body to measure")
        self._launch, self._binder, self._point, self._cores, self._boxes = launch, launch.binder, point, cores, boxes
        self._scratch: dict[int, torch.Tensor] = {}

    def size(self) -> int:
        """The bytes of what it sees."""
        seen = zip(self._launch.requirements, self._boxes, strict=True)
        return sum(box.volume * need.region.itemsize for need, box in seen if box is not None)

    def shared_bytes(self) -> int:
        """The bytes of its processor's scratchpad that the body which was bound last has."""
        pad = self._binder.pad(self._point) if isinstance(self._binder, Signed) else None
        return 0 if pad is None else max(pad.ends, default=0)

    def views(self) -> Views:
        """Make what it sees: tensors of its own, in the memory where this thread makes them."""
        return views_of(self._launch, self._point, self._boxes)

    def bind(self, views: Sequence[torch.Tensor | None] | None = None) -> Callable[[], object]:
        """Bind it to what it sees; by default to new tensors."""
        launch, given = self._launch, self.views() if views is None else views
        place = 0

        def take(like: torch.Tensor) -> torch.Tensor:
            nonlocal place
            place += 1
            if place not in self._scratch:
                self._scratch[place] = like.new_empty(like.shape)
            return self._scratch[place]

        return bind_added(launch, self._binder, self._point, given, self._cores, joining(launch), take)


def views_of(launch: Launch, point: int, boxes: Sequence[Rect | None]) -> Views:
    """Make what a task sees: tensors of its own, in the memory where this thread makes them.

    Args:
        launch: the launch.
        point: which of its tasks.
        boxes: of the instances that it sees, by requirement.
    """
    rows = _rows(launch)
    return [
        None
        if box is None or (rect := requirement.rects[point]).is_empty
        else draw(box.shape, requirement.region.dtype, rows.get(place, 1))[rect.bounds.slices(box.lo)]
        for place, (requirement, box) in enumerate(zip(launch.requirements, boxes, strict=True))
    ]


def _rows(launch: Launch) -> dict[int, int]:
    """By requirement, how many rows its numbers name, where the operator knows."""
    node = getattr(launch.binder, "node", None)
    if node is None:
        return {}
    slots: Sequence[tuple[str, int]] = getattr(launch.binder, "slots", ())
    return {at: node.operator.rows_named(place) for at, (role, place) in enumerate(slots) if role == "operand"}


def draw(shape: tuple[int, ...], dtype: str, rows: int) -> torch.Tensor:
    """Make a tensor: numbers from 0 to 1 without order, or whole ones below some number of rows.

    Args:
        shape: its shape.
        dtype: its type.
        rows: how many rows whole numbers may name.
    """
    import torch

    from maniple.runtime.storage.host_bytes import in_host_memory  # which needs torch

    kind, size = torch_dtype(dtype), prod(shape)
    if kind.is_floating_point:
        numbers = _scattered_here(kind) if in_host_memory(torch.empty(0)) else _scattered(kind)
    else:
        numbers = (torch.arange(max(1, min(size, rows))) * STRIDE % rows).to(kind)
    found = numbers.new_empty(size)
    whole = size - size % len(numbers)
    found[:whole].view(-1, len(numbers)).copy_(numbers)
    found[whole:].copy_(numbers[: size - whole])
    return found.view(shape)


@cache
def _scattered_here(kind: torch.dtype) -> torch.Tensor:
    """Those of `_scattered` in the host's memory, made once: a search makes some fifty thousand tensors of them."""
    return _scattered(kind)


def _scattered(kind: torch.dtype) -> torch.Tensor:
    """Numbers from 0 to 1 without order, on whatever device this thread makes tensors: a hash of 0, 1, ..."""
    import torch

    found = torch.arange(DRAWN) * MULTIPLIER & MASK
    found = (found ^ found >> 15) * MULTIPLIER & MASK
    return ((found ^ found >> 13) / (MASK + 1)).to(kind)
