"""Memory of CUDA devices that other ranks open: CUDA IPC, and pinned memory that ranks share.

Segments are of the driver's own allocator, so that torch neither gives parts of them to anybody nor frees them while
another process has them open, and whatever torch's allocator is set to: what it maps piecewise cannot be exported.

No event is exported. A stream that waits for one of a process that was killed waits for ever, as was seen, and one
that ends wrongly would be taken for done; so a sender hears of its own end before it says that a tile is there.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from maniple.process.error import RunError
from maniple.runtime.devices.memory_file import FileMemory
from maniple.runtime.devices.peer_memory import PeerMemory, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__: list[str] = []

HANDLE_BYTES = 64
"""Of a handle of CUDA IPC."""
_GRAIN = 2 << 20  # bytes: what the driver maps memory in; a smaller segment would show another process its neighbours
_LAZY_PEER_ACCESS, _PORTABLE, _OUT_OF_MEMORY = 1, 1, 2  # of cuda.h


@final
class _Array:
    """Memory of a device, as packages tell each other of it.

    Args:
        pointer: where it is.
        size: bytes.
    """

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|i1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


def _driver() -> Any:
    return import_module("cuda.bindings.driver")  # which numba's CUDA depends on


def _give(what: str, answer: tuple[Any, ...]) -> Any:
    """Give what a call of the driver gave.

    Raises:
        RunError: it failed.
    """
    if int(answer[0]):
        raise RunError(f"CUDA IPC: {what} failed: {getattr(answer[0], 'name', answer[0])}")
    return answer[1] if len(answer) > 1 else None


@final
class CudaIpcMemory(PeerMemory):
    """Memory of a CUDA device; see `PeerMemory`.

    Args:
        device: the device.
    """

    way: ClassVar[str] = "CUDA IPC"
    of_device: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self.hardware = str(getattr(torch.cuda.get_device_properties(device), "uuid", device))
        self._device = device

    def export(self, size: int) -> Segment:
        """See `PeerMemory.export`."""
        driver, whole = _driver(), -(-size // _GRAIN) * _GRAIN
        with self._current():
            answer = driver.cuMemAlloc(whole)
            if int(answer[0]) == _OUT_OF_MEMORY:  # torch may keep what nobody uses
                gc.collect()
                torch.cuda.empty_cache()
                answer = driver.cuMemAlloc(whole)
            if int(answer[0]) == _OUT_OF_MEMORY:
                raise RunError(
                    f"{self._device} has no {whole} bytes beside its instances for tiles to another rank: give the "
                    "program less with --memory, or run with --transport zmq"
                )
            pointer = int(_give("cuMemAlloc", answer))
            handle = _give("cuIpcGetMemHandle", driver.cuIpcGetMemHandle(pointer))
            memory = self._tensor(pointer, whole)
        told = ctypes.string_at(handle.getPtr(), HANDLE_BYTES)
        return Segment(memory, told, partial(self._call, "cuMemFree", pointer))

    def open(self, handle: bytes, size: int) -> Segment:
        """See `PeerMemory.open`."""
        if len(handle) != HANDLE_BYTES:
            raise RunError(f"CUDA IPC: expected a handle of {HANDLE_BYTES} bytes, got {len(handle)}")
        driver = _driver()
        taken = driver.CUipcMemHandle()
        ctypes.memmove(taken.getPtr(), handle, HANDLE_BYTES)
        with self._current():
            pointer = int(_give("cuIpcOpenMemHandle", driver.cuIpcOpenMemHandle(taken, _LAZY_PEER_ACCESS)))
            memory = self._tensor(pointer, size)
        return Segment(memory, b"", partial(self._call, "cuIpcCloseMemHandle", pointer))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Have the driver work with the device's context, on this thread."""
        with torch.cuda.device(self._device):
            torch.cuda.mem_get_info(self._device)  # a call of the runtime's, which makes the context current
            yield

    def _tensor(self, pointer: int, size: int) -> torch.Tensor:
        driver = _driver()
        which = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        number = int(_give("cuPointerGetAttribute", driver.cuPointerGetAttribute(which, pointer)))
        return torch.as_tensor(_Array(pointer, size), device=torch.device("cuda", number))

    def _call(self, name: str, pointer: int) -> None:
        with self._current():
            _give(name, getattr(_driver(), name)(pointer))


def pin(address: int, size: int) -> Callable[[], object]:
    """Have all CUDA devices of this process copy from and to memory of the host by themselves; gives what ends that.

    Args:
        address: where it begins.
        size: bytes.

    Raises:
        RunError: CUDA refuses.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(address, size, _PORTABLE)
    if int(error):
        raise RunError(f"memory that ranks share cannot be pinned: cudaHostRegister gives {error}")
    return partial(runtime.cudaHostUnregister, address)


@final
class PinnedFileMemory(FileMemory):
    """Pinned memory of the host that ranks share; see `PeerMemory`."""

    way: ClassVar[str] = "pinned memory that ranks share"

    def __init__(self) -> None:
        super().__init__(pin)
