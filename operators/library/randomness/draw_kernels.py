"""The drawing kernel: two uniform numbers for every element of a tile, by counter.

Element ``e`` of the whole tensor, counted row-major, has the Philox4x32-10 block whose counter is (``e``, step) and
whose key is the seed xor the operator's number: the first two words give one number of 53 bits, the others another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from maniple.operators.library.randomness.dropout_kernels import Clock, Word, Words, make_key, philox, runs
from maniple.operators.operator.random_stream import RandomStream
from maniple.process.compilation.compiled import kernel
from maniple.regions.rectangle import Rect

Numbers = npt.NDArray[np.float64]


@kernel
def _uniforms(first: Numbers, second: Numbers, starts: Words, clock: Clock, operator: Word) -> None:
    low, high = make_key(clock[0], operator)
    time, word, cut = np.uint64(clock[1]), np.uint64(32), np.uint64(11)
    for run in range(first.shape[0]):
        for i in range(first.shape[1]):
            a, b, c, d = philox(starts[run] + np.uint64(i), time, low, high)
            first[run, i] = float(((a << word) | b) >> cut) * 2.0**-53
            second[run, i] = float(((c << word) | d) >> cut) * 2.0**-53


def uniforms(stream: RandomStream, shape: tuple[int, ...], rect: Rect) -> tuple[Numbers, Numbers]:
    """Two numbers in [0, 1) for every element of a tile, in the step that runs: multiples of 2^-53.

    Args:
        stream: Of the operator.
        shape: Of the whole tensor.
        rect: The tile.
    """
    starts, length = runs(shape, rect)
    first, second = (np.empty((len(starts), length)) for _ in range(2))
    _uniforms(first, second, starts, stream.clock.cpu().numpy(), np.uint64(stream.operator))
    return first.reshape(rect.shape), second.reshape(rect.shape)
