"""Staging: the way of a tile between the memory of a device and bytes of the host, and between two devices of a rank.

out     instance --departures stream--> pinned row --transport, or another memory of the rank-->
in      --bytes--> pinned row --arrivals stream--> instance
across  instance --departures stream of the source--> row without gaps --arrivals stream of the target--> instance
peers   instance --departures stream--> row in a ring --arrivals stream of a device of another rank--> instance

Between two devices each part runs in a stream of the device whose memory it computes with: a gather in the target's
stream would run in the source's default stream, which has waited for nothing. A tile without gaps is copied at once;
torch has the current streams of both devices wait for each other around that. Nobody writes over the source before the
end, which comes after both.

A tile that was not staged whole goes no further. What the last copy wrote, into the instance, is what is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from maniple.process.copying import copy_into as copied_bytes
from maniple.process.error import RunError
from maniple.regions.index_space import RectSet
from maniple.runtime.storage.copy_kernels import SAME_WIDTH, Wire, positions
from maniple.runtime.storage.push import PeerCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.event import Event
    from maniple.runtime.storage.copy_cuda_kernels import TileMover

__all__: list[str] = []


def bind_out(
    device: Device, view: torch.Tensor, points: IndexSpace
) -> tuple[Callable[[Iterable[Event]], Event], Callable[[], memoryview], PeerCopy]:
    """Bind the copies of a tile to the host, and to memory that other ranks can open.

    Args:
        device: where the view lies.
        view: of the bounds of the points.
        points: the elements that go.

    Returns:
        What starts the copy to the host behind events and gives its end, what gives the bytes after that, and the copy
        to memory of other ranks.
    """
    gathered = _bind_gather(device, view, points)
    rows: list[torch.Tensor] = []

    def export(row: torch.Tensor, events: Iterable[Event]) -> Event:
        there = row.view(view.dtype)
        return device.departures.submit(lambda: _check_whole(there, copy_into(there, gathered())), events)

    def start(events: Iterable[Event]) -> Event:
        row = device.stage(points.volume, view.dtype)
        rows[:] = [row]
        return device.departures.submit(lambda: _check_whole(row, copy_into(row, gathered())), events)

    return start, lambda: _bytes(rows.pop()), PeerCopy(device.peer_memories, export)


def bind_in(
    device: Device, view: torch.Tensor, points: IndexSpace, wire: Wire
) -> tuple[Callable[[memoryview, Iterable[Event]], Event], PeerCopy]:
    """Bind the copies of received bytes, and of a row of another rank, to a tile on a device; they begin after events.

    Args:
        device: where the view lies.
        view: of the bounds of the points.
        points: the elements that come.
        wire: counts what was written.
    """
    put = wire.counting(_bind_scatter(device, view, points))

    def land(payload: memoryview, events: Iterable[Event]) -> Event:
        row = device.stage(points.volume, view.dtype)
        _check_whole(row, copied_bytes(np.frombuffer(_bytes(row), np.uint8), np.frombuffer(payload, np.uint8)))
        return device.arrivals.submit(lambda: put(row), events)

    def take(row: torch.Tensor, events: Iterable[Event]) -> Event:
        there = row.view(view.dtype)
        return device.arrivals.submit(lambda: put(there), events)

    return land, PeerCopy(device.peer_memories, take)


def bind_across(
    source: Device, first: torch.Tensor, target: Device, second: torch.Tensor, points: IndexSpace, wire: Wire
) -> Callable[[Iterable[Event]], Event]:
    """Bind the copy of a tile between two devices of a rank; it begins after events.

    Args:
        source: where the first view lies.
        first: of the bounds of the points.
        target: where the second lies.
        second: likewise.
        points: the elements that go.
        wire: counts what was written.
    """
    gathered, put = _bind_gather(source, first, points), wire.counting(_bind_scatter(target, second, points))
    if first.is_contiguous() and not isinstance(points, RectSet):
        return lambda events: target.arrivals.submit(lambda: put(gathered()), (*events, source.written))

    def cross(events: Iterable[Event]) -> Event:
        held: list[torch.Tensor] = []  # until both have ended, so that its memory is not used again meanwhile
        left = source.departures.submit(lambda: held.append(gathered().contiguous()), (*events, source.written))
        return target.arrivals.submit(lambda: put(held[0]), (*events, left))

    return cross


def copy_into(target: torch.Tensor, source: torch.Tensor) -> int:
    """Copy elements into a place of the same shape, on any device; gives the bytes that are written."""
    target.copy_(source, non_blocking=True)
    return target.numel() * target.element_size()


def _check_whole(row: torch.Tensor, written: int) -> None:
    size = row.numel() * row.element_size()
    if written != size:
        raise RunError(f"{written} bytes of a tile were staged; expected {size} bytes")


def _bind_gather(device: Device, view: torch.Tensor, points: IndexSpace) -> Callable[[], torch.Tensor]:
    """Give what gives the elements in a row."""
    if (mover := _mover(device, view, points)) is not None:
        return mover.pack
    if not isinstance(points, RectSet):
        return lambda: view.reshape(-1)
    with device.binding():
        index = positions(points)
    return lambda: view[index]


def _bind_scatter(device: Device, view: torch.Tensor, points: IndexSpace) -> Callable[[torch.Tensor], int]:
    """Give what puts a row of elements, of this device, of another or of the host, into their places.

    It gives the bytes that are written.
    """
    if (mover := _mover(device, view, points)) is not None:

        def unpack(row: torch.Tensor) -> int:
            if row.device == view.device:
                mover.unpack(row)
                return row.numel() * row.element_size()
            near = torch.empty(row.numel(), dtype=view.dtype)
            size = copy_into(near, row)
            mover.unpack(near)
            return size

        return unpack
    if not isinstance(points, RectSet):
        return lambda row: copy_into(view, row.view(view.shape))
    with device.binding():
        index = positions(points)

    def put(row: torch.Tensor) -> int:
        near = torch.empty_like(index[0], dtype=view.dtype)
        size = copy_into(near, row)
        view[index] = near
        return size

    return put


def _mover(device: Device, view: torch.Tensor, points: IndexSpace) -> TileMover | None:
    """What moves a tile by one kernel, on CUDA alone."""
    if not view.is_cuda:
        return None
    from maniple.runtime.storage.copy_cuda_kernels import mover_of  # imports numba's CUDA

    with device.binding():
        return mover_of(view, points)


def _bytes(row: torch.Tensor) -> memoryview:
    """View a row of the host as bytes."""
    return row.view(SAME_WIDTH.get(row.dtype, row.dtype)).numpy().view(np.uint8).data
