"""The null device: a GPU without hardware, as unforgiving about missing waits as a GPU can be.

Its memory is the host's, under another type: a `NullTensor` computes only in what a stream runs or a binding prepares,
never beside a tensor of the host, and memory that was not written holds NaN. Each stream is a thread that begins its
work late, by a time drawn from a seed, so that the streams of a device overtake each other:

    tasks     | . . first . | second . . |
    arrivals  | third | . . . . fourth |      submitted in the order first, third, second, fourth

Whoever uses what an event guards without waiting for it finds what was there before, or breaks what is read late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from random import Random
from time import perf_counter_ns
from typing import Any, NamedTuple, final

import torch
from torch.overrides import TorchFunctionMode

from maniple.process.error import RunError
from maniple.process.host_allocation import Taken, watch_host_run
from maniple.runtime.devices.device import Device, Stream
from maniple.runtime.devices.event import Event, Signal
from maniple.runtime.devices.processor import enter_task

__all__: list[str] = []

LATEST_S = 1e-3
"""The most by which a piece of work begins late, in seconds; half of them do not."""

_here = threading.local()

_PLAIN = torch.Tensor
# What the host may do with a tensor of a device: look at how it lies, and cut views.
_VIEWS = frozenset(
    {
        *(_PLAIN.permute, _PLAIN.view, _PLAIN.reshape, _PLAIN.transpose, _PLAIN.t, _PLAIN.detach, _PLAIN.expand),
        *(_PLAIN.numel, _PLAIN.element_size, _PLAIN.data_ptr, _PLAIN.dim, _PLAIN.size, _PLAIN.stride),
        *(_PLAIN.is_contiguous, _PLAIN.is_floating_point, _PLAIN.as_subclass, _PLAIN.__len__, _PLAIN.__hash__),
        _PLAIN.untyped_storage,
        *(getattr(_PLAIN, name).__get__ for name in ("shape", "dtype", "ndim", "device", "layout", "requires_grad")),
    }
)
# What moves values between the memories of host and device.
_COPIES = frozenset({_PLAIN.copy_, _PLAIN.__setitem__})


class NullTensor(torch.Tensor):
    """A tensor in the memory of a null device.

    Raises:
        RunError: the host computes with it.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check who asks, and do it."""
        if not getattr(_here, "inside", False) and not _looks(func, args):
            name = getattr(func, "__name__", str(func))
            raise RunError(
                f"{name} of a tensor on a null device outside of its streams: the host does not see that memory; "
                "submit the work to a stream, or copy the values and wait for the event of the copy"
            )
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def _looks(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a call leaves values alone."""
    if func is _PLAIN.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in index)
    return func in _VIEWS


class _Placement(TorchFunctionMode):
    """What is made is made on the device, and what lies elsewhere takes no part."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check where the arguments lie, do it, and place the result."""
        given = list(_tensors((*args, *(kwargs or {}).values())))
        ours = [tensor for tensor in given if isinstance(tensor, NullTensor)]
        host = [tensor for tensor in given if not isinstance(tensor, NullTensor) and tensor.ndim]
        if ours and host and func not in _COPIES:
            name = getattr(func, "__name__", str(func))
            raise RunError(
                f"{name} was given tensors on a null device and on the host, of shapes {tuple(ours[0].shape)} and "
                f"{tuple(host[0].shape)}; a body on a device uses its arguments and what it makes itself"
            )
        found = func(*args, **(kwargs or {}))
        if "device" in (kwargs or {}):
            return _cast(found, torch.Tensor)
        return found if given else _cast(found, NullTensor)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _cast(found: Any, kind: type[torch.Tensor]) -> Any:
    if isinstance(found, torch.Tensor) and type(found) is not kind:
        return found.as_subclass(kind)
    return found


@contextmanager
def _inside() -> Iterator[None]:
    """Compute on the device, on this thread."""
    before, _here.inside = getattr(_here, "inside", False), True
    try:
        with _Placement():
            yield
    finally:
        _here.inside = before


