"""The rule of averages, for CUDA: what is updated is an average, and what stands for its gradient is the value.

On the host torch's own operation goes through an average as fast as one that is compiled here.
"""

from __future__ import annotations

from math import inf

import numba

from maniple.operators.training.clipping import Floats
from maniple.operators.training.element_rule import FLAG, ElementRule, Numbers

__all__: list[str] = []


@numba.njit(nogil=True)
def prepare(row: Floats, settings: Floats, numbers: Floats) -> None:
    """What an average takes, whether it begins; no value is clipped."""
    numbers[0] = 1.0
    numbers[1] = inf
    numbers[2] = 1.0 - settings[FLAG]
    numbers[3] = 1.0 if row[0] <= 1.0 else 0.0


@numba.njit(nogil=True)
def element(
    average: float, value: float, a: float, b: float, c: float, n: Numbers
) -> tuple[float, float, float, float]:
    """The next average of one element."""
    return value if n[3] != 0 else average + n[2] * (value - average), a, b, c


RULE = ElementRule((), "decay", prepare, element)
