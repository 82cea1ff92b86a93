"""Memories of one rank: storage for instances, some of which outlive the schedules that use them."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import torch

from maniple.process.huge_pages import PAGE
from maniple.process.malloc_tuning import MAPPED_BYTES
from maniple.runtime.storage import host_bytes
from maniple.runtime.storage.copy_kernels import to_host, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.devices.device import Device
    from maniple.runtime.transports.shared_memory import Arena

__all__: list[str] = []


class Allocations(Protocol):
    """Who is told of storage that is made; see `Recorder`."""

    def note_allocation(self, name: str, storage: torch.Tensor) -> None:
        """Take in that storage was made."""
        ...


class Memory:
    """Storage of one of a rank's memories: the host's, or a device's.

    `version` grows when an instance that outlives schedules moves, so that whoever bound views of it binds again.

    Args:
        id: the memory, as the machine numbers it.
        arena: where instances lie that other ranks of this host write into; None where there are no such ranks.
        device: whose memory it is; None for the host's.
    """

    def __init__(
        self,
        id: int,  # noqa: A002  (the machine's word)
        arena: Arena | None = None,
        device: Device | None = None,
    ) -> None:
        self.id = id
        self.arena = arena
        self.device = device
        self.version = 0
        self.recorder: Allocations | None = None
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._kept: dict[int, tuple[Rect, torch.Tensor]] = {}
        self._filled: dict[int, float] = {}
        self._blocks: dict[bool, weakref.ref[torch.Tensor]] = {}
        self._allocated = 0
        # The collector may run on any thread and at any time, so it only leaves a note.
        self._freed: deque[int] = deque()

    def allocate(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Allocate storage for a rectangle of a region, whatever mode or default device the caller is in."""
        size = rect.volume * region.itemsize
        return self._shape(self._bytes(region.name, size, None, MAPPED_BYTES), region, rect)

    def block(self, size: int, *, shared: bool) -> torch.Tensor:
        """Give bytes in which instances are given places that live within a run; it goes when nobody refers to it.

        All schedules of a rank are given the same, for only one is under way at a time. One that needs more gets a new
        one, which the others are to use from then on.

        Args:
            size: bytes, at least.
            shared: whether other ranks of this host write into it, as far as there are any.

        Raises:
            RequestError: memory that is shared is too small.
        """
        held = self._block(shared=shared)
        if held is not None and held.numel() >= size:
            return held
        made = self._bytes("what lives within a run", size, self.arena if shared else None)
        self._blocks[shared] = weakref.ref(made)
        if held is not None:
            self.version += 1
        return made

    def has_block(self, size: int, *, shared: bool) -> bool:
        """Say whether `block` would have nothing to allocate."""
        held = self._block(shared=shared)
        return held is not None and held.numel() >= size

    def _block(self, *, shared: bool) -> torch.Tensor | None:
        return self._blocks[shared]() if shared in self._blocks else None

    def allocated_bytes(self) -> int:
        """Count the bytes of storage that was allocated here and is referred to."""
        with suppress(IndexError):  # another thread may take the last note
            while True:
                self._allocated -= self._freed.popleft()
        return self._allocated

    def place(self, block: torch.Tensor, offset: int, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Give the storage of an instance that begins so many bytes behind the start of a block."""
        return self._shape(block[offset : offset + rect.volume * region.itemsize], region, rect)

    def keep(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the lasting instance of a region, made or grown so that it has room for a rectangle.

        Returns:
            The rectangle that the instance covers, and its storage; elements never written have the value that the
            region was filled with, or zero.
        """
        held = self._kept.get(region.id)
        if held is not None and held[0].contains(rect):
            return held
        made = self.renew(region, rect if held is None else held[0].hull(rect))
        if held is not None:
            place, before = made[1][held[0].slices(made[0].lo)], held[1]
            self.write(lambda: place.copy_(before))
        return made

    def lasting_instance(self, region: LogicalRegion) -> tuple[Rect, torch.Tensor] | None:
        """Give the lasting instance of a region, if there is one."""
        return self._kept.get(region.id)

    def blank(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Give a tensor without storage that lies as an instance of a region with room for a rectangle does."""
        return self._shape(torch.empty(rect.volume * region.itemsize, dtype=torch.int8, device="meta"), region, rect)

    def row(self, size: int) -> torch.Tensor:
        """Allocate so many bytes that belong to no region, for whoever keeps them."""
        return self._bytes("row of an exchange", size, None)

    def fill(self, region: LogicalRegion, value: float) -> None:
        """Give instances of a region that are made from now on a value, of all elements."""
        self._filled[region.id] = value

    def renew(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Make a lasting instance of a region in place of the one that there is; who bound that may go on to use it.

        Args:
            region: the region.
            rect: what it has room for.
        """
        # Whatever lasts may be written by any rank in a later program.
        size = rect.volume * region.itemsize
        value = self._filled.get(region.id, 0)
        zero = self.device is None and self.arena is None and not value
        storage = self._shape(self._bytes(region.name, size, self.arena, zero=zero), region, rect)
        if not zero:
            self.write(lambda: storage.fill_(value))
        if region.id in self._kept:
            self.version += 1
        made = self._kept[region.id] = (rect, storage)
        return made

    def write(self, work: Callable[[], object]) -> None:
        """Write instances outside of tasks: after all that was submitted, and before all that will be.

        Args:
            work: what writes.
        """
        if self.device is None:
            work()
            return
        copies = (self.device.arrivals, self.device.departures)
        self.device.written = self.device.tasks.submit(work, [stream.submit(_nothing) for stream in copies])
        for stream in copies:
            stream.submit(_nothing, [self.device.written])

    def lay_out(self, region: LogicalRegion, order: tuple[int, ...]) -> None:
        """Have the lasting instance of a region, when it is made, hold its axes in an order, outermost first."""
        self._layouts[region.id] = order

    def layout(self, region: LogicalRegion) -> tuple[int, ...]:
        """The order in which the instances of a region hold its axes here."""
        return self._layouts.get(region.id) or tuple(range(region.bounds.ndim))

    def view(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """View a rectangle of a lasting instance."""
        covered, storage = self.keep(region, rect)
        return storage[rect.slices(covered.lo)]

    def assign(self, region: LogicalRegion, rect: Rect, values: torch.Tensor) -> None:
        """Write a rectangle of a lasting instance from the host, while no task uses it."""
        place, given = self.view(region, rect), values if self.device is None else self.device.bring(values)
        self.write(lambda: place.copy_(given, non_blocking=True))

    def read(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Copy a rectangle of a lasting instance to the host, while no task uses it; it is there when this returns."""
        place, copied = self.view(region, rect), list[torch.Tensor]()
        if self.device is None:
            return to_host(place)
        self.device.tasks.submit(lambda: copied.append(to_host(place)), [self.device.written]).wait()
        return copied[0]

    def copy_out(self, blocks: Iterable[tuple[LogicalRegion, Rect, torch.Tensor]]) -> None:
        """Copy rectangles of lasting instances to places on the host, while no task uses them; see `read`.

        Args:
            blocks: of each its region, the rectangle and its place.
        """
        pairs = [(self.view(region, rect), target) for region, rect, target in blocks]

        def copy() -> None:
            for place, target in pairs:
                target.copy_(place)

        if self.device is None:
            copy()
        else:
            self.device.tasks.submit(copy, [self.device.written]).wait()

    def forget(self, region: LogicalRegion) -> None:
        """Free the lasting instance of a region that nothing will name again."""
        self._filled.pop(region.id, None)
        self._layouts.pop(region.id, None)
        self.drop(region)

    def drop(self, region: LogicalRegion) -> None:
        """Free the lasting instance of a region, if there is one; it may be made again."""
        if self._kept.pop(region.id, None) is not None:
            self.version += 1

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts."""
        return sum(storage.numel() * storage.element_size() for _, storage in self._kept.values())

    def _bytes(
        self, name: str, size: int, arena: Arena | None, least: int = PAGE, *, zero: bool = False
    ) -> torch.Tensor:
        """Make storage; of the host's own memory as many bytes as `least` lie on huge pages, zero if asked."""
        with torch.inference_mode(mode=False):
            if self.device is not None:
                storage = self.device.allocate((size,), torch.int8)
            elif arena is None:
                storage = host_bytes.take(size, least, zero=zero)
            else:
                storage = torch.from_numpy(arena.allocate(size)).view(torch.int8)
        if self.recorder is not None:
            self.recorder.note_allocation(name, storage)
        self._allocated = self.allocated_bytes() + size  # or the notes of what was freed would pile up
        weakref.finalize(storage.untyped_storage(), self._freed.append, size).atexit = False
        return storage

    def _shape(self, storage: torch.Tensor, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        layout = self.layout(region)
        with torch.inference_mode(mode=False):
            packed = storage.view(torch_dtype(region.dtype)).reshape([rect.shape[axis] for axis in layout])
            return packed.permute([layout.index(axis) for axis in range(rect.ndim)])


def _nothing() -> None:
    """Stand for work where only its place among other work counts."""
