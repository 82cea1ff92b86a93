"""Full splits: the configurations that a frontier chooses from, in which every operator runs on all processors.

Every factor has a degree that divides its extent, the parts are a divisor of the processors, and as many processors
compute each part as there are left (TensorOpt's space; Z. Cai et al., arXiv 2004.10856, section 3.1). A contribution to
a sum counts once: where a reduction is split nothing is computed twice, and processors may have nothing to do.

    linear, b=6 n=4 k=5 on 4 processors     b=1 n=1 x 4   b=1 n=2 x 2   b=1 n=4 x 1   b=2 n=1 x 2   b=2 n=2 x 1
    the same with k=4 besides               k=2   k=4   n=2 k=2   b=2 k=2
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from maniple.strategies.interface.space import Choice

if TYPE_CHECKING:
    from maniple.strategies.interface.space import Space

__all__: list[str] = []


def full_splits(space: Space, number: int) -> tuple[Choice, ...]:
    """The full splits of an operator, in lexicographic order of the degrees.

    Args:
        space: the graph's space.
        number: the operator.
    """
    own = space.operators[number]
    factors = tuple((factor.extent, factor.highest_degree, factor.reduction) for factor in own.factors)
    return _splits(factors, own.processors)


@lru_cache(maxsize=4096)
def _splits(factors: tuple[tuple[int, int, bool], ...], processors: int) -> tuple[Choice, ...]:
    """Those of an operator whose factors have these extents, highest degrees, and are reductions or not."""
    vectors: list[tuple[int, ...]] = [()]
    for extent, highest, _ in factors:
        vectors = [
            (*degrees, degree)
            for degrees in vectors
            for degree in range(1, min(highest, processors // prod(degrees)) + 1)
            if extent % degree == 0 and processors % (prod(degrees) * degree) == 0
        ]
    found = []
    for degrees in vectors:
        reduces = any(degree > 1 and reduction for degree, (_, _, reduction) in zip(degrees, factors, strict=True))
        found.append(Choice(degrees, 1 if reduces else processors // prod(degrees)))
    return tuple(found)
