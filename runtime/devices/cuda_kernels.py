"""What kernels on CUDA share: how one is bound to a grid, and how it sees arrays of torch.

Import this where a GPU is used and nowhere else: it imports numba's CUDA target, or its simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numba import config
from numba import cuda as _cuda

if TYPE_CHECKING:
    from collections.abc import Callable


__all__: list[str] = []

_SIMULATED = bool(vars(config)["ENABLE_CUDASIM"])

cuda: Any = _cuda  # untyped, and its names are there only once it knows its target

DeviceArray = Any  # a torch tensor on CUDA, or a device array of numba

THREADS = 128  # of a block
_MOST_BLOCKS = 4096  # more do not fill a GPU better; a thread takes every gridsize-th element


def bind_launch(kernel: Any, work: int, arguments: tuple[object, ...], stream: object = 0) -> Callable[[], None]:
    """A kernel bound to its arguments and to a grid of blocks of ``THREADS`` threads.

    Args:
        kernel: What ``cuda.jit`` gave; takes any number of blocks.
        work: Threads that have something to do.
        arguments: Device arrays (which stay where they are) and numbers.
        stream: Of numba.
    """
    blocks = max(1, min(_MOST_BLOCKS, -(-work // THREADS)))
    configured = kernel[blocks, THREADS, stream]
    return lambda: configured(*arguments)


def as_numba(array: DeviceArray) -> Any:
    """A device array as kernels take it: numba's own as it is, torch's memory shared; the host's in the simulator."""
    if not isinstance(array, torch.Tensor):
        return array
    return array.numpy() if _SIMULATED else cuda.as_cuda_array(array)


def to_device(array: Any) -> Any:
    """A copy of an array on the device; in the simulator as the simulator has it."""
    return cuda.to_device(array)


def current_stream() -> object:
    """The stream into which torch puts work now, as numba takes it; the simulator has none."""
    if _SIMULATED:
        return 0
    from maniple.runtime.devices.cuda_device import numba_stream

    return numba_stream()


def flat(array: DeviceArray) -> Any:
    """The elements of a contiguous device array in one dimension."""
    seen = as_numba(array)
    return seen if seen.ndim == 1 else seen.reshape(seen.size)
