"""What kernels on CUDA share: how one is bound to a grid, and how it sees arrays of torch.

Import this where a GPU is used and nowhere else: it imports numba's CUDA target, or its simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from numba import config
from numba import cuda as _cuda

if TYPE_CHECKING:
    from collections.abc import Callable


__all__: list[str] = []

_SIMULATED = bool(vars(config)["ENABLE_CUDASIM"])
vars(config)["CUDA_LOW_OCCUPANCY_WARNINGS"] = 0  # numba warns of small grids: a loss is one block by intent

cuda: Any = _cuda  # untyped, and its names are there only once it knows its target

DeviceArray = Any  # a torch tensor on CUDA, or a device array of numba

THREADS = 128  # of a block
_MOST_BLOCKS = 4096  # more do not fill a GPU better; a thread takes every gridsize-th element


def _same(element: Any) -> Any:
    return element


def _half_to_single(element: Any) -> Any:
    return np.float32(element)


def _single_to_half(number: Any) -> Any:
    return np.float16(number)


def _brain_to_single(bits: Any) -> Any:
    return np.uint32(np.uint32(np.uint16(bits)) << np.uint32(16)).view(np.float32)


def _single_to_brain(number: Any) -> Any:
    if number != number:  # noqa: PLR0124
        return np.int16(0x7FC0)
    bits = np.float32(number).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))  # to the nearest, to the even one of two
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).view(np.int16)


@final
class Form(NamedTuple):
    """How numbers lie in arrays of numba, and what they are computed as.

    Args:
        held: The dtype of the array: numba's simulator has no bfloat16, which lies as its bits.
        load: A device function: the number of an element.
        store: A device function: the element of a number.
    """

    held: type[np.generic]
    load: Any
    store: Any


def _form(held: type[np.generic], load: Callable[[Any], Any], store: Callable[[Any], Any]) -> Form:
    return Form(held, cuda.jit(load, device=True), cuda.jit(store, device=True))


FORMS: dict[torch.dtype, Form] = {
    torch.float64: _form(np.float64, _same, _same),
    torch.float32: _form(np.float32, _same, _same),
    torch.float16: _form(np.float16, _half_to_single, _single_to_half),
    torch.bfloat16: _form(np.int16, _brain_to_single, _single_to_brain),
    torch.int64: _form(np.int64, _same, _same),
    torch.int32: _form(np.int32, _same, _same),
}
"""By dtype."""


def bind_launch(kernel: Any, work: int, arguments: tuple[object, ...], stream: object | None = 0) -> Callable[[], None]:
    """A kernel bound to its arguments and to a grid of blocks of ``THREADS`` threads.

    Args:
        kernel: What ``cuda.jit`` gave; takes any number of blocks.
        work: Threads that have something to do.
        arguments: Device arrays (which stay where they are) and numbers.
        stream: Of numba; None: torch's current one at each launch.
    """
    blocks = max(1, min(_MOST_BLOCKS, -(-work // THREADS)))
    if stream is None:
        return lambda: kernel[blocks, THREADS, current_stream()](*arguments)
    configured = kernel[blocks, THREADS, stream]
    return lambda: configured(*arguments)


def as_numba(array: DeviceArray) -> Any:
    """A device array as kernels take it: numba's own as it is, torch's memory shared; the host's in the simulator."""
    if not isinstance(array, torch.Tensor):
        return array
    if array.dtype == torch.bfloat16:
        array = array.view(torch.int16)
    return _shared(array.numpy()) if _SIMULATED else cuda.as_cuda_array(array)


def _shared(array: Any) -> Any:
    """An array of the host as the simulator has a device's: not copied, so it may lie in any strides."""
    from numba.cuda.simulator.cudadrv import devicearray

    simulated: Any = devicearray
    return simulated.FakeCUDAArray(array)


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
