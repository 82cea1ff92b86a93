"""CUDA devices, through the public names of `torch.cuda` alone.

A call submits work as torch and numba do: kernels are put into a stream, and the host goes on. One thread per stream
waits for the ends in their order and tells whoever asked; what the work uses is held until then, so no memory is used
again too early. Two ranks may use one device: each has its own context and its own share of the memory.

Ends have times of the device's clock only while somebody records. Those are a distance from an origin, which torch
gives in single precision; so an end becomes the next origin once the one before it is a second old:

    origin      0 s                    1.2 s (an end)          2.3 s (an end)
    ends        .2 .5 .9               1.3 1.7 2.1             2.5
    apart by    at least 60 ns         the same                the same         (62 us of an origin 10 minutes old)
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from math import prod
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, NamedTuple, final

import torch

from maniple.process.error import RequestError
from maniple.process.host_allocation import Taken
from maniple.process.torch_internals import allow_tf32_in_convolutions
from maniple.runtime.devices.device import Captured, Device, Refused, Stream
from maniple.runtime.devices.event import Event, Signal
from maniple.runtime.devices.memory_budget import MemoryBudget

__all__: list[str] = []


def check_cuda() -> None:
    """Refuse to go on without a CUDA device, or with a numba that cannot compile for it.

    Raises:
        RequestError: says what torch or numba lacks.
    """
    if not torch.cuda.is_available():
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise RequestError(f"--device cuda: {reason}; run on CPUs, or with --device null to try a program without one")
    try:
        import_module("numba.cuda.cudaimpl")  # what the first launch imports
    except Exception as error:
        installed = ", ".join(f"{name} {_version(name)}" for name in ("numba", "numba-cuda", "numpy"))
        raise RequestError(
            f"--device cuda: numba's kernels cannot be compiled with {installed} ({type(error).__name__}: {error}); "
            "install what the extra maniple[cuda] asks for, such as numpy<2.5 for numba-cuda 0.30"
        ) from error


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(missing)"


def _reclaim() -> None:
    """Have what nobody refers to given back to the device, for whoever shares it."""
    gc.collect()
    torch.cuda.empty_cache()


def numba_stream() -> object:
    """Give torch's current stream as numba takes it."""
    from numba import cuda

    return cuda.external_stream(torch.cuda.current_stream().cuda_stream)


def in_turn(body: Callable[..., object]) -> Callable[..., object]:
    """Wrap a body whose kernels numba puts into the default stream, so that they run in the turn of torch's stream.

    Args:
        body: launches kernels without naming a stream.
    """

    def call(*arguments: object) -> object:
        ours, default = torch.cuda.current_stream(), torch.cuda.default_stream()
        default.wait_stream(ours)
        found = body(*arguments)
        ours.wait_stream(default)
        return found

    return call


@final
class _ExactMultiplication:
    """TF32 is off while a device is open: numbers of 10 bits would make results depend on how an operator is cut.

    torch has it on for convolutions. The switches are the process's; they are as before once the last device is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before = False, False

    def open(self) -> None:
        """Switch it off, if this is the first device."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._before = bool(torch.backends.cudnn.allow_tf32), bool(torch.backends.cuda.matmul.allow_tf32)
                _allow_tf32(convolutions=False, products=False)

    def close(self) -> None:
        """Put it back, if this was the last one."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                convolutions, products = self._before
                _allow_tf32(convolutions=convolutions, products=products)


def _allow_tf32(*, convolutions: bool, products: bool) -> None:
    allow_tf32_in_convolutions(convolutions)
    torch.backends.cuda.matmul.allow_tf32 = products


_exact_multiplication = _ExactMultiplication()


@final
class CudaEvent(Signal):
    """The end of work in a stream, which other streams can wait for without the host.

    Args:
        begin: recorded before the work; None where it is not timed.
        end: recorded after it.
    """

    __slots__ = ("begin", "end")

    def __init__(self, begin: torch.cuda.Event | None, end: torch.cuda.Event) -> None:
        super().__init__()
        self.begin = begin
        self.end = end


class _Submitted(NamedTuple):
    """What a stream's thread waits for; None of both to end."""

    event: CudaEvent | None
    work: Callable[[], object] | None


RENEW_NS = 1_000_000_000
"""How old the origin of times may be: times a second away are 60 ns apart in single precision of milliseconds."""


class _Origin(NamedTuple):
    """An event whose time is known.

    Args:
        event: the event.
        time_ns: when it was, on the clock of this process.
    """

    event: torch.cuda.Event
    time_ns: int

    def time_of(self, event: torch.cuda.Event) -> int:
        """The time of another event."""
        return self.time_ns + int(1e6 * self.event.elapsed_time(event))


