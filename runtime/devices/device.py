"""Devices: memories apart from the host's, with streams that do work in order while the host goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maniple.regions.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from maniple.runtime.devices.event import Event
    from maniple.runtime.process.allocation import Taken

__all__: list[str] = []

DEVICES = ("cpu", "cuda", "null")
"""What may stand behind a processor: a CPU; behind one of kind `gpu` a CUDA device, or the null device."""


class Stream(Protocol):
    """A queue of work on a device: done in order, each piece after the one before."""

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """Queue work behind events, without waiting for either.

        Args:
            work: issues operations on tensors of the device; called on this thread or on another, once.
            events: of this or of other devices or of the host: the work begins after them.

        Returns:
            The end of the work. A failure of the work, or of what it waits for, keeps all that follows from running.
        """
        ...


class Device(Protocol):
    """What holds instances for a processor and runs what is submitted to it.

    Args:
        name: what messages call it.
        compiles: whether variants of the kind `numba.cuda` run on it.
        tasks: the stream of tasks.
        arrivals: the stream of copies that come, and of folds inside collectives.
        departures: the stream of copies that go to the host.
        written: the last time that its memory was written outside of tasks and copies.
    """

    name: str
    compiles: bool
    written: Event

    @property
    def tasks(self) -> Stream:
        """See above."""
        ...

    @property
    def arrivals(self) -> Stream:
        """See above."""
        ...

    @property
    def departures(self) -> Stream:
        """See above."""
        ...

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate a tensor of any content in the memory of the device.

        Waits while others are about to make room.

        Raises:
            RunError: there is none.
        """
        ...

    def stage(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate a row of elements in memory of the host that copies to and from the device may use meanwhile."""
        ...

    def binding(self) -> AbstractContextManager[object]:
        """Have tensors that are made inside, on this thread, lie in the memory of the device: scratch of bodies."""
        ...

    def taken(self, work: Callable[[], object]) -> Taken | None:
        """Run something in a stream's turn, and say what its allocator gave meanwhile; None where that is not heard."""
        ...

    def close(self) -> None:
        """End its threads; work not begun is dropped."""
        ...


def check_device(kind: str) -> str:
    """Give the kind of device that a launch asks for.

    Raises:
        RequestError: there is no such kind, or no such device here.
    """
    if kind not in DEVICES:
        raise RequestError(f"unknown device {kind!r}{nearest(kind, DEVICES)}")
    if kind == "cuda":
        from maniple.runtime.devices.cuda_device import check_cuda

        check_cuda()
    return kind


def open_device(kind: str, local: int, capacity: int) -> Device:
    """Open what stands behind a processor of kind `gpu`.

    Args:
        kind: `cuda` or `null`.
        local: the number of the processor among those of its host; those beyond the CUDA devices share them in turn.
        capacity: bytes that its memory may hold.

    Raises:
        RequestError: there is no such device.
    """
    if kind == "null":
        from maniple.runtime.devices.null_device import NullDevice

        return NullDevice(local, capacity)
    if kind == "cuda":
        from maniple.runtime.devices.cuda_device import CudaDevice

        return CudaDevice(local, capacity)
    raise RequestError(
        "the machine has processors of kind gpu, and this program was started on CPUs: run it with --device cuda "
        "where there are GPUs, or with --device null to try it without any"
    )
