"""Draws on CUDA: the numbers of the CPU bit for bit, a thread for each element of a tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from maniple.operators.library.randomness.dropout_cuda_kernels import philox_words, runs_of
from maniple.operators.library.randomness.dropout_kernels import Word, make_key
from maniple.operators.operator.random_stream import RandomStream
from maniple.regions.rectangle import Rect
from maniple.runtime.devices.cuda_kernels import DeviceArray, bind_launch, cuda, flat


@cuda.jit
def _uniforms(first: Any, second: Any, starts: Any, length: int, clock: Any, operator: Word) -> None:
    """As ``draw_kernels``: two words of a block for one number, two for the other."""
    low, high = make_key(clock[0], operator)
    word, cut = np.uint64(32), np.uint64(11)
    for i in range(cuda.grid(1), starts.size * length, cuda.gridsize(1)):
        place = np.uint64(starts[i // length]) + np.uint64(i % length)
        a, b, c, d = philox_words(place, np.uint64(clock[1]), low, high)
        first[i] = float(((np.uint64(a) << word) | np.uint64(b)) >> cut) * 2.0**-53
        second[i] = float(((np.uint64(c) << word) | np.uint64(d)) >> cut) * 2.0**-53


def bind_uniforms(
    stream: RandomStream,
    shape: tuple[int, ...],
    rect: Rect,
    first: DeviceArray,
    second: DeviceArray,
    launched: object = 0,
) -> Callable[[], None]:
    """A function that draws two numbers for every element of a tile; see ``draw_kernels.uniforms``.

    Args:
        stream: Of the operator; its clock lies on the device.
        shape: Of the whole tensor.
        rect: The tile.
        first: float64, contiguous; written.
        second: Likewise.
        launched: The stream of numba.
    """
    starts, length, _ = runs_of(shape, rect)
    arguments = (flat(first), flat(second), starts, length, flat(stream.clock), np.uint64(stream.operator))
    return bind_launch(_uniforms, rect.volume, arguments, launched)
