"""Chains of launches that need each other: when values are there at the earliest.

Of each region there are two times. *First*: before it no element that the step writes is there. *Last*: not every
element is there before it. A part of a launch waits for some element of each region of which every part uses some; and
among the parts of a launch that together use a whole region is one that waits for its last element.

    a    writes R in parts that end at 3 and at 9        R: first 3, last 9
    b    reads R wholly, one part takes 1                first 3 + 1, last 9 + 1
    c    reads a slice of R                              first 3 + 1, last 3 + 1
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, final

from maniple.strategies.bound.span import regions_written

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from maniple.strategies.bound.span import Span

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Ends:
    """When the parts of each launch end at the earliest, in nanoseconds.

    Args:
        first: before it no part of the launch ends.
        last: not all parts of the launch end before it.
    """

    first: tuple[float, ...]
    last: tuple[float, ...]


def ends(spans: Sequence[Span]) -> Ends:
    """When the launches of a step end at the earliest."""
    first_there: dict[int, float] = {}
    last_there: dict[int, float] = {}
    first: list[float] = []
    last: list[float] = []
    for span in spans:
        soonest = latest = 0.0
        for access in span.accesses:
            if not access.requirement.privilege.reads:
                continue
            region = access.requirement.region.id
            if access.uses.by_every_part:
                soonest = max(soonest, first_there.get(region, 0.0))
            if access.uses.together:
                latest = max(latest, first_there.get(region, 0.0))
            if access.uses.wholly:
                latest = max(latest, last_there.get(region, 0.0))
        first.append(soonest + span.least)
        last.append(max(soonest, latest) + span.least)
        _written(span, first[-1], last[-1], first_there, last_there)
    return Ends(tuple(first), tuple(last))


def _written(
    span: Span, first: float, last: float, first_there: dict[int, float], last_there: dict[int, float]
) -> None:
    """Note when what a launch writes is there."""
    for access in regions_written(span.accesses):
        region, uses = access.requirement.region.id, access.uses
        own_first = first if uses.wholly else 0.0
        own_last = last if uses.by_every_part else first if uses.together else 0.0
        if access.requirement.privilege.reduces:  # a reader waits for every contribution
            own_first, own_last = max(own_first, first_there.get(region, 0.0)), max(own_last, last_there.get(region, 0.0))
        first_there[region], last_there[region] = own_first, own_last


def shortest_ways(spans: Sequence[Span], goals: Container[int], unread: float) -> list[float]:
    """For each launch the shortest chain that leads on from its end.

    Args:
        spans: the launches, in program order.
        goals: regions with which a chain ends when they are written.
        unread: what a chain comes to at a region that no launch reads.
    """
    needed: dict[int, float] = {}
    found = []
    for span in reversed(spans):
        written = [access.requirement.region.id for access in regions_written(span.accesses)]
        ways = [0.0 if region in goals else needed.get(region, unread) for region in written]
        found.append(min(ways, default=0.0))
        for access in span.accesses:
            if access.requirement.privilege.reads:
                region = access.requirement.region.id
                needed[region] = min(needed.get(region, inf), found[-1] + span.least)
    return found[::-1]
