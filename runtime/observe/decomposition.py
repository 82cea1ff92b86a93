"""Decompositions: what the time of a step went into at one rank, of a measured timeline and of a simulated one alike.

Every nanosecond of every lane of the rank counts once, for the first of these that holds, and the lanes are averaged:

    =======  ==========================================================================================
    term     what
    =======  ==========================================================================================
    compute  a task runs on the lane
    folds    a fold runs on the lane
    copies   a movement that the rank takes part in is under way; the folds inside a collective are part of it
    waiting  a step is under way
    program  none is: what the program does between steps
    =======  ==========================================================================================

So the terms add up to the time from the end of the step before to the end of this one. A receiver's share of a copy
begins when its lane begins to wait, long before anything may be sent; the copy is under way from when its sender has
begun, which is the share that ends first. A collective is under way from when all its ranks have begun:

    p0   step    task  task  .     .     task        compute 3/6   copies 1/6   waiting 1/6   program 1/6
         copy    .     [awaited    made] .
    p1   .       task  task  [made     ]
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.observe.timeline import Event, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maniple.runtime.observe.timeline import Item, Span, Timeline

__all__: list[str] = []

Interval = tuple[int, int]
STEP, PERIOD = "step", "period"
"""Categories of the spans of a whole step: from its submission to its end, and from the end of the one before."""
PROGRAM = "program"


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of a step by what they went into.

    Args:
        compute: tasks.
        folds: folds of contributions.
        copies: movements between memories.
        waiting: nothing of these, in a step.
        program: between steps.
    """

    compute: float
    folds: float
    copies: float
    waiting: float
    program: float

    @property
    def step_s(self) -> float:
        """What they add up to."""
        return self.compute + self.folds + self.copies + self.waiting + self.program


def whole_step(rank: int, run: int, before_ns: int, begun_ns: int, ended_ns: int) -> Iterator[Event]:
    """The events of a whole step at a rank.

    Args:
        rank: the rank.
        run: the submission.
        before_ns: when the step before had ended; when this one was submitted, if it is the first.
        begun_ns: when it was submitted.
        ended_ns: when all of it had ended here.
    """
    for category, start in ((PERIOD, before_ns), (STEP, begun_ns)):
        place = (rank, PROGRAM, category, category, run, -1)
        yield Event(Kind.STARTED, start, *place)
        yield Event(Kind.ENDED, ended_ns, *place)


def decompose(timeline: Timeline, rank: int) -> Terms:
    """Say what a step went into at a rank.

    Args:
        timeline: the events of all ranks, those of `whole_step` among them.
        rank: the rank.

    Raises:
        RequestError: the timeline says nothing of the whole step there.
    """
    mine = [span for span in timeline.spans if span.rank == rank]
    period = next((span for span in mine if span.category == PERIOD), None)
    if period is None:
        raise RequestError(f"decomposition: the timeline has no whole step of rank {rank}")
    steps = [_of(span) for span in mine if span.category == STEP]
    moves = list(_under_way(timeline.spans, rank))
    lanes: dict[str, tuple[list[Interval], list[Interval]]] = defaultdict(lambda: ([], []))
    for span in mine:
        if span.category in {"task", "fold"}:
            lanes[span.lane][span.category == "fold"].append(_of(span))
    found = [_shares(_of(period), [tasks, folds, moves, steps]) for tasks, folds in lanes.values() or [([], [])]]
    return Terms(*(sum(column) / len(found) / 1e9 for column in zip(*found, strict=True)))


def _of(span: Span) -> Interval:
    return span.start_ns, span.end_ns


def _under_way(spans: Iterable[Span], rank: int) -> Iterator[Interval]:
    """When movements that a rank takes part in are under way there."""
    shares: dict[Item, list[Span]] = {}
    for span in spans:
        if span.category not in {"task", "fold", STEP, PERIOD}:
            shares.setdefault(span.item, []).append(span)
    for everyone in shares.values():
        for own in everyone:
            if own.rank != rank:
                continue
            if own.category == "copy":
                begun = min(everyone, key=lambda span: (span.end_ns, span.rank)).start_ns
            else:
                begun = max(span.start_ns for span in everyone)
            yield min(max(own.start_ns, begun), own.end_ns), own.end_ns


def _shares(window: Interval, layers: Iterable[list[Interval]]) -> list[int]:
    """How much of a window each layer takes of what those before have left, and what the last leaves."""
    taken: list[Interval] = []
    found, before = [], 0
    for layer in layers:
        taken = _union([*taken, *((max(a, window[0]), min(b, window[1])) for a, b in layer)])
        covered = sum(b - a for a, b in taken)
        found.append(covered - before)
        before = covered
    return [*found, window[1] - window[0] - before]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
