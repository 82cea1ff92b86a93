"""The trade-off between a long path and much work: what no number of parts makes short at once.

The more parts an operator is cut into, the shorter is each, and the longer do all of them take together: each has a
launch of its own, and reads weights, or whatever its factors do not cut, again. So of any chain of launches and for
any share s

    step >= s * chain + (1 - s) * work / processors >= sum over operators of the least, over all cuts, of that sum

and each operator's least is its own. The chain is the longest of all where operators are cut so often as there are
processors.

    linear, whole 80 us, launch 7 us, 16 processors      1 part   16 parts   64 parts
    the smallest part                                    87 us    12 us      8.3 us
    all parts, over 16 processors                        5.4 us   12 us      33 us      s=1/2: no cut is below 12 us
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.schedule.roofline import efficiency
from maniple.strategies.bound.launch_chain import longest_chain
from maniple.strategies.bound.whole_step import node_of, patterns_of, rule_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.rules.pattern import Pattern
    from maniple.operators.rules.rule import BoundFactor, BoundRule
    from maniple.strategies.bound.span import Rates, Span

    Column = np.ndarray[tuple[int], np.dtype[np.float64]]
    Degrees = np.ndarray[tuple[int, int], np.dtype[np.float64]]

__all__: list[str] = []

SHARES = (*(2.0**-step for step in range(8, 0, -1)), 0.625, 0.75, 0.875)
"""The shares that are tried."""
PARTS_OF_PROCESSOR = 4
MOST_PARTS = 96
"""Cuts of up to so many parts, for each processor and in all, are told apart; all finer ones count as one."""


@final
@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts of one launch.

    Args:
        least: nanoseconds of the smallest part, by cut.
        work: nanoseconds of all parts, by cut.
    """

    least: Column
    work: Column


def trade_off_ns(spans: Sequence[Span], rates: Rates, processors: int) -> float:
    """What a step takes at least because no cut of an operator makes both its path short and its work little.

    Args:
        spans: the launches of the step.
        rates: of the machine.
        processors: of the machine.
    """
    most = min(PARTS_OF_PROCESSOR * processors, MOST_PARTS)
    cuts = [_cuts(span, rates, most) for span in spans]
    usual = [float(np.min(cut.least + cut.work / processors)) for cut in cuts]
    chain = set(longest_chain(spans, usual))
    paths: dict[int, Column] = {}
    works: dict[int, Column] = {}
    for at, (span, cut) in enumerate(zip(spans, cuts, strict=True)):
        node = node_of(span.launch)
        # An operator's launches are cut alike; any other is cut by itself.
        owner = at if node is None else -1 - node.id
        works[owner] = works.get(owner, np.zeros(1)) + cut.work / processors
        paths[owner] = paths.get(owner, np.zeros(1)) + cut.least * (at in chain)
    return max(
        sum(float(np.min(share * paths[owner] + (1 - share) * works[owner])) for owner in works) for share in SHARES
    )


def _cuts(span: Span, rates: Rates, most: int) -> Cuts:
    """The cuts of a launch into at most so many parts, all finer ones, and for a composite its primitives."""
    node, bound = node_of(span.launch), rule_of(span.launch)
    if node is None or bound is None or span.free:
        return Cuts(np.asarray([span.least]), np.asarray([span.work]))
    exchanged = node.operator.exchanges()
    degrees = _degrees(bound.factors, exchanged, most)
    extents = np.asarray([factor.extent for factor in bound.factors], dtype=np.float64)
    share = np.prod(np.floor(extents / degrees) / extents, axis=1)
    flops = span.launch.flops[0] if span.launch.flops else 0.0
    together, smallest = _bytes(span, bound, degrees)
    busy = flops / (efficiency(span.launch.kind) * rates.flops_per_ns)
    rounded = 1.0 if rates.launch_ns else 2 / 3
    least = rates.launch_ns + rounded * np.maximum(busy * share, smallest / rates.bytes_per_ns)
    parts = np.prod(degrees, axis=1)
    work = parts * rates.launch_ns + rounded * np.maximum(busy, together / rates.bytes_per_ns)
    # A finer cut, and a composite that is replaced: as little as any.
    finer = max(span.work, (most + 1) * rates.launch_ns)
    others = [(span.least, finer)] + ([(rates.launch_ns, span.work)] if exchanged else [])
    return Cuts(
        np.concatenate([least, [one for one, _ in others]]), np.concatenate([work, [all_ for _, all_ in others]])
    )


def _bytes(span: Span, bound: BoundRule, degrees: Degrees) -> tuple[Column, Column]:
    """Bytes that all parts of each cut use, and that the smallest part uses."""
    together, smallest = np.zeros(len(degrees)), np.zeros(len(degrees))
    places = {factor.name: place for place, factor in enumerate(bound.factors)}
    for access, pattern in zip(span.accesses, patterns_of(span.launch), strict=True):
        itemsize = access.requirement.region.itemsize
        again, least = np.ones(len(degrees)), np.ones(len(degrees))
        if pattern is not None:
            known = {*pattern.factors, pattern.joins}
            for name, place in places.items():
                if name not in known:
                    again *= degrees[:, place]
            least *= _smallest(access.requirement.region.bounds.shape, pattern, bound, degrees, access.uses.least)
        together += itemsize * access.uses.together * again
        smallest += itemsize * (0.0 if access.uses.first_only else np.maximum(least, access.uses.least))
    return together, smallest


def _smallest(shape: Sequence[int], pattern: Pattern, bound: BoundRule, degrees: Degrees, least: int) -> Column:
    """The elements of a tensor that the smallest part of each cut uses; those of the finest cut where a window is."""
    if any(dimension.halo is not None for dimension in pattern.dimensions):
        return np.full(len(degrees), float(least))
    used = np.ones(len(degrees))
    names: Mapping[str, int] = {factor.name: place for place, factor in enumerate(bound.factors)}
    for extent, name in zip(shape, bound.cuts(pattern), strict=True):
        if name is None:
            used *= extent
        else:
            factor = bound.factors[names[name]]
            used *= np.floor(factor.extent / degrees[:, names[name]]) * (extent // factor.extent)
    return used


@lru_cache(maxsize=512)
def _degrees(factors: tuple[BoundFactor, ...], exchanged: tuple[str, ...], most: int) -> Degrees:
    """All degrees of the factors that make at most so many parts; a factor that is exchanged stays whole."""
    rows: Degrees = np.ones((1, 0))
    parts = np.ones(1)
    for factor in factors:
        highest = 1 if factor.name in exchanged else min(most, factor.highest_degree)
        places, chosen = np.nonzero(np.outer(parts, np.arange(1, highest + 1)) <= most)
        wider: Degrees = np.empty((len(places), rows.shape[1] + 1))
        wider[:, :-1], wider[:, -1] = rows[places], chosen + 1
        rows = wider
        parts = parts[places] * (chosen + 1)
    return rows
