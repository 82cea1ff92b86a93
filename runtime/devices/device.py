"""Devices: memories apart from the host's, with streams that do work in order while the host goes on.

These are the bases that a device of one's own completes. ``registry`` has all devices by name, and ``conformance``
checks that one keeps its word.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from maniple.runtime.devices.event import DONE, Event
from maniple.runtime.devices.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from maniple.process.taken_memory import Taken
    from maniple.runtime.devices.peer_memory import PeerMemory

__all__: list[str] = []


Captured = Callable[[], object]
"""Issues again, as one launch in the stream that runs it, what was captured."""


class Refused(NamedTuple):
    """That work cannot be captured.

    Args:
        part: which part of it; all before it could be.
        reason: why not.
    """

    part: int
    reason: str


@final
class Bare:
    """A body that makes no tensors but by naming their device; see `Stream.submit`.

    Args:
        run: does it.
    """

    __slots__ = ("_run",)
    bare = True

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def __call__(self) -> None:
        """Do it."""
        self._run()


class Stream(ABC):
    """A queue of work on a device: done in order, each piece after the one before."""

    @abstractmethod
    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """Queue work behind events, without waiting for either.

        Args:
            work: issues operations on tensors of the device; called once, and held until it has ended. It may be
                called on this thread, or on one of the stream's own, which then does so within
                ``mp.plugins.run_as_task()``: bodies are refused launches, and autograd is off.
            events: of this or of other devices or of the host: the work begins after them.

        Returns:
            The end of the work. A failure of the work, or of what it waits for, keeps all that follows from running.

        Work may say of itself, by attributes, what saves a stream time: ``bare``, that it makes no tensors but by
        naming their device; ``attended``, that whoever submits it calls `attend` next.
        """

    def attend(self, event: Event) -> None:  # noqa: B027  (a stream whose own thread tells at once needs none)
        """Wait on this thread for an end of this stream, and tell of it and those before it; it may return sooner."""


class Device(ABC):
    """What holds instances for a processor and runs what is submitted to it; each processor has one of its own.

    A class says of all its devices, before one is opened:

        kind          the kind of processor that it stands behind: ``gpu``. (``cpu`` is that of the host's own.)
        compiles      whether variants of the kind ``numba.cuda`` run on it
        forks         whether a process that has imported torch, and opened no device, may be forked into ranks that use
                      it: then ranks of a host share what they import

    and each has, from its construction on:

        name          what messages call it
        room          how much of its memory is in use
        tasks         the stream of tasks
        arrivals      the stream of copies that come, and of folds inside collectives
        departures    the stream of copies that go to the host
        written       the last time that its memory was written outside of tasks and copies; the runtime sets it
        timed         whether ends say when work ran by the device's own clock, which costs; the runtime sets it while
                      something records. Else they may say when it was submitted and when that it ended was heard

    Args:
        local: the number of its processor among those of its kind on this host: several may share hardware.
        capacity: bytes that it may hold.
        name: what messages call it; by default its class and number.

    Raises:
        RequestError: there is no such device here.
    """

    kind: ClassVar[str] = "gpu"
    compiles: ClassVar[bool] = False
    forks: ClassVar[bool] = False
    name: str
    room: MemoryBudget
    tasks: Stream
    arrivals: Stream
    departures: Stream
    written: Event
    timed: bool

    def __init__(self, local: int, capacity: int, name: str = "") -> None:
        self.name = name or f"{type(self).__name__} {local}"
        self.room = MemoryBudget(self.name, capacity)
        self.written = DONE
        self.timed = False

    @classmethod
    @abstractmethod
    def check(cls) -> None:
        """Refuse to go on where this host has no such device; asked by the launcher, before anything starts.

        Raises:
            RequestError: says what is missing, and the next step.
        """

    @classmethod
    def memory_bytes(cls) -> tuple[int, ...]:
        """The bytes of memory of each such device of this host, over which processors are dealt out; () if unknown."""
        return ()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What the driver calls each such device of this host; () if unknown."""
        return ()

    @classmethod
    def properties(cls) -> tuple[tuple[int, ...], ...]:
        """Six whole numbers of each: capability (two), multiprocessors, kHz of them and of memory, lines of memory.

        0 stands for what is not told; () if unknown.
        """
        return ()

    @property
    def torch_device(self) -> torch.device | None:
        """The device of torch's CUDA whose allocator gives its memory, and tells how much; None where it is none."""
        return None

    @property
    def peer_memories(self) -> tuple[PeerMemory, ...]:
        """What other ranks of its host can open, the same objects each time; () where it exports none.

        At most one is of the device and one of the host, in this order.
        """
        return ()

    @abstractmethod
    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate a tensor of any content in the memory of the device, contiguous.

        Waits while others are about to make room; `room.allocate` does that.

        Raises:
            RunError: there is none.
        """

    @abstractmethod
    def stage(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate a row of elements in memory of the host that copies to and from the device may use meanwhile."""

    def bring(self, values: torch.Tensor) -> torch.Tensor:
        """Give values where a body of this device copies them from without stopping the host, ahead of the body.

        Args:
            values: of the host, which may change them once this returns, or of a device.
        """
        row = self.stage(values.numel(), values.dtype).view(values.shape)
        row.copy_(values)
        return row

    def capture(self, parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        """Run work in a stream's turn, and give what issues all of it again as one launch.

        A device that captures nothing need not say so: this runs the work, and refuses.

        Args:
            parts: put work into the stream that runs them, in order, and have run once before.
        """
        for part in parts:
            part()
        return Refused(-1, f"{self.name} captures nothing")

    @abstractmethod
    def binding(self) -> AbstractContextManager[object]:
        """Have tensors that are made inside, on this thread, lie in the memory of the device: scratch of bodies."""

    def settle(self) -> None:  # noqa: B027  (few devices have such libraries)
        """Have libraries take what they keep of its memory for the stream and the thread that this runs in.

        By default there are none.
        """

    @abstractmethod
    def watch(self, work: Callable[[], object]) -> Taken | None:
        """Run something in a stream's turn, and say what its allocator gave meanwhile; None where that is not heard."""

    @abstractmethod
    def close(self) -> None:
        """End its threads; work not begun is dropped."""
