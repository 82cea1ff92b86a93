"""Blocks of several weights as one kernel on CUDA goes through them.

What an update reads and writes of a block is a few arrays of as many elements. Where they lie and how long they are is
a table on the device, made once; a block of threads takes one chunk of one block of a weight after another:

    block   first chunk   elements   value     gradient   momentum
    0       0             9,000      0x7f..    0x7f..     0x7f..      chunks 0, 1 and 2
    1       3             64         0x7f..    0x7f..     0x7f..      chunk 3

So weights of any number and size are one launch, which one weight alone fills as well as a kernel for it would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from maniple.runtime.devices.cuda_kernels import THREADS, address_of, cuda, to_device

if TYPE_CHECKING:
    from maniple.operators.training.block import Block

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
