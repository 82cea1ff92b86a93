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


State = tuple[int, bool]
"""A launch by its place, and whether its last part is meant."""
There = dict[int, tuple[float, State | None]]
"""When something of each region is there, and whose end that is."""


@final
@dataclass(frozen=True, slots=True)
class Ends:
    """When the parts of each launch end at the earliest, in nanoseconds.

    Args:
        first: before it no part of the launch ends.
        last: not all parts of the launch end before it.
        before: for each launch whose end the one and the other waits for.
    """

    first: tuple[float, ...]
    last: tuple[float, ...]
    before: tuple[tuple[State | None, State | None], ...]


def ends(spans: Sequence[Span], least: Sequence[float] | None = None) -> Ends:
    """When the launches of a step end at the earliest.

    Args:
        spans: the launches, in program order.
        least: how long a part of each takes; by default its smallest.
    """
    first_there: There = {}
    last_there: There = {}
    first: list[float] = []
    last: list[float] = []
    before: list[tuple[State | None, State | None]] = []
    for place, span in enumerate(spans):
        own = span.least if least is None else least[place]
        soonest: tuple[float, State | None] = (0.0, None)
        latest: tuple[float, State | None] = (0.0, None)
        for access in span.accesses:
            if not access.requirement.privilege.reads:
                continue
            some = first_there.get(access.requirement.region.id, (0.0, None))
            if access.uses.by_every_part:
                soonest = _later(soonest, some)
            if access.uses.together:
                latest = _later(latest, some)
            if access.uses.wholly:
                latest = _later(latest, last_there.get(access.requirement.region.id, (0.0, None)))
        latest = _later(latest, soonest)
        first.append(soonest[0] + own)
        last.append(latest[0] + own)
        before.append((soonest[1], latest[1]))
        _note_written(span, place, (first[-1], last[-1]), first_there, last_there)
    return Ends(tuple(first), tuple(last), tuple(before))


def longest_chain(spans: Sequence[Span], least: Sequence[float]) -> list[int]:
    """The places of the launches of the longest chain, from its end, where a part of each takes so long."""
    found = ends(spans, least)
    state: State | None = (max(range(len(spans)), key=lambda place: found.last[place]), True)
    chain = []
    while state is not None:
        place, is_last = state
        chain.append(place)
        state = found.before[place][is_last]
    return chain


def _later(one: tuple[float, State | None], other: tuple[float, State | None]) -> tuple[float, State | None]:
    return other if other[0] > one[0] else one


def _note_written(span: Span, place: int, own: tuple[float, float], first_there: There, last_there: There) -> None:
    """Note when what a launch writes is there."""
    for access in regions_written(span.accesses):
        region, uses = access.requirement.region.id, access.uses
        first: tuple[float, State | None] = (own[0], (place, False)) if uses.wholly else (0.0, None)
        last: tuple[float, State | None] = (0.0, None)
        if uses.by_every_part:
            last = own[1], (place, True)
        elif uses.together:
            last = own[0], (place, False)
        if access.requirement.privilege.reduces:  # a reader waits for every contribution
            first = _later(first, first_there.get(region, (0.0, None)))
            last = _later(last, last_there.get(region, (0.0, None)))
        first_there[region], last_there[region] = first, last


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
