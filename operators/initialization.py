"""Initial values: torch's layer defaults, each element a pure function of (seed, parameter's name, its global index).

torch.nn draws weights and biases of linear and convolution from U(-1/sqrt(fan_in), 1/sqrt(fan_in)) (kaiming_uniform
with a = sqrt(5)). The numbers here are drawn by counter, so a tile's values are the slice of the whole's, whatever the
partition.
"""

from __future__ import annotations

import hashlib
from math import prod, sqrt

import numpy as np
import numpy.typing as npt

from maniple.operators.node import TensorInfo
from maniple.operators.philox import uniform
from maniple.regions.error import RequestError
from maniple.regions.rectangle import Rect

_CHUNK = 1 << 16
_DTYPES = {"float32": np.float32, "float64": np.float64}


def initial(parameter: TensorInfo, rect: Rect, seed: int) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """The initial values of a parameter's elements in ``rect``.

    Drawn with 53 bits in float64. A float32 parameter's values are the float64 ones of the same seed and name, rounded
    to the nearest float32.

    Args:
        parameter: Of a graph.
        rect: Inside the parameter's shape.
        seed: 0 <= seed < 2^64.

    Raises:
        RequestError: A seed out of range, a tensor that is no parameter, or a dtype that is no float.
    """
    if not 0 <= seed < 1 << 64:
        raise RequestError(f"seed: expected 0 <= seed < 2^64, got {seed}")
    if parameter.kind != "parameter" or parameter.fan_in < 1 or parameter.dtype not in _DTYPES:
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
        flat[start : start + _CHUNK] = _draw(part, parameter, seed)
    return values


def _draw(index: npt.NDArray[np.uint64], parameter: TensorInfo, seed: int) -> npt.NDArray[np.float64]:
    """The values at flat global indices."""
    digest = hashlib.blake2b(parameter.name.encode(), digest_size=8).digest()
    stream = np.frombuffer(digest, dtype="<u4").astype(np.uint64)
    mask, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = (index & mask, index >> word, stream[0:1], stream[1:2])
    numbers = uniform(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return (2.0 * numbers - 1.0) * (1.0 / sqrt(parameter.fan_in))


def _global_indices(shape: tuple[int, ...], rect: Rect) -> npt.NDArray[np.uint64]:
    """The flat row-major index in the whole of every element of ``rect``, flattened."""
    index = np.zeros((1,) * len(shape), np.uint64)
    for axis, (low, high) in enumerate(zip(rect.lo, rect.hi, strict=True)):
        stride = np.uint64(prod(shape[axis + 1 :]))
        along = np.arange(low, high, dtype=np.uint64) * stride
        index = index + along.reshape(-1, *(1,) * (len(shape) - axis - 1))
    return index.reshape(-1)
