"""The null device: a GPU without hardware, as unforgiving about missing waits as a GPU can be.

Its memory is the host's, under another type: a `NullTensor` computes only in what a stream runs or a binding prepares,
never beside a tensor of the host, and memory that was not written holds NaN. Each stream is a thread that begins its
work late, by a time drawn from a seed, so that the streams of a device overtake each other:

    tasks     | . . first . | second . . |
    arrivals  | third | . . . . fourth |      submitted in the order first, third, second, fourth

Whoever uses what an event guards without waiting for it finds what was there before, or breaks what is read late.

Every device has a current stream of each thread, as in torch's CUDA: that of the work which runs. Work in a stream of
one device that computes with memory of another would run in the other's current stream, which is its default one and
has waited for nothing; that is an error here. What torch orders itself may be done: a copy of what lies without gaps.

`StrictNullDevice` also refuses what a body must not do where a lane runs ahead of it: see ``body_watch``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from random import Random
from time import perf_counter_ns
from typing import ClassVar, NamedTuple, final

import torch

from maniple.process.error import RunError
from maniple.process.host_allocation import watch_host_run
from maniple.process.taken_memory import Taken
from maniple.runtime.devices.body_watch import BodyWatch, Call
from maniple.runtime.devices.device import Captured, Device, Refused, Stream
from maniple.runtime.devices.event import Event, Signal
from maniple.runtime.devices.memory_file import FileMemory
from maniple.runtime.devices.null_memory import NullMemory, settle
from maniple.runtime.devices.null_tensor import NullTensor, inside, is_inside, lies_on_a_device
from maniple.runtime.devices.peer_memory import PeerMemory
from maniple.runtime.devices.processor import enter_task

__all__: list[str] = []

LATEST_S = 1e-3
"""The most by which a piece of work begins late, in seconds; half of them do not."""


class _Piece(NamedTuple):
    """Work in a stream's queue."""

    work: Callable[[], object]
    events: tuple[Event, ...]
    end: Signal
    late_s: float


