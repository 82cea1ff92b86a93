"""Initial values: torch's layer defaults, each element a pure function of (seed, parameter's name, its global index).

torch.nn draws weights and biases of linear and convolution from U(-1/sqrt(fan_in), 1/sqrt(fan_in)) (kaiming_uniform
with a = sqrt(5)), and those of an embedding from N(0, 1). The numbers here are drawn by counter, so a tile's values are
the slice of the whole's, whatever the partition.
"""

from __future__ import annotations

import hashlib
from math import pi, prod

import numpy as np
import numpy.typing as npt

from maniple.operators.graph.node import TensorInfo
from maniple.operators.operator.operator import Initial
from maniple.operators.operator.philox import uniform
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

_CHUNK = 1 << 16
_DTYPES = {"float32": np.float32, "float64": np.float64}


def initial(parameter: TensorInfo, rect: Rect, seed: int) -> npt.NDArray[np.generic]:
    """The initial values of a parameter's or buffer's elements in ``rect``, as its ``Initial`` says.

    Drawn with 53 bits in float64. A float32 parameter's values are the float64 ones of the same seed and name, rounded
    to the nearest float32.

    Args:
        parameter: Of a graph.
        rect: Inside the parameter's shape.
        seed: 0 <= seed < 2^64.

    Raises:
        RequestError: A seed out of range, a tensor that has no initial values, or random ones that are no floats.
    """
    if not 0 <= seed < 1 << 64:
        raise RequestError(f"seed: expected 0 <= seed < 2^64, got {seed}")
    chosen = parameter.initial
    if chosen is not None and chosen.kind == "constant":
        return np.full(rect.shape, chosen.scale, np.dtype(parameter.dtype))
    if chosen is None or parameter.dtype not in _DTYPES:
        raise RequestError(
            f"initial values: expected a parameter of dtype float32 or float64, "
            f"got {parameter.kind} '{parameter.name}' of dtype {parameter.dtype}"
        )
    dtype = _DTYPES[parameter.dtype]
    index = _global_indices(parameter.shape, rect)
    values = np.empty(rect.shape, dtype)
    flat = values.reshape(-1)
    # In chunks that stay in the cache: the ten rounds go over them ten times.
    for start in range(0, flat.size, _CHUNK):
        part = index[start : start + _CHUNK]
        flat[start : start + _CHUNK] = _draw(part, parameter.name, chosen, seed)
    return values


def _draw(index: npt.NDArray[np.uint64], name: str, chosen: Initial, seed: int) -> npt.NDArray[np.float64]:
    """The values at flat global indices."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    stream = np.frombuffer(digest, dtype="<u4").astype(np.uint64)
    mask, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = (index & mask, index >> word, stream[0:1], stream[1:2])
    numbers = uniform(counter, (seed & 0xFFFFFFFF, seed >> 32))
    if chosen.kind == "uniform":
        return (2.0 * numbers - 1.0) * chosen.scale
    # Box and Muller: two uniform numbers, the second of them from another word of the counter, give one normal one.
    second = uniform(
        (counter[0], counter[1] | np.uint64(1 << 31), counter[2], counter[3]), (seed & 0xFFFFFFFF, seed >> 32)
    )
    return chosen.scale * np.sqrt(-2.0 * np.log1p(-numbers)) * np.cos(2.0 * pi * second)


def _global_indices(shape: tuple[int, ...], rect: Rect) -> npt.NDArray[np.uint64]:
    """The flat row-major index in the whole of every element of ``rect``, flattened."""
    index = np.zeros((1,) * len(shape), np.uint64)
    for axis, (low, high) in enumerate(zip(rect.lo, rect.hi, strict=True)):
        stride = np.uint64(prod(shape[axis + 1 :]))
        along = np.arange(low, high, dtype=np.uint64) * stride
        index = index + along.reshape(-1, *(1,) * (len(shape) - axis - 1))
    return index.reshape(-1)
