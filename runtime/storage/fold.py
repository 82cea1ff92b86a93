"""The fused fold: partial sums added up in one pass over memory, always from the left.

torch adds two tensors at a time and writes what it has so far after each: for n parts it moves 3(n-1) elements where
one pass moves n+1. Here up to four parts are one pass:

    parts a b c d e f g    target = a+b+c+d, then target = target+e+f+g
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes

DTYPES = (torch.float32, torch.float64)


@numba.njit(cache=True, nogil=True)
def _two(target: Floats, a: Floats, b: Floats) -> None:
    for i in range(target.size):
        target[i] = a[i] + b[i]


@numba.njit(cache=True, nogil=True)
def _three(target: Floats, a: Floats, b: Floats, c: Floats) -> None:
    for i in range(target.size):
        target[i] = a[i] + b[i] + c[i]


@numba.njit(cache=True, nogil=True)
def _four(target: Floats, a: Floats, b: Floats, c: Floats, d: Floats) -> None:
    for i in range(target.size):
        target[i] = a[i] + b[i] + c[i] + d[i]


_PASSES: dict[int, Any] = {2: _two, 3: _three, 4: _four}  # numba's dispatchers have no type that says what they take


def bind_sum(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> Callable[[], object] | None:
    """Bind ``target := parts[0] + parts[1] + ...`` in as few passes as can be; None where torch's own are as good.

    Args:
        target: The view written; it may be the first part.
        parts: Views of the same shape.
    """
    if len(parts) <= 2 or target.dtype not in DTYPES or not all(part.is_contiguous() for part in (target, *parts)):
        return None
    written, *read = (part.view(-1).numpy() for part in (target, *parts))
    groups = [(written, *read[:4])]
    groups += [(written, written, *read[first : first + 3]) for first in range(4, len(read), 3)]
    typeof: Callable[[object], object] = numba.typeof
    calls: list[Callable[[], object]] = []
    for arrays in groups:
        kernel = _PASSES[len(arrays) - 1]
        kernel.compile(tuple(typeof(array) for array in arrays))
        calls.append(partial(kernel, *arrays))
    if len(calls) == 1:
        return calls[0]

    def fold() -> None:
        for call in calls:
            call()

    return fold
