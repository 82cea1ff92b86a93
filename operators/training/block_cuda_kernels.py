"""Blocks of several weights as one kernel on CUDA goes through them.

What an update reads and writes of a block is a few arrays of as many elements. Where they lie and how long they are is
a table on the device, made once; a block of threads takes one chunk of one block of a weight after another:

    block   first chunk   elements   value     gradient   momentum
    0       0             9,000      0x7f..    0x7f..     0x7f..      chunks 0, 1 and 2
    1       3             64         0x7f..    0x7f..     0x7f..      chunk 3

So weights of any number and size are one launch, which one weight alone fills as well as a kernel for it would.
The kernel is made of an optimizer's ``ElementRule``. A thread takes four elements in one load, where all arrays lie so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch

from maniple.operators.training.clipping import NO_NORM, bounded
from maniple.operators.training.element_rule import COUNT, ElementRule, begin
from maniple.runtime.devices.cuda_kernels import (
    EVERY_BLOCK,
    FORMS,
    THREADS,
    DeviceArray,
    address_of,
    array_at,
    as_numba,
    bind_launch,
    cuda,
    flat,
    kind_of,
    load_four,
    store_four,
    to_device,
)

if TYPE_CHECKING:
    from maniple.operators.training.block import Block
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

CHUNK = 32 * THREADS
"""Elements that a block of threads takes at a time."""
FIRST, SIZE, ADDRESSES = 0, 1, 2
"""Columns of the table: the first chunk, the elements, and then an address of each array."""


@final
class Table(NamedTuple):
    """What a kernel goes through.

    Args:
        blocks: (blocks, ADDRESSES + arrays) int64.
        owners: (chunks,) int32: the block of a chunk.
        chunks: How many there are.
        wide: Whether every array lies so that one load takes four elements.
        held: The tensors, whose memory stays theirs as long as the table.
    """

    blocks: Any
    owners: Any
    chunks: int
    wide: bool
    held: tuple[object, ...]

    @property
    def work(self) -> int:
        """Threads that have something to do."""
        return self.chunks * THREADS


def table_of(blocks: Sequence[Block]) -> Table:
    """Put the blocks of weights into a table: contiguous ones, of the same dtypes and numbers of states."""
    rows: list[list[int]] = []
    owners: list[int] = []
    for number, block in enumerate(blocks):
        size = block.value.numel()
        rows.append([len(owners), size, *map(address_of, block.tensors)])
        owners += [number] * -(-size // CHUNK)
    table = to_device(np.asarray(rows, dtype=np.int64)), to_device(np.asarray(owners, dtype=np.int32))
    wide = all(address_of(each) % (4 * each.element_size()) == 0 for block in blocks for each in block.tensors)
    return Table(*table, len(owners), wide, tuple(blocks))


@cuda.jit(device=True)
def chunk_of(blocks: Any, owners: Any, chunk: int) -> tuple[Any, Any, Any]:
    """The block of a chunk, and where in it the chunk begins and ends."""
    block = np.int64(owners[chunk])
    begin = (chunk - blocks[block, FIRST]) * CHUNK
    return block, begin, min(begin + CHUNK, blocks[block, SIZE])


@cuda.jit(device=True)
def after_fours(begin: Any, end: Any) -> Any:
    """Where those elements of a chunk begin that are no group of four."""
    return begin + (end - begin) // 4 * 4


@lru_cache(maxsize=128)
def _element(rule: ElementRule, value_dtype: torch.dtype, gradient_dtype: torch.dtype) -> Any:
    """The device function of one element as it lies in memory."""
    load, store, load_slope = FORMS[value_dtype].load, FORMS[value_dtype].store, FORMS[gradient_dtype].load
    element = rule.element

    def one(value: Any, slope: Any, a: Any, b: Any, c: Any, n: Any) -> tuple[Any, Any, Any, Any]:
        taken = bounded(load_slope(slope) * n[0], n[1])
        found, x, y, z = element(load(value), taken, load(a), load(b), load(c), n)
        return store(found), store(x), store(y), store(z)

    return cuda.jit(one, device=True)


@lru_cache(maxsize=32)
def _entering(rule: ElementRule) -> Any:
    """The device function that brings the numbers of a step into their form; see ``ElementRule.prepare``."""
    compiled: tuple[Any, Any] = begin, rule.prepare
    first, then = (cuda.jit(each.py_func, device=True) for each in compiled)

    def enter(row: Any, squares: Any, settings: Any, numbers: Any) -> None:
        first(squares, settings, numbers)
        then(row, settings, numbers)

    return cuda.jit(enter, device=True)


@lru_cache(maxsize=128)
def rule_kernel(
    rule: ElementRule, value_dtype: torch.dtype, gradient_dtype: torch.dtype, places: tuple[int, ...], *, wide: bool
) -> Any:
    """The kernel of a rule; its numbers enter each step, and the first thread of a block brings them into their form.

    Args:
        rule: What is done to an element.
        value_dtype: Of values and states.
        gradient_dtype: Of gradients.
        places: See ``ElementRule.places``. For a state that is not kept stands the value, and nothing is stored.
        wide: See ``Table``.
    """
    held, slope_held, kind = FORMS[value_dtype].held, FORMS[gradient_dtype].held, kind_of(value_dtype)
    one, enter = _element(rule, value_dtype, gradient_dtype), _entering(rule)
    (has_a, of_a), (has_b, of_b), (has_c, of_c) = ((place >= 0, ADDRESSES + 2 + place) for place in places)

    def update(blocks: Any, owners: Any, row: Any, squares: Any, settings: Any) -> None:
        n = cuda.shared.array(COUNT, kind)
        if cuda.threadIdx.x == 0:
            enter(row, squares, settings, n)
        cuda.syncthreads()
        numbers = n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size, thread = blocks[block, SIZE], np.int64(cuda.threadIdx.x)
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            a = array_at(blocks[block, of_a] if has_a else 0, size, held)
            b = array_at(blocks[block, of_b] if has_b else 0, size, held)
            c = array_at(blocks[block, of_c] if has_c else 0, size, held)
            rest = after_fours(begin, end) if wide else begin
            for at in range(begin + 4 * thread, rest, 4 * THREADS):
                i = np.uint64(at)
                v, s = load_four(values, i), load_four(slopes, i)
                x, y = load_four(a, i) if has_a else v, load_four(b, i) if has_b else v
                z = load_four(c, i) if has_c else v
                p = one(v[0], s[0], x[0], y[0], z[0], numbers)
                q = one(v[1], s[1], x[1], y[1], z[1], numbers)
                r = one(v[2], s[2], x[2], y[2], z[2], numbers)
                t = one(v[3], s[3], x[3], y[3], z[3], numbers)
                store_four(values, i, (p[0], q[0], r[0], t[0]))
                if has_a:
                    store_four(a, i, (p[1], q[1], r[1], t[1]))
                if has_b:
                    store_four(b, i, (p[2], q[2], r[2], t[2]))
                if has_c:
                    store_four(c, i, (p[3], q[3], r[3], t[3]))
            for at in range(rest + thread, end, THREADS):
                i = np.uint64(at)
                v, s = values[i], slopes[i]
                x, y, z = a[i] if has_a else v, b[i] if has_b else v, c[i] if has_c else v
                values[i], x, y, z = one(v, s, x, y, z, numbers)
                if has_a:
                    a[i] = x
                if has_b:
                    b[i] = y
                if has_c:
                    c[i] = z

    return cuda.jit(update)


def bind_rule(
    rule: ElementRule,
    optimizer: AbstractOptimizer,
    blocks: Sequence[Block],
    row: DeviceArray | None,
    squares: DeviceArray | None,
    stream: object = 0,
) -> Callable[[], None]:
    """A function that updates blocks in place; see ``AbstractOptimizer.bind_updates``.

    Args:
        rule: The optimizer's.
        optimizer: The optimizer.
        blocks: Contiguous, and of the same dtypes.
        row: The numbers of the step, float64; None: those that the optimizer was made with.
        squares: The sum of squares of all gradients, float64, where they are clipped by norm.
        stream: Of numba.
    """
    table, (value, gradient, _) = table_of(blocks), blocks[0]
    places = rule.places(optimizer.state_names)
    kernel = rule_kernel(rule, value.dtype, gradient.dtype, places, wide=table.wide)
    # No first step: those whose numbers do not enter take all of a gradient in each.
    bound = as_numba(row) if row is not None else to_device(np.asarray([2.0, *optimizer.flat(optimizer.arguments())]))
    summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
    given = table.blocks, table.owners, bound, summed, to_device(rule.settings(optimizer))
    launch = bind_launch(kernel, table.work, given, stream, most=EVERY_BLOCK)
    return lambda: (launch(), table)[0]
