"""Routes: which links a transfer between two memories crosses, and so what it shares with other transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.runtime.machine.machine_part import Link, Memory, Rate

    Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
    Costs = np.ndarray[tuple[int, int], np.dtype[np.float64]]

__all__: list[str] = []

Hops = list[tuple[int, int, float]]
"""A memory's links to switches, or from them, ascending: (number, switch, cost)."""
Way = tuple[int, tuple[int, ...], int]

ROUTED_BYTES = 1 << 20
"""A route is the quickest way for a transfer of this size on idle links."""


class Routes:
    """The route from every memory to every other: links in order, numbered as listed.

    A transfer goes over the link that joins the two memories, or else over switches, the quickest way; memories do
    not pass on what is not theirs. A pair of memories without any way has a link of its own with the rate of its
    class, numbered ``len(links) + source * memories + target``:

        0 --a--> s --b--> 1          pair  route
        0 --c--> 2                   0, 1  a b
        1 --d--> s                   0, 2  c
                                     1, 0  its own

    Args:
        name: the machine's name, for messages.
        memories: all memories.
        switches: the names of all switches.
        links: the listed links.
        within_host: rate of a pair of one host that has no way; None: there must be one.
        between_hosts: likewise for memories of two hosts.

    Raises:
        RequestError: two memories have neither a way nor a rate.
    """

    def __init__(
        self,
        name: str,
        memories: Sequence[Memory],
        switches: Sequence[str],
        links: Sequence[Link],
        within_host: Rate | None,
        between_hosts: Rate | None,
    ) -> None:
        self.count = len(memories)
        self.links = tuple(links)
        self._rates = (between_hosts, within_host)
        self._hosts = [memory.host for memory in memories]
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}
        self._ways: dict[tuple[int, int], Way | None] = {}
        self._places = {switch: place for place, switch in enumerate(switches)}
        self._direct = {
            (link.source, link.target): number
            for number, link in enumerate(links)
            if isinstance(link.source, int) and isinstance(link.target, int)
        }
        self._between, self._last = self._switch_paths()
        self._out, self._into = self._hops()
        self._exits, self._entries = _kinds(self._out), _kinds(self._into)
        self._check(name)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Give the numbers of the links from one memory to another, in order; they must be two."""
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = self._find(source, target)
        return found

    def rate(self, number: int) -> tuple[float, float]:
        """Give the latency (s) and bandwidth (bytes/s) of a link by number."""
        if number < len(self.links):
            link = self.links[number]
            return link.latency_s, link.bandwidth
        source, target = divmod(number - len(self.links), self.count)
        rate = self._rates[self._hosts[source] == self._hosts[target]]
        if rate is None:
            msg = f"link {number} does not exist"
            raise KeyError(msg)
        return rate.latency_s, rate.bandwidth

    def name(self, number: int) -> str:
        """Name a link, such as ``0 -> nvswitch0``."""
        if number < len(self.links):
            return f"{self.links[number].source} -> {self.links[number].target}"
        source, target = divmod(number - len(self.links), self.count)
        return f"{source} -> {target}"

    @property
    def kinds(self) -> list[int]:
        """A number for each memory: routes over switches to, and from, those of one number differ in one link."""
        found: dict[tuple[int, int], int] = {}
        return [found.setdefault(pair, len(found)) for pair in zip(self._exits, self._entries, strict=True)]

    def ways(self) -> Iterator[tuple[int, int, Way]]:
        """Give (kind, kind, the way between memories of these), as far as there is one; see `kinds`."""
        kinds = self.kinds
        one = {kind: memory for memory, kind in reversed(list(enumerate(kinds)))}
        for first, source in sorted(one.items()):
            for second, target in sorted(one.items()):
                way = self._way(self._out[source], self._into[target])
                if way is not None:
                    yield first, second, way

    @property
    def ends(self) -> tuple[list[list[int]], list[list[int]]]:
        """The numbers of each memory's links to switches, and of those from switches: ways tell of them by place."""
        out, into = ([[number for number, *_ in each] for each in hops] for hops in (self._out, self._into))
        return out, into

    @property
    def joined(self) -> dict[tuple[int, int], int]:
        """The numbers of the links that join two memories."""
        return dict(self._direct)

    @property
    def size(self) -> int:
        """One more than the highest number of a link."""
        return len(self.links) + self.count * self.count

    def _find(self, source: int, target: int) -> tuple[int, ...]:
        if (source, target) in self._direct:
            return (self._direct[source, target],)
        kinds = self._exits[source], self._entries[target]
        if kinds not in self._ways:
            self._ways[kinds] = self._way(self._out[source], self._into[target])
        way = self._ways[kinds]
        if way is None:
            return (len(self.links) + source * self.count + target,)
        leave, between, enter = way
        return (self._out[source][leave][0], *between, self._into[target][enter][0])

    def _way(self, out: Hops, into: Hops) -> Way | None:
        """Give the quickest way between memories with such links: the places of its ends, and what is between."""
        best = (np.inf, -1, -1)
        for leave, (_, exit_switch, exit_cost) in enumerate(out):
            for enter, (_, entry_switch, entry_cost) in enumerate(into):
                cost = exit_cost + self._between[exit_switch, entry_switch] + entry_cost
                best = min(best, (cost, leave, enter))
        _, leave, enter = best
        if leave < 0:
            return None
        start, place = out[leave][1], into[enter][1]
        between: list[int] = []
        while place != start:
            link = int(self._last[start, place])
            between.append(link)
            place = self._places[str(self.links[link].source)]
        return leave, tuple(reversed(between)), enter

    def _cost(self, link: Link) -> float:
        return link.latency_s + ROUTED_BYTES / link.bandwidth

    def _switch_paths(self) -> tuple[Costs, Table]:
        """Give the least cost between switches and the last link of that path (Floyd and Warshall)."""
        count = len(self._places)
        cost = np.full((count, count), np.inf)
        np.fill_diagonal(cost, 0.0)
        last = np.full((count, count), -1, dtype=np.int64)
        for number, link in enumerate(self.links):
            if isinstance(link.source, str) and isinstance(link.target, str):
                ends = self._places[link.source], self._places[link.target]
                cost[ends] = self._cost(link)
                last[ends] = number
        for middle in range(count):
            through = cost[:, middle, None] + cost[None, middle, :]
            better = through < cost
            cost = np.where(better, through, cost)
            last = np.where(better, np.broadcast_to(last[middle], last.shape), last)
        return cost, last

    def _hops(self) -> tuple[list[Hops], list[Hops]]:
        """Give each memory's links to switches and from switches: (number, switch, cost)."""
        out: list[Hops] = [[] for _ in range(self.count)]
        into: list[Hops] = [[] for _ in range(self.count)]
        for number, link in enumerate(self.links):
            if isinstance(link.source, int) and isinstance(link.target, str):
                out[link.source].append((number, self._places[link.target], self._cost(link)))
            if isinstance(link.target, int) and isinstance(link.source, str):
                into[link.target].append((number, self._places[link.source], self._cost(link)))
        return out, into

    def _check(self, name: str) -> None:
        """Refuse a pair of memories with neither a way nor a rate; memories wired alike are looked at once."""
        if None not in self._rates:
            return
        ways = np.isfinite(self._between)
        exits = [frozenset(switch for _, switch, _ in hops) for hops in self._out]
        entries = [frozenset(switch for _, switch, _ in hops) for hops in self._into]
        reached = {
            (first, second): any(ways[a, b] for a in first for b in second)
            for first in set(exits)
            for second in set(entries)
        }
        if all(reached.values()):
            return
        far = {first: {second for second in set(entries) if not reached[first, second]} for first in set(exits)}
        for source in range(self.count):
            for target in range(self.count) if far[exits[source]] else ():
                rate = self._rates[self._hosts[source] == self._hosts[target]]
                joined = (source, target) in self._direct or entries[target] not in far[exits[source]]
                if source != target and rate is None and not joined:
                    which = "within_host" if self._hosts[source] == self._hosts[target] else "between_hosts"
                    raise RequestError(
                        f"machine {name}: links: no way leads from memory {source} to memory {target}; add the "
                        f"missing links, or give the rate {which}"
                    )


def _kinds(hops: Sequence[Hops]) -> list[int]:
    """Number the memories' links by what they lead to, and what that costs; equal ones alike."""
    kinds: dict[tuple[tuple[int, float], ...], int] = {}
    return [kinds.setdefault(tuple((switch, cost) for _, switch, cost in each), len(kinds)) for each in hops]
