"""Staging: the way of a tile between the memory of a device and bytes of the host, and between two devices of a rank.

out     instance --departures stream--> pinned row --transport, or another memory of the rank-->
in      --bytes--> pinned row --arrivals stream--> instance
across  instance --arrivals stream of the target--> instance
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from maniple.regions.index_space import RectSet
from maniple.runtime.kernels import SAME_WIDTH, positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.device import Device
    from maniple.runtime.event import Event

__all__: list[str] = []


def bind_out(
    device: Device, view: torch.Tensor, points: IndexSpace
) -> tuple[Callable[[Iterable[Event]], Event], Callable[[], memoryview]]:
    """Bind the copy of a tile to the host.

    Args:
        device: where the view lies.
        view: of the bounds of the points.
        points: the elements that go.

    Returns:
        What starts the copy behind events and gives its end, and what gives the bytes after that.
    """
    gathered = _gathered(device, view, points)
    rows: list[torch.Tensor] = []

    def start(events: Iterable[Event]) -> Event:
        row = device.stage(points.volume, view.dtype)
        rows[:] = [row]
        return device.departures.submit(lambda: row.copy_(gathered(), non_blocking=True), events)

    return start, lambda: _bytes(rows.pop())


def bind_in(device: Device, view: torch.Tensor, points: IndexSpace) -> Callable[[memoryview, Iterable[Event]], Event]:
    """Bind the copy of received bytes to a tile on a device; it begins after events.

    Args:
        device: where the view lies.
        view: of the bounds of the points.
        points: the elements that come.
    """
    put = _scattered(device, view, points)

    def land(payload: memoryview, events: Iterable[Event]) -> Event:
        row = device.stage(points.volume, view.dtype)
        np.copyto(np.frombuffer(_bytes(row), np.uint8), np.frombuffer(payload, np.uint8))
        return device.arrivals.submit(lambda: put(row), events)

    return land


def bind_across(
    source: Device, first: torch.Tensor, target: Device, second: torch.Tensor, points: IndexSpace
) -> Callable[[Iterable[Event]], Event]:
    """Bind the copy of a tile between two devices of a rank; it begins after events.

    Args:
        source: where the first view lies.
        first: of the bounds of the points.
        target: where the second lies.
        second: likewise.
        points: the elements that go.
    """
    gathered, put = _gathered(source, first, points), _scattered(target, second, points)
    return lambda events: target.arrivals.submit(lambda: put(gathered()), (*events, source.written))


def _gathered(device: Device, view: torch.Tensor, points: IndexSpace) -> Callable[[], torch.Tensor]:
    """Give what gives the elements in a row."""
    if not isinstance(points, RectSet):
        return lambda: view.reshape(-1)
    with device.binding():
        index = positions(points)
    return lambda: view[index]


def _scattered(device: Device, view: torch.Tensor, points: IndexSpace) -> Callable[[torch.Tensor], object]:
    """Give what puts a row of elements, of this device, of another or of the host, into their places."""
    if not isinstance(points, RectSet):
        return lambda row: view.copy_(row.view(view.shape), non_blocking=True)
    with device.binding():
        index = positions(points)

    def put(row: torch.Tensor) -> None:
        near = torch.empty_like(index[0], dtype=view.dtype)
        near.copy_(row, non_blocking=True)
        view[index] = near

    return put


def _bytes(row: torch.Tensor) -> memoryview:
    """View a row of the host as bytes."""
    return row.view(SAME_WIDTH.get(row.dtype, row.dtype)).numpy().view(np.uint8).data
