"""Traffic: how long a movement takes and how long it holds each link, from what it sends from where to where.

A transfer holds every link of its route from its start, each for as long as that link needs for the bytes, and ends
when the slowest link has passed them and the last one has arrived. A collective sends what the runtime sends (every
contribution straight to its owner, then every block straight to all others): on each link for the sum of it, at
different times on different links, so it ends a latency per phase after the busiest link is free:

    4 bytes from 0 over switch s to 1; links 0-s: 2 B/s, s-1: 1 B/s, 1 s of latency each
    0-s  ##..        held for 2 s
    s-1  ####        held for 4 s; the transfer ends at 6 s
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.runtime.route import Routes

__all__: list[str] = []


def traffic_ns(
    routes: Routes, pushes: Iterable[tuple[int, int, int]], phases: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Give the nanoseconds of a movement (at least 1), and (link, nanoseconds that it is held) by ascending link.

    Args:
        routes: the routes of the machine.
        pushes: (source memory, target memory, bytes).
        phases: 2 where some pushes wait for others of the same movement, else 1.
    """
    load: dict[int, int] = {}
    latency = 0.0
    for source, target, size in pushes:
        route = routes.route(source, target)
        for link in route:
            load[link] = load.get(link, 0) + size
        latency = max(latency, sum(routes.rate(link)[0] for link in route))
    held = tuple((link, int(1e9 * size / routes.rate(link)[1])) for link, size in sorted(load.items()))
    return max(1, max(span for _, span in held) + int(1e9 * latency) * phases), held
