"""Chrome's trace event format: how a timeline is drawn in Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.runtime.observe.timeline import Span, Timeline

__all__: list[str] = []

Entry = dict[str, object]


def chrome_trace(timeline: Timeline) -> dict[str, object]:
    """Draw a timeline.

    A process per rank, and in it a row for the program's launches, one per processor, one for the copy engine, and
    the bytes of its memory as a graph; below them a process with the critical path. Dependences are arrows between
    spans, as are the shares of one movement on different ranks. Spans of the critical path say so in their arguments.

    Args:
        timeline: the timeline.
    """
    return {"traceEvents": _Drawing(timeline).entries(), "displayTimeUnit": "ms"}


class _Drawing:
    """One timeline with its time origin, its rows and what is critical in it."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._origin = min((event.time_ns for event in timeline.events), default=0)
        lanes = sorted({(span.rank, span.lane) for span in timeline.spans})
        self._threads = {lane: number for number, lane in enumerate(lanes)}
        self._critical = {id(span) for span in timeline.critical_path}

    def entries(self) -> list[Entry]:
        timeline = self._timeline
        found: list[Entry] = []
        for rank, node in enumerate(timeline.nodes):
            found.append(_name_entry("process_name", rank, 0, f"node {node} (rank {rank})"))
        for (rank, lane), thread in self._threads.items():
            found.append(_name_entry("thread_name", rank, thread, lane))
        found += [self._span(span) for span in timeline.spans]
        found += self._path()
        found += self._memory()
        found += self._movements()
        found += self._dependences()
        return found

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._origin) / 1e3

    def _span(self, span: Span) -> Entry:
        arguments: Entry = {"run": span.item[0], "row": span.item[1]}
        arguments |= {f"{kind}_us": self._us(time_ns) for kind, time_ns in span.marks}
        if id(span) in self._critical:
            arguments["critical"] = True
        return {
            "ph": "X",
            "name": span.name,
            "cat": span.category,
            "pid": span.rank,
            "tid": self._threads[span.rank, span.lane],
            "ts": self._us(span.start_ns),
            "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": arguments,
        }

    def _path(self) -> list[Entry]:
        """Draw the critical path once more, in a row of its own."""
        path = self._timeline.critical_path
        if not path:
            return []
        process = len(self._timeline.nodes)
        found = [_name_entry("process_name", process, 0, "critical path")]
        for span in path:
            place = {"pid": process, "tid": 0, "cat": "critical path", "args": {"rank": span.rank, "lane": span.lane}}
            found.append({**self._span(span), **place})
        return found

    def _memory(self) -> list[Entry]:
        """Graph the bytes that are allocated in each rank's memories, from the beginning of the timeline on."""
        held: dict[tuple[int, str], int] = {}
        found: list[Entry] = []
        for event in self._timeline.events:
            if event.category != "memory":
                continue
            lane = event.rank, event.lane
            held[lane] = held.get(lane, 0) + (event.size if event.kind == "allocated" else -event.size)
            place = {"pid": event.rank, "ts": self._us(event.time_ns)}
            found.append({"ph": "C", "name": event.lane, **place, "args": {"bytes": held[lane]}})
        return found

    def _movements(self) -> list[Entry]:
        """Draw an arrow from the first share of a movement to those of other ranks."""
        ends: dict[tuple[int, int], list[Span]] = {}
        for span in self._timeline.spans:
            if span.lane == "copy engine":
                ends.setdefault(span.item, []).append(span)
        found = []
        for (run, row), (first, *rest) in sorted(ends.items()):
            for span in rest:
                found += self._arrow(f"{run}.{row}.{span.rank}", first, first.start_ns, span, span.end_ns)
        return found

    def _dependences(self) -> list[Entry]:
        """Draw an arrow from the end of a span to the start of one that waits for it, where both ran on one rank."""
        spans = {(span.rank, span.item): span for span in self._timeline.spans if span.category != "launch"}
        ranks = range(len(self._timeline.nodes))
        found = []
        for before, after in self._timeline.dependences:
            for rank in ranks:
                first, then = spans.get((rank, before)), spans.get((rank, after))
                if first is not None and then is not None:
                    name = f"{before[0]}.{before[1]}-{after[0]}.{after[1]}.{rank}"
                    found += self._arrow(name, first, first.end_ns, then, then.start_ns)
        return found

    def _arrow(self, name: str, first: Span, start_ns: int, then: Span, end_ns: int) -> list[Entry]:
        shared: Entry = {"name": first.name, "cat": "flow", "id": name}
        ends = (first.rank, self._threads[first.rank, first.lane]), (then.rank, self._threads[then.rank, then.lane])
        return [
            {**shared, "ph": "s", "pid": ends[0][0], "tid": ends[0][1], "ts": self._us(start_ns)},
            {**shared, "ph": "f", "bp": "e", "pid": ends[1][0], "tid": ends[1][1], "ts": self._us(end_ns)},
        ]


def _name_entry(what: str, process: int, thread: int, name: str) -> Entry:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
