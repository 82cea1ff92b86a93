"""What a task does: checks its inputs, writes its output, computes. Compiled; without the interpreter's lock."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as llvm
import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from maniple.process.error import RunError

LANES = 64


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """A pointer to 64-bit integers at an address."""
    del typing, address

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate


@intrinsic
def acquire(typing: Any, address: Any) -> Any:
    """The 64-bit integer at an address, read before whatever is read after it."""
    del typing, address

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = builder.inttoptr(arguments[0], llvm.PointerType(llvm.IntType(64)))
        return builder.load_atomic(target, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def release(typing: Any, address: Any, value: Any) -> Any:
    """Write a 64-bit integer to an address, after whatever was written before it."""
    del typing, address, value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = builder.inttoptr(arguments[0], llvm.PointerType(llvm.IntType(64)))
        builder.store_atomic(arguments[1], target, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy bytes from one address to another, by the C library's memcpy."""
    del typing, target, source, size

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ends = [builder.inttoptr(end, llvm.IntType(8).as_pointer()) for end in arguments[:2]]
        cgutils.raw_memcpy(builder, ends[0], ends[1], arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(nogil=True, cache=True, fastmath={"contract"})
def compute(iterations: int) -> float:
    """Task Bench's compute-bound kernel: a * a + a on 64 doubles, again and again; gives their product."""
    lanes = np.empty(LANES)
    for lane in range(LANES):
        lanes[lane] = 1.2345
    for _ in range(iterations):
        for lane in range(LANES):
            lanes[lane] = lanes[lane] * lanes[lane] + lanes[lane]
    product = 1.0
    for lane in range(LANES):
        product *= lanes[lane]
    return product


@njit(nogil=True, cache=True)
def wrong(address: int, pairs: int, step: int, point: int) -> bool:
    """Whether anything but (step, point) pairs lies at an address."""
    found = carray(pointer(address), (2 * pairs,), np.int64)
    steps = points = 0
    for pair in range(pairs):
        steps |= found[2 * pair] ^ step
        points |= found[2 * pair + 1] ^ point
    return steps | points != 0


@njit(nogil=True, cache=True)
def fill(address: int, pairs: int, step: int, point: int) -> None:
    """Write (step, point) pairs to an address."""
    output = carray(pointer(address), (2 * pairs,), np.int64)
    for pair in range(pairs):
        output[2 * pair] = step
        output[2 * pair + 1] = point


@njit(nogil=True, cache=True)
def execute(step: int, point: int, iterations: int, pairs: int, *words: int) -> int:
    """Run one task.

    Args:
        step: its step.
        point: its point.
        iterations: of the kernel.
        pairs: in each payload.
        words: address of what it writes; then for each run of inputs its first point, how many there are, and the
            address of the first, which the others follow.

    Returns:
        -1, or the address of a payload that is not what the task must read.
    """
    for index in range(1, len(words), 3):
        for source in range(words[index + 1]):
            address = words[index + 2] + source * pairs * 16
            if wrong(address, pairs, step - 1, words[index] + source):
                return address
    fill(words[0], pairs, step, point)
    # Never so: the product of infinities is none, and without iterations it is 1.2345 ** 64.
    return 0 if compute(iterations) == 0.0 else -1


def run_task(step: int, point: int, iterations: int, pairs: int, *words: int) -> None:
    """Run one task, or say which input was wrong; takes what `execute` takes.

    Raises:
        RunError: an input does not hold what its task wrote.
    """
    if execute(step, point, iterations, pairs, *words) >= 0:
        raise complaint(step, point, pairs, *words[1:])


def complaint(step: int, point: int, pairs: int, *spans: int) -> RunError:
    """Tell the first pair that is not what a task must read."""
    for first, count, address in zip(spans[::3], spans[1::3], spans[2::3], strict=True):
        for source in range(first, first + count):
            payload = contents(address + (source - first) * pairs * 16, pairs)
            for position in np.flatnonzero((payload != (step - 1, source)).any(axis=1))[:1]:
                got = tuple(payload[position].tolist())
                return RunError(
                    f"task (step {step}, point {point}): expected ({step - 1}, {source}) at pair {position} of its "
                    f"input {source}, got {got}; the system ran it too early, or mixed up its inputs"
                )
    return RunError(f"task (step {step}, point {point}): its inputs changed while it ran")


def contents(address: int, pairs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A copy of a payload."""
    import ctypes

    words = (ctypes.c_int64 * (2 * pairs)).from_address(address)
    return np.array(words).reshape(pairs, 2)


def produce(
    step: int, point: int, iterations: int, pairs: int, sources: tuple[int, ...], *inputs: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Run one task on arrays, as systems do that pass values: gives its payload.

    Args:
        step: its step.
        point: its point.
        iterations: of the kernel.
        pairs: in each payload.
        sources: the points that it reads.
        inputs: their payloads.
    """
    output = np.empty((pairs, 2), np.int64)
    spans = [word for source, value in zip(sources, inputs, strict=True) for word in (source, 1, value.ctypes.data)]
    run_task(step, point, iterations, pairs, output.ctypes.data, *spans)
    return output
