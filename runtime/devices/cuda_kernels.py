"""What kernels on CUDA share: how one is bound to a grid, and how it sees arrays of torch.

Import this where a GPU is used and nowhere else: it imports numba's CUDA target, or its simulator.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import numpy as np
import torch
from numba import config
from numba import cuda as _cuda

if TYPE_CHECKING:
    from collections.abc import Callable


__all__: list[str] = []

_SIMULATED = bool(vars(config)["ENABLE_CUDASIM"])
setattr(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)  # noqa: B010  (numba warns of small grids: a loss is one block by intent)

cuda: Any = _cuda  # untyped, and its names are there only once it knows its target

DeviceArray = Any  # a torch tensor on CUDA, or a device array of numba

THREADS = 128  # of a block
MOST_BLOCKS = 4096  # of kernels whose threads go on to the next work; more do not fill a GPU better
EVERY_BLOCK = 2**31 - 1  # of kernels whose threads have 16 bytes or more to do: the GPU deals blocks out best


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
_KINDS = {np.dtype(held): dtype for dtype, (held, _, _) in reversed(FORMS.items()) if dtype != torch.bfloat16}


def dtype_of(array: DeviceArray) -> torch.dtype:
    """What the elements of a device array are, as torch calls it."""
    return array.dtype if isinstance(array, torch.Tensor) else _KINDS[np.dtype(array.dtype)]


def kind_of(dtype: torch.dtype) -> type[np.generic]:
    """What numbers of a dtype are computed as: those of 16 bits in single precision."""
    return np.float32 if dtype.is_floating_point and dtype.itemsize == 2 else FORMS[dtype].held


@final
class Grid:
    """A kernel with its blocks, configured once for each stream that it is launched into.

    Args:
        kernel: What ``cuda.jit`` gave; takes any number of blocks.
        work: Threads that have something to do.
        threads: Of a block; 0: ``THREADS``.
        most: Blocks that there may be.
    """

    def __init__(self, kernel: Any, work: int, threads: int = 0, most: int = MOST_BLOCKS) -> None:
        self._kernel = kernel
        self._threads = threads or THREADS
        self.blocks = max(1, min(most, -(-work // self._threads)))
        self._by_stream: dict[object, Any] = {}

    def on(self, stream: object | None) -> Callable[..., None]:
        """What launches it into a stream of numba, given its arguments; None: into torch's current one."""
        if stream is not None:
            return cast("Callable[..., None]", self._kernel[self.blocks, self._threads, stream])
        key = stream_key()
        found = self._by_stream.get(key)
        if found is None:
            found = self._by_stream[key] = self._kernel[self.blocks, self._threads, stream_of(key)]
        return cast("Callable[..., None]", found)

    def bind(self, arguments: tuple[object, ...], stream: object | None = 0) -> Callable[[], None]:
        """A launch.

        Args:
            arguments: Device arrays (which stay where they are) and numbers.
            stream: Of numba; None: torch's current one at each launch.
        """
        if stream is None:
            return lambda: self.on(None)(*arguments)
        configured = self.on(stream)
        return lambda: configured(*arguments)


def bind_launch(
    kernel: Any,
    work: int,
    arguments: tuple[object, ...],
    stream: object | None = 0,
    threads: int = 0,
    most: int = MOST_BLOCKS,
) -> Callable[[], None]:
    """A kernel bound to its arguments and to a grid of blocks.

    Args:
        kernel: See ``Grid``, as are ``work``, ``threads`` and ``most``.
        work: Likewise.
        arguments: See ``Grid.bind``.
        stream: Likewise.
        threads: See ``Grid``.
        most: Likewise.
    """
    return Grid(kernel, work, threads, most).bind(arguments, stream)


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


def address_of(array: DeviceArray) -> int:
    """Where the first element of a device array lies."""
    if isinstance(array, torch.Tensor):
        return int(array.data_ptr())
    held: Any = array
    found = held.__array_interface__ if _SIMULATED else held.__cuda_array_interface__
    return int(found["data"][0])