class _Gate:
    """What keeps the streams of a device from beginning anything while a test looks, or once the device is lost."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.closed = False
        self.lost: BaseException | None = None


@final
class NullStream(Stream):
    """A thread that does work in order, late.

    Args:
        name: of the thread.
        chance: draws how late.
        latest_s: the most.
        gate: keeps work from beginning.
        device: of which it is a stream.
        strict: whether work is refused what a body must not do.
    """

    def __init__(
        self, name: str, chance: Random, latest_s: float, gate: _Gate, device: str, *, strict: bool = False
    ) -> None:
        self._device, self._strict = device, strict
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
                if not all(map(self._comes, piece.events)):
                    return
                failure = failure or self._gate.lost
                if failure is None:
                    piece.end.begun_ns = perf_counter_ns()
                    with inside(self._device), self._watch():
                        piece.work()
            except BaseException as error:  # noqa: BLE001  (as on a GPU, what follows a failure does not run)
                failure = error
            end = piece.end
            del piece  # and what it holds, before anybody is told
            end.set(failure)

    def _comes(self, event: Event) -> bool:
        """Wait for an event; False once the stream is closed, for what was dropped then never comes."""
        changed, heard = self._gate.changed, list[None]()

        def hear(_: BaseException | None) -> None:
            with changed:
                heard.append(None)
                changed.notify_all()

        if not event.done:
            event.then(hear)
            with changed:
                changed.wait_for(lambda: self._ended or heard)
            if not heard:
                return False
        event.wait()
        return True

    def _watch(self) -> AbstractContextManager[object]:
        return BodyWatch(lies_on_a_device, _refuse) if self._strict else nullcontext()

    def _next(self) -> _Piece | None:
        """Wait for the next piece, and for its time."""
        changed = self._gate.changed
        with changed:
            changed.wait_for(lambda: self._ended or self._queue)
            if self._queue:
                changed.wait_for(lambda: self._ended, self._queue[0].late_s or 0)
            changed.wait_for(lambda: self._ended or not self._gate.closed)
            return None if self._ended else self._queue.popleft()


def _refuse(what: str) -> None:
    raise RunError(f"a body on a null device must not do that: {what}")


class _Graph:
    """What a null device runs again as one launch; it must issue what it issued when it was captured.

    Args:
        parts: what was captured.
        calls: what each called below autograd.
    """

    def __init__(self, parts: Sequence[Callable[[], object]], calls: Sequence[Sequence[Call]]) -> None:
        self._parts, self._calls = tuple(parts), tuple(map(tuple, calls))
        self.launches = 0

    def __call__(self) -> None:
        """Run it.

        Raises:
            RunError: a part does something else than before: a graph would have done the same again.
        """
        self.launches += 1
        for number, (part, calls) in enumerate(zip(self._parts, self._calls, strict=True)):
            with BodyWatch(lies_on_a_device, _refuse) as watch:
                part()
            if tuple(watch.calls) != calls:
                pairs = zip(watch.calls, calls, strict=False)
                found = next((f"{now}, captured as {then}" for now, then in pairs if now != then), "another number")
                raise RunError(
                    f"part {number} of a captured segment issues other calls than when it was captured: {found}"
                )


class NullDevice(Device):
    """A device without hardware; see `Device`.

    Args:
        local: its number; also the seed of how late its streams are.
        capacity: bytes that it may hold.
        latest_s: the most by which a piece of work begins late.
    """

    forks = True
    strict: ClassVar[bool] = False
    """Whether work in its stream of tasks is refused what a body must not do."""

    def __init__(self, local: int, capacity: int, latest_s: float = LATEST_S) -> None:
        super().__init__(local, capacity, f"null device {local}")
        self._gate = _Gate()
        self._token = f"{self.name} #{id(self)}"
        self._streams = tuple(
            NullStream(
                f"{self.name}: {name}",
                Random(f"{local} {name}"),
                latest_s,
                self._gate,
                self._token,
                strict=self.strict and name == "tasks",
            )
            for name in ("tasks", "arrivals", "departures")
        )
        self.tasks, self.arrivals, self.departures = self._streams
        self._peer_memories = (NullMemory(self._token, self.name), FileMemory())

    @classmethod
    def check(cls) -> None:
        """See `Device.check`: it needs no hardware."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Device.allocate`; what is read before it is written is NaN, or -1.

        Raises:
            RunError: a body takes memory.
        """
        if self.strict and is_inside():
            _refuse("it takes memory of the device's own allocator, which stops the device")
        poison = float("nan") if dtype.is_floating_point else -1
        made = self.room.allocate(
            prod(shape) * dtype.itemsize, lambda: torch.full(tuple(shape), poison, dtype=dtype, device="cpu")
        )
        settle(made, self._token)
        return made.as_subclass(NullTensor)

    def stage(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Device.stage`."""
        poison = float("nan") if dtype.is_floating_point else -1
        return torch.full((count,), poison, dtype=dtype, device="cpu")

    @property
    def peer_memories(self) -> tuple[PeerMemory, ...]:
        """See `Device.peer_memories`."""
        return self._peer_memories

    def bring(self, values: torch.Tensor) -> torch.Tensor:
        """See `Device.bring`."""
        return values if isinstance(values, NullTensor) else super().bring(values)

    @contextmanager
    def binding(self) -> Iterator[None]:
        """See `Device.binding`."""
        with inside(self._token):
            yield

    def watch(self, work: Callable[[], object]) -> Taken | None:
        """See `Device.watch`."""
        return watch_host_run(work)

    def capture(self, parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        """See `Device.capture`: what must not be done is heard of, and done all the same."""
        refused: list[Refused] = []
        calls = []
        for number, part in enumerate(parts):
            heard: list[str] = []
            with BodyWatch(lies_on_a_device, heard.append) as watch:
                part()
            calls.append(watch.calls)
            refused += [Refused(number, what) for what in heard[:1]]
        return refused[0] if refused else _Graph(parts, calls)

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

    def lose(self, why: str) -> None:
        """Have every stream fail from now on, whatever it is given: as a GPU does that has fallen off its bus.

        Args:
            why: what the driver says.
        """
        self._gate.lost = RunError(f"{self.name}: the device failed ({why}). This process cannot use it any more")

    def close(self) -> None:
        """See `Device.close`."""
        for stream in self._streams:
            stream.close()


@final
class StrictNullDevice(NullDevice):
    """A null device whose tasks must put work into their stream and do nothing else; see ``body_watch``."""

    strict: ClassVar[bool] = True