class _Piece(NamedTuple):
    """Work in a stream's queue."""

    work: Callable[[], object]
    events: tuple[Event, ...]
    end: Signal
    late_s: float


class _Gate:
    """What keeps the streams of a device from beginning anything, while a test looks."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.closed = False


@final
class NullStream(Stream):
    """A thread that does work in order, late.

    Args:
        name: of the thread.
        chance: draws how late.
        latest_s: the most.
        gate: keeps work from beginning.
    """

    def __init__(self, name: str, chance: Random, latest_s: float, gate: _Gate) -> None:
        self._chance = chance
        self._latest_s = latest_s
        self._gate = gate
        self._queue: deque[_Piece] = deque()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Stream.submit`."""
        end = Signal()
        late_s = max(0.0, self._chance.uniform(-self._latest_s, self._latest_s))
        with self._gate.changed:
            self._queue.append(_Piece(work, tuple(events), end, late_s))
            self._gate.changed.notify_all()
        return end

    def close(self) -> None:
        """End the thread."""
        with self._gate.changed:
            self._ended = True
            self._queue.clear()
            self._gate.changed.notify_all()

    def _run(self) -> None:
        enter_task(1)
        failure: BaseException | None = None
        while (piece := self._next()) is not None:
            try:
                for event in piece.events:
                    event.wait()
                if failure is None:
                    piece.end.begun_ns = perf_counter_ns()
                    with _inside():
                        piece.work()
            except BaseException as error:  # noqa: BLE001  (as on a GPU, what follows a failure does not run)
                failure = error
            end = piece.end
            del piece  # and what it holds, before anybody is told
            end.set(failure)

    def _next(self) -> _Piece | None:
        """Wait for the next piece, and for its time."""
        changed = self._gate.changed
        with changed:
            changed.wait_for(lambda: self._ended or self._queue)
            if self._queue:
                changed.wait_for(lambda: self._ended, self._queue[0].late_s or 0)
            changed.wait_for(lambda: self._ended or not self._gate.closed)
            return None if self._ended else self._queue.popleft()


@final
class NullDevice(Device):
    """A device without hardware; see `Device`.

    Args:
        local: its number; also the seed of how late its streams are.
        capacity: bytes that it may hold.
        latest_s: the most by which a piece of work begins late.
    """

    def __init__(self, local: int, capacity: int, latest_s: float = LATEST_S) -> None:
        super().__init__(local, capacity, f"null device {local}")
        self._gate = _Gate()
        self._streams = tuple(
            NullStream(f"{self.name}: {name}", Random(f"{local} {name}"), latest_s, self._gate)
            for name in ("tasks", "arrivals", "departures")
        )
        self.tasks, self.arrivals, self.departures = self._streams

    @classmethod
    def check(cls) -> None:
        """See `Device.check`: it needs no hardware."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Device.allocate`; what is read before it is written is NaN, or -1."""
        poison = float("nan") if dtype.is_floating_point else -1
        return self.room.allocate(
            prod(shape) * dtype.itemsize, lambda: torch.full(tuple(shape), poison, dtype=dtype, device="cpu")
        ).as_subclass(NullTensor)

    def stage(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Device.stage`."""
        poison = float("nan") if dtype.is_floating_point else -1
        return torch.full((count,), poison, dtype=dtype, device="cpu")

    @contextmanager
    def binding(self) -> Iterator[None]:
        """See `Device.binding`."""
        with _inside():
            yield

    def watch(self, work: Callable[[], object]) -> Taken | None:
        """See `Device.watch`."""
        return watch_host_run(work)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Have no stream begin anything inside, so that a test sees who waits."""
        with self._gate.changed:
            self._gate.closed = True
        try:
            yield
        finally:
            with self._gate.changed:
                self._gate.closed = False
                self._gate.changed.notify_all()

    def close(self) -> None:
        """See `Device.close`."""
        for stream in self._streams:
            stream.close()
