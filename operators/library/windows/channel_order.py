"""Images turned between channels first and channels last, a block of 16 by 16 values at a time.

    first    sample 0: channel 0: a b c d ...    channel 1: e f g h ...
    last     sample 0: a e ...  b f ...  c g ...  d h ...

A block is read row by row into vectors, and written row by row: four rounds of shuffles between, in each of which
two vectors swap halves, quarters, eighths, single values (Eklundh, A fast computer method for matrix transposing, IEEE
Transactions on Computers 1972). LLVM makes of a vector what the processor has. Torch's copy between the two orders
takes two to three times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__: list[str] = []

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes
BLOCK = 16
"""Values of a vector: a line of the cache in float32."""


def _turning(
    typing: object, like: Any, source: object, source_step: object, target: object, target_step: object
) -> tuple[object, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = context.get_value_type(like.dtype)
        width = context.get_abi_sizeof(element)
        vector = ir.VectorType(element, BLOCK)
        _, read, read_step, written, written_step = arguments

        def line(start: Any, step: Any, number: int) -> Any:
            address = builder.add(start, builder.mul(step, ir.Constant(step.type, number)))
            return builder.inttoptr(address, vector.as_pointer())

        rows = [builder.load(line(read, read_step, number), align=width) for number in range(BLOCK)]
        for span in (8, 4, 2, 1):
            near = [place + BLOCK - span if place & span else place for place in range(BLOCK)]
            far = [place + BLOCK if place & span else place + span for place in range(BLOCK)]
            low, high = (ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), places) for places in (near, far))
            for number in [number for number in range(BLOCK) if not number & span]:
                one, other = rows[number], rows[number + span]
                rows[number] = builder.shuffle_vector(one, other, low)
                rows[number + span] = builder.shuffle_vector(one, other, high)
        for number, row in enumerate(rows):
            builder.store(row, line(written, written_step, number), align=width)
        return context.get_dummy_value()

    return types.void(like, types.intp, types.intp, types.intp, types.intp), generate


_turn_block = cast("Callable[..., None]", intrinsic(_turning))


@numba.njit(cache=True, nogil=True)
def turn(source: Floats, target: Floats) -> None:
    """Write matrices turned.

    Args:
        source: (samples, rows, columns), dense.
        target: (samples, columns, rows), dense: written.
    """
    samples, rows, columns = source.shape
    width = source.itemsize
    whole_rows, whole_columns = rows - rows % BLOCK, columns - columns % BLOCK
    for sample in range(samples):
        read, written = source[sample].ctypes.data, target[sample].ctypes.data
        for column in range(0, whole_columns, BLOCK):
            for row in range(0, whole_rows, BLOCK):
                start = read + (row * columns + column) * width
                goal = written + (column * rows + row) * width
                _turn_block(source, start, columns * width, goal, rows * width)
            for row in range(whole_rows, rows):
                for place in range(column, column + BLOCK):
                    target[sample, place, row] = source[sample, row, place]
        for column in range(whole_columns, columns):
            for row in range(rows):
                target[sample, column, row] = source[sample, row, column]