def _array_in_memory(address: int, size: int, held: type[np.generic]) -> Any:
    length = int(size) * np.dtype(held).itemsize
    memory: Any = (ctypes.c_char * length).from_address(int(address))
    return np.frombuffer(memory, dtype=held)


def _four_in_memory(array: Any, at: Any) -> tuple[Any, Any, Any, Any]:
    a, b, c, d = array[int(at) : int(at) + 4]
    return a, b, c, d


def _put_four_in_memory(array: Any, at: Any, four: tuple[Any, Any, Any, Any]) -> None:
    array[int(at) : int(at) + 4] = four


def _on_device() -> tuple[Any, Any, Any]:
    """Device functions of the forms of the three above: numba has no pointers and no loads of several elements."""
    from importlib import import_module

    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    from maniple.process.compilation.numba_internals import array_value

    types: Any = import_module("numba.cuda.types")

    def four_at(context: Any, builder: Any, held: Any, array: Any, at: Any) -> tuple[Any, int]:
        """A pointer to four elements, and what they are aligned to."""
        data = context.make_array(held)(context, builder, value=array).data
        element = context.get_data_type(held.dtype)
        pointer = builder.bitcast(builder.gep(data, [at]), ir.VectorType(element, 4).as_pointer())
        return pointer, 4 * held.dtype.bitwidth // 8

    @intrinsic
    def array_at(typing_context: Any, address: Any, size: Any, held: Any) -> Any:
        del typing_context
        made = types.Array(held.dtype, 1, "C")

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            pointer, length, _ = arguments
            word = context.get_value_type(types.intp)
            data = builder.inttoptr(pointer, context.get_data_type(held.dtype).as_pointer())
            return array_value(context, builder, made, data, [length], [word(held.dtype.bitwidth // 8)], word)

        return made(types.intp, types.intp, held), build

    @intrinsic
    def load_four(typing_context: Any, array: Any, at: Any) -> Any:
        del typing_context, at

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer, align = four_at(context, builder, signature.args[0], *arguments)
            found = builder.load(pointer, align=align)
            parts = [builder.extract_element(found, ir.Constant(ir.IntType(32), place)) for place in range(4)]
            return context.make_tuple(builder, signature.return_type, parts)

        return types.UniTuple(array.dtype, 4)(array, types.uint64), build

    @intrinsic
    def store_four(typing_context: Any, array: Any, at: Any, four: Any) -> Any:
        del typing_context, at, four

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer, align = four_at(context, builder, signature.args[0], *arguments[:2])
            made = ir.Constant(pointer.type.pointee, ir.Undefined)
            for place in range(4):
                part = builder.extract_value(arguments[2], place)
                made = builder.insert_element(made, part, ir.Constant(ir.IntType(32), place))
            builder.store(made, pointer, align=align)
            return context.get_dummy_value()

        return types.void(array, types.uint64, types.UniTuple(array.dtype, 4)), build

    return array_at, load_four, store_four


array_at, load_four, store_four = (
    (_array_in_memory, _four_in_memory, _put_four_in_memory) if _SIMULATED else _on_device()
)
"""In a kernel: the array of a length and a type of elements at an address; four elements of an array from a place whose
address is a multiple of their size, in one load; and in one store."""


def to_device(array: Any) -> Any:
    """A copy of an array on the device; in the simulator as the simulator has it."""
    return cuda.to_device(array)


def stream_key() -> tuple[int, int]:
    """The device and the handle of the stream into which torch puts work now; the simulator has none."""
    if _SIMULATED:
        return 0, 0
    stream = torch.cuda.current_stream()
    return stream.device_index, stream.cuda_stream


@lru_cache(maxsize=256)
def stream_of(key: tuple[int, int]) -> object:
    """A stream as numba takes it; its device is the current one."""
    return 0 if _SIMULATED else cuda.external_stream(key[1])


def current_stream() -> object:
    """The stream into which torch puts work now, as numba takes it; the simulator has none."""
    return stream_of(stream_key())


def flat(array: DeviceArray) -> Any:
    """The elements of a contiguous device array in one dimension."""
    seen = as_numba(array)
    return seen if seen.ndim == 1 else seen.reshape(seen.size)
