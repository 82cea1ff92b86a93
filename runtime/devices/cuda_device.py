"""CUDA devices, through the public names of `torch.cuda` alone; ``cuda_stream`` has their streams.

Two ranks may use one device: each has its own context and its own share of the memory.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from math import prod
from typing import Any, final

import torch

from maniple.process.environment import copy_variables
from maniple.process.error import RequestError
from maniple.process.taken_memory import Taken
from maniple.process.torch_internals import current_stream_number, leave_capture
from maniple.runtime.devices.cuda_memory import CudaIpcMemory, PinnedFileMemory
from maniple.runtime.devices.cuda_stream import CudaStream, DeviceClock
from maniple.runtime.devices.device import Captured, Device, Refused
from maniple.runtime.devices.device_peaks import NO_CAPTURE, give_back, peaks_of
from maniple.runtime.devices.memory_budget import MemoryBudget
from maniple.runtime.devices.multiplication import MULTIPLICATION
from maniple.runtime.devices.peer_memory import PeerMemory
from maniple.runtime.devices.pinned_rows import PINNED_ROWS

__all__: list[str] = []

_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d+)[a-z]?")


def check_cuda() -> None:
    """Refuse to go on without a CUDA device that torch has kernels for, or with a numba that cannot compile for it.

    Raises:
        RequestError: says what is missing, and the next step.
    """
    if not torch.cuda.is_available():
        raise RequestError(f"--device cuda: {why_no_cuda()}; or run on CPUs, or try the program with --device null")
    if old := _too_old():
        raise RequestError(f"--device cuda: {old}")
    try:
        import_module("numba.cuda.cudaimpl")  # what the first launch imports
    except Exception as error:
        installed = ", ".join(f"{name} {_version(name)}" for name in ("numba", "numba-cuda", "numpy"))
        raise RequestError(
            f"--device cuda: numba's kernels cannot be compiled with {installed} ({type(error).__name__}: {error}); "
            "install what the extra maniple[cuda] asks for, such as numpy<2.5 for numba-cuda 0.30"
        ) from error


def why_no_cuda() -> str:
    """Why torch finds no CUDA device here, and the next step.

    torch says what is wrong with a driver once it is made to begin; that devices are hidden it does not say.
    """
    if torch.version.cuda is None:
        return f"this torch is built without CUDA ({torch.__version__}); install one that has it, see pytorch.org"
    told = "though it found one when it was asked again"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        told = str(error).partition(". ")[0].partition("\n")[0]
    if "no NVIDIA driver" in told:
        return "this host has no NVIDIA driver; install it, or start the container with its GPUs"
    if "too old" in told:
        return f"{told}, and this torch is built for CUDA {torch.version.cuda}; update it, or install an older torch"
    hidden = copy_variables().get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES is {hidden!r} and hides all devices; unset it, or list devices such as 0,1"
    return f"torch finds no CUDA device ({told}); see whether nvidia-smi lists one"


def _too_old() -> str:
    """The first device that torch has no kernels for, with the next step; "" where it has some for all.

    What was built for a capability runs on no lower one.
    """
    built = [int(found[1]) for name in torch.cuda.get_arch_list() if (found := _ARCHITECTURE.fullmatch(name))]
    lowest = min(built, default=0)
    for number in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(number)
        if 10 * major + minor < lowest:
            return (
                f"cuda:{number} ({torch.cuda.get_device_name(number)}) has capability {major}.{minor}, and this torch "
                f"has kernels from {lowest // 10}.{lowest % 10} on; hide it by CUDA_VISIBLE_DEVICES, or install an "
                "older torch"
            )
    return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(missing)"


def _reclaim() -> None:
    """Have what nobody refers to given back to the device, for whoever shares it."""
    gc.collect()
    give_back()


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
        clock = DeviceClock(lambda: self.timed)
        self._streams = tuple(
            CudaStream(self.device, f"{self.name}: {name}", clock) for name in ("tasks", "arrivals", "departures")
        )
        self.tasks, self.arrivals, self.departures = self._streams
        self._peer_memories = (CudaIpcMemory(self.device), PinnedFileMemory())
        self._sources: dict[tuple[int, int], tuple[torch.cuda.Stream, torch.cuda.Event]] = {}
        MULTIPLICATION.open()
        self._pool: Any = None  # a handle of torch's
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        """Those that share the pool; none once one was refused, for torch may take the pool for one in use."""

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
    def peer_memories(self) -> tuple[PeerMemory, ...]:
        """See `Device.peer_memories`."""
        return self._peer_memories

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
        """See `Device.stage`: pinned, and used again once nobody refers to it and no stream may be at it."""
        return PINNED_ROWS.take((count,), dtype)

    def bring(self, values: torch.Tensor) -> torch.Tensor:
        """See `Device.bring`; what lies on CUDA stays there, and tasks come after what its own stream has to do."""
        if not values.is_cuda:
            return super().bring(values)
        tasks, index = self._streams[0], values.device.index
        number = current_stream_number(index)
        if number != tasks.torch.cuda_stream:
            stream, event = self._sources.get((index, number)) or self._source(values.device, number)
            event.record(stream)  # anew, for each: making an event takes longer, and to come after a later one is right
            tasks.after.append(event)
        values.record_stream(tasks.torch)
        return values

    def _source(self, device: torch.device, number: int) -> tuple[torch.cuda.Stream, torch.cuda.Event]:
        """A stream that a program computes batches in, and an event to come after it."""
        with device:
            found = torch.cuda.current_stream(device), torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._sources[device.index, number] = found
        return found

    def capture(self, parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        """See `Device.capture`: a CUDA graph of torch's current stream, which is that of whatever runs this.

        Graphs of one device share the memory of what bodies make: it is nobody's once a graph has run, and they run one
        after another. What the bodies made when they ran for the first time is given back to the device before, or they
        would have both.
        """
        with NO_CAPTURE:
            give_back()
            return self._capture(parts)

    def _capture(self, parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        graph, made = torch.cuda.CUDAGraph(), 0
        if not self._graphs:  # torch lets no graph into a pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
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
            leave_capture(self.device, self._pool)
            self._graphs.clear()
            refused = Refused(made if made < len(parts) else -1, str(error).partition("\n")[0])
            for part in parts:
                part()
            return refused
        self._graphs.add(graph)
        graph.replay()
        return graph.replay

    @contextmanager
    def binding(self) -> Iterator[None]:
        """See `Device.binding`."""
        with torch.cuda.stream(self._streams[0].torch), self.device:
            yield

    def settle(self) -> None:
        """See `Device.settle`: cuBLAS keeps a workspace for every stream and thread that multiplies."""
        some = torch.ones(1, 1, device=self.device)
        torch.mm(some, some)

    def watch(self, work: Callable[[], object]) -> Taken:
        """See `Device.watch`; what other threads are given meanwhile counts too."""
        look = peaks_of(self.device).look()
        work()
        peak, held = look.peak().given, peaks_of(self.device).held().given
        # What was there before and is let go of meanwhile was not taken by the work.
        return Taken(max(0, held - look.before.given), peak - look.before.given)

    def close(self) -> None:
        """See `Device.close`."""
        for stream in self._streams:
            stream.close()
        MULTIPLICATION.close()
