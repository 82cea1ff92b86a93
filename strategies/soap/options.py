"""Options: all choices of all operators, numbered in one sequence."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, final

from maniple.strategies.interface.space import Choice

if TYPE_CHECKING:
    from maniple.strategies.interface.space import Space

__all__: list[str] = []


@final
class Options:
    """The choices of a space: those of the first operator, in the order of ``OperatorSpace.choices``, then the next's.

    Args:
        space: the space; its choices are too many to be written down, and are made when they are asked for.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        starts: dict[object, list[int]] = {}
        self._splits: list[list[int]] = []
        for own in space.operators:
            if own not in starts:
                sizes = (own.processors * len(own.strides(prod(degrees) * r)) for degrees, r in own.splits())
                starts[own] = [0, *accumulate(sizes)]
            self._splits.append(starts[own])
        self._operators = [0, *accumulate(found[-1] for found in self._splits)]

    @property
    def count(self) -> int:
        """How many there are."""
        return self._operators[-1]

    def at(self, number: int) -> tuple[int, Choice]:
        """The operator and the choice of a number from 0 to ``count``."""
        operator = bisect_right(self._operators, number) - 1
        rest = number - self._operators[operator]
        own, starts = self._space.operators[operator], self._splits[operator]
        split = bisect_right(starts, rest) - 1
        degrees, replicas = own.splits()[split]
        strides = own.strides(prod(degrees) * replicas)
        start, stride = divmod(rest - starts[split], len(strides))
        return operator, Choice(degrees, replicas, start, strides[stride])
