"""The drawing kernel: two uniform numbers for every element of a tile, by counter.

Element ``e`` of the whole tensor, counted row-major, has the Philox4x32-10 block whose counter is (``e``, step) and
whose key is the seed xor the operator's number: the first two words give one number of 53 bits, the others another.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maniple.operators.library.randomness.dropout_kernels import Clock, Word, Words, make_key, philox, runs
from maniple.operators.operator.host_memory import as_plain
from maniple.operators.operator.random_stream import RandomStream
from maniple.regions.rectangle import Rect

Numbers = npt.NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def _uniforms(first: Numbers, second: Numbers, starts: Words, clock: Clock, operator: Word) -> None:
    low, high = make_key(clock[0], operator)
    time, word, cut = np.uint64(clock[1]), np.uint64(32), np.uint64(11)
    for run in range(first.shape[0]):
        for i in range(first.shape[1]):
            a, b, c, d = philox(starts[run] + np.uint64(i), time, low, high)
            first[run, i] = float(((a << word) | b) >> cut) * 2.0**-53
            second[run, i] = float(((c << word) | d) >> cut) * 2.0**-53


def uniforms(stream: RandomStream, shape: tuple[int, ...], rect: Rect) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1) for every element of a tile, in the step that runs: multiples of 2^-53.

    They are drawn where the clock lies.

    Args:
        stream: Of the operator.
        shape: Of the whole tensor.
        rect: The tile.
    """
    clock = stream.clock
    first, second = (clock.new_empty(rect.shape, dtype=torch.float64) for _ in range(2))
    if clock.is_cuda:
        from maniple.operators.library.randomness import draw_cuda_kernels
        from maniple.runtime.devices.cuda_kernels import current_stream

        draw_cuda_kernels.bind_uniforms(stream, shape, rect, first, second, current_stream())()
        return first, second
    starts, length = runs(shape, rect)
    u, v = (as_plain(part).view(-1, length).numpy() for part in (first, second))
    _uniforms(u, v, starts, as_plain(clock).numpy(), np.uint64(stream.operator))
    return first, second
