"""Equal splits: the configurations of the published searches, in which all parts of an operator are equal.

OptCNN (Z. Jia et al., ICML 2018, section 4) and FlexFlow (Z. Jia et al., SysML 2019, section 4) cut the dimensions of
an operator's result: its samples, attributes and parameters, each into equal parts. What is summed over stays whole,
but for the samples of a loss.

    linear, b=6 n=4 k=5 on 4 processors     b=1 n=1, b=1 n=2, b=1 n=4, b=2 n=1, b=2 n=2, b=3 n=1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.rules.rule import BoundFactor

__all__: list[str] = []


def equal_splits(factors: Sequence[BoundFactor], processors: int) -> tuple[tuple[int, ...], ...]:
    """The degrees of every equal split into at most so many tasks, in lexicographic order.

    Args:
        factors: the factors of the operator's rule, with extents.
        processors: the most tasks.
    """
    vectors: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for factor in factors:
        most = 1 if factor.role == "reduction" else factor.highest_degree
        vectors = [
            ((*degrees, degree), tasks * degree)
            for degrees, tasks in vectors
            for degree in range(1, min(most, processors // tasks) + 1)
            if factor.extent % degree == 0
        ]
    return tuple(degrees for degrees, _ in vectors)