@final
class CudaStream(Stream):
    """A stream of a CUDA device; see `Stream`.

    Args:
        device: the device.
        name: of the thread that waits for ends.
        timed: says whether ends are to have times of the device's clock.
    """

    def __init__(self, device: torch.device, name: str, timed: Callable[[], bool] = lambda: False) -> None:
        self.torch = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device
        self._timed = timed
        self._failure: BaseException | None = None
        self._submitted: SimpleQueue[_Submitted] = SimpleQueue()
        self._origin: _Origin | None = None
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Stream.submit`; events of the host are waited for on this thread."""
        begin: torch.cuda.Event | None = None
        timed, begun_ns = self._timed(), perf_counter_ns()
        if not timed:
            self._origin = None
        elif self._origin is None:
            self._origin = self._anchor()
        try:
            for event in events:
                if isinstance(event, CudaEvent) and event.error is None:
                    self.torch.wait_event(event.end)
                else:
                    event.wait()
            begin = self._record(timed=True) if timed else None
            if self._failure is None:
                with torch.cuda.stream(self.torch), self._device:
                    work()
        except BaseException as error:  # noqa: BLE001  (told to whoever waits; what follows does not run)
            self._failure = self._failure or error
        submitted = CudaEvent(begin, self._record(timed=timed))
        submitted.begun_ns = begun_ns
        self._submitted.put(_Submitted(submitted, work))
        return submitted

    def _record(self, *, timed: bool) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.torch)
        return event

    def _anchor(self) -> _Origin:
        """Find the time of an event by waiting for it: whoever begins to record has waited for all work already."""
        event = self._record(timed=True)
        event.synchronize()
        return _Origin(event, perf_counter_ns())

    def _watch(self) -> None:
        while (submitted := self._submitted.get()).event is not None:
            event, error = submitted.event, self._failure
            try:
                event.end.synchronize()
                self._tell_times(event)
            except BaseException as failure:  # noqa: BLE001  (a kernel failed; told to whoever waits)
                self._failure = error = failure
            del submitted  # and what the work holds, before anybody is told
            event.set(error)

    def _tell_times(self, event: CudaEvent) -> None:
        """Give an end the times of the device's clock, and be its own origin's heir once that is old."""
        origin = self._origin
        if event.begin is None or origin is None:
            return
        event.begun_ns, event.ended_ns = origin.time_of(event.begin), origin.time_of(event.end)
        if event.ended_ns - origin.time_ns > RENEW_NS and self._origin is origin:
            self._origin = _Origin(event.end, event.ended_ns)

    def close(self) -> None:
        """End the thread, once all that was submitted has ended."""
        self._submitted.put(_Submitted(None, None))


@final
class CudaDevice(Device):
    """A CUDA device as one processor uses it; see `Device`.

    Args:
        local: the number of the processor among those of its host: they are dealt out over the devices.
        capacity: bytes that it may hold, of those that the device has.

    Raises:
        RequestError: there is no CUDA device.
    """

    compiles = True

    def __init__(self, local: int, capacity: int) -> None:
        check_cuda()
        self.device = torch.device("cuda", local % torch.cuda.device_count())
        super().__init__(local, capacity, str(self.device))
        self.room = MemoryBudget(self.name, capacity, _reclaim)
        self._streams = tuple(
            CudaStream(self.device, f"{self.name}: {name}", lambda: self.timed)
            for name in ("tasks", "arrivals", "departures")
        )
        self.tasks, self.arrivals, self.departures = self._streams
        _exact_multiplication.open()
        self._pool: Any = None  # a handle of torch's

    @classmethod
    def check(cls) -> None:
        """See `Device.check`."""
        check_cuda()

    @classmethod
    def memory_bytes(cls) -> tuple[int, ...]:
        """See `Device.memory_bytes`."""
        return tuple(torch.cuda.mem_get_info(number)[1] for number in range(torch.cuda.device_count()))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """See `Device.names`."""
        return tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))

    @classmethod
    def properties(cls) -> tuple[tuple[int, ...], ...]:
        """See `Device.properties`; older releases of torch do not tell of clocks."""
        told = ("major", "minor", "multi_processor_count", "clock_rate", "memory_clock_rate", "memory_bus_width")
        found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return tuple(tuple(int(getattr(each, name, 0)) for name in told) for each in found)

    @property
    def torch_device(self) -> torch.device:
        """See `Device.torch_device`."""
        return self.device

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Device.allocate`."""

        def attempt() -> torch.Tensor | None:
            try:
                with torch.cuda.stream(self._streams[0].torch):
                    return torch.empty(tuple(shape), dtype=dtype, device=self.device)
            except torch.OutOfMemoryError:  # another process may have what this one is entitled to
                return None

        return self.room.allocate(prod(shape) * dtype.itemsize, attempt)

    def stage(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Device.stage`: pinned, and used again by torch when nobody refers to it."""
        return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)

    def bring(self, values: torch.Tensor) -> torch.Tensor:
        """See `Device.bring`; what lies on CUDA stays there, and tasks come after what its own stream has to do."""
        if not values.is_cuda:
            return super().bring(values)
        ours = self._streams[0].torch
        ours.wait_stream(torch.cuda.current_stream(values.device))
        values.record_stream(ours)
        return values

    def capture(self, parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        """See `Device.capture`: a CUDA graph of torch's current stream, which is that of whatever runs this.

        Graphs of one device share the memory of what bodies make: it is nobody's once a graph has run, and they run one
        after another.
        """
        graph, made = torch.cuda.CUDAGraph(), 0
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            for part in parts:
                part()
                made += 1
            graph.capture_end()
        except Exception as error:  # noqa: BLE001  (whatever torch says of what cannot be captured; it is run as it is)
            if torch.cuda.is_current_stream_capturing():
                with suppress(RuntimeError):
                    graph.capture_end()
            refused = Refused(made if made < len(parts) else -1, str(error).partition("\n")[0])
            for part in parts:
                part()
            return refused
        graph.replay()
        return graph.replay

    @contextmanager
    def binding(self) -> Iterator[None]:
        """See `Device.binding`."""
        with torch.cuda.stream(self._streams[0].torch), self.device:
            yield

    def watch(self, work: Callable[[], object]) -> Taken:
        """See `Device.watch`; what other streams are given meanwhile counts too."""
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        peak = torch.cuda.max_memory_allocated(self.device)
        return Taken(torch.cuda.memory_allocated(self.device) - before, peak - before)

    def close(self) -> None:
        """See `Device.close`."""
        for stream in self._streams:
            stream.close()
        _exact_multiplication.close()
