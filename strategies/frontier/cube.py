"""Cubes: layouts of operators on q x q x q processors, those of 3-D parallelism among them.

Each axis of the cube cuts one factor of an operator, or holds replicas. On processors (i, j, l), numbered row-major,
with Y = X A, X of rows b and columns k, and A of rows k and columns n (Z. Bian et al., Maximizing Parallelism in
Distributed Training for Huge Neural Networks, arXiv 2105.14450):

    layout     axes cut    the task at (i, j, l) reads and gives
    3-D        b n k       X of rows i and columns l, A of rows l and columns j; one of q contributions to Y of (i, j)
    the next   b k n       what has columns j there is read by columns j: j and l change places, layer by layer
    between    b n b       rows i and, of those, l, and columns j: contributions are added where they are read
    2-D        b b n       where two axes cut one factor
    1-D        n n n       and so on: data, model and expert parallelism are layouts of a cube, too
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.strategies.interface.space import Choice

if TYPE_CHECKING:
    from maniple.strategies.interface.space import OperatorSpace, Space

__all__: list[str] = []

CUBES = {edge**3: edge for edge in range(2, 17)}
"""The edge of a cube of so many processors."""


def cube_splits(space: Space, number: int) -> tuple[Choice, ...]:
    """The layouts of an operator on the processors as a cube; of those that are one plan, one.

    Args:
        space: the graph's space.
        number: the operator.

    Raises:
        RequestError: the processors are no cube.
    """
    own = space.operators[number]
    if own.processors not in CUBES:
        raise RequestError(
            f"space: cube: expected q^3 processors, such as 8, 27 or 64, got {own.processors}; leave it out, or take a "
            "machine of as many"
        )
    found: dict[object, Choice] = {}
    for axes in product((-1, *range(len(own.factors))), repeat=3):
        choice = on_cube(own, axes)
        if choice is not None:
            found.setdefault(own.plan(choice), choice)
    return tuple(found.values())


def on_cube(own: OperatorSpace, axes: tuple[int, ...]) -> Choice | None:
    """The layout of an operator whose factors the axes of the cube cut; None where that is none.

    Args:
        own: the operator's space.
        axes: of each axis the number of a factor, or -1: replicas, which a reduction that is cut has none of.
    """
    edge = CUBES[own.processors]
    degrees = tuple(edge ** axes.count(factor) for factor in range(len(own.factors)))
    cut = [(degree, factor) for degree, factor in zip(degrees, own.factors, strict=True) if degree > 1]
    if any(factor.extent % degree or degree > factor.highest_degree for degree, factor in cut):
        return None
    replicas = own.processors // prod(degrees)
    if replicas > 1 and any(factor.reduction for _, factor in cut):
        return None
    return Choice(degrees, replicas, mesh=tuple((edge, factor) for factor in axes))
