"""The critical path of a timeline: what made it as long as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.runtime.observe.timeline import Item, Span

__all__: list[str] = []


def critical_path(spans: Sequence[Span], dependences: Iterable[tuple[Item, Item]]) -> tuple[Span, ...]:
    """Walk back from the span that ended last; `Timeline.critical_path` has the rule and its table.

    Clocks of two hosts agree only within their error, so a span may seem to begin before what it waited for ended: what
    counts is that the one ended before the other.

    Args:
        spans: ordered by start.
        dependences: (item, item that waits for it).
    """
    if not spans:
        return ()
    shares: dict[Item, list[Span]] = {}
    lanes: dict[tuple[int, str], list[Span]] = {}
    preceding: dict[int, Span] = {}
    for span in spans:
        shares.setdefault(span.item, []).append(span)
        lane = lanes.setdefault((span.rank, span.lane), [])
        if lane:
            preceding[id(span)] = lane[-1]
        lane.append(span)
    awaited: dict[Item, list[Item]] = {}
    for before, after in dependences:
        awaited.setdefault(after, []).append(before)

    def order(span: Span) -> tuple[int, int, Item]:
        return span.end_ns, span.rank, span.item

    path = [max(spans, key=order)]
    while True:
        span = path[-1]
        candidates = [share for item in awaited.get(span.item, ()) for share in shares.get(item, ())]
        candidates += shares[span.item]
        if id(span) in preceding:
            candidates.append(preceding[id(span)])
        earlier = [other for other in candidates if order(other) < order(span)]
        if not earlier:
            return tuple(reversed(path))
        path.append(max(earlier, key=order))
