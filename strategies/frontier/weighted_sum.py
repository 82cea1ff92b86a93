r"""Weighted sums: the points of a frontier that are least in memory + weight x ticks, and what no point can beat.

Each weight is one elimination over least sums. Beginning with the leanest and the fastest point, the weight of the line
through two neighbouring points gives one between them, or proves that none lies below the line (Y. Aneja and K. Nair,
Bicriteria transportation problem, Management Science 25, 1979). What lies above the line and before both points, in the
*gap* between them, no weight reaches:

    ticks
      |  a . . . corner
      |    \  gap  .          a, b: points. A point of the gap has less memory than b and fewer ticks than a, so it
      |       \    .          is in the triangle between the line and the corner (memory of b, ticks of a).
      |          \ .
      |            b    memory
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.elimination.course import Course, Known
from maniple.strategies.elimination.min_plus import Costs, MinPlus
from maniple.strategies.elimination.variable_elimination import Table, VariableElimination, begin, finish
from maniple.strategies.frontier.algebra import reduce, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from maniple.strategies.frontier.additive_model import Model, Term
    from maniple.strategies.frontier.algebra import Column

    Floats = npt.NDArray[np.float64]

__all__: list[str] = []

ROUNDING = 1e-9
"""By what share a weighted sum of floating-point numbers may be wrong."""
EDGE = 1e-12
"""The weight of the ticks for the leanest point, and of the memory for the fastest, where both are of one size."""

COURSES = 64
"""So many orders of elimination are kept, of models of different shapes."""


@final
@dataclass(frozen=True, slots=True)
class Found:
    """An assignment.

    Args:
        memory: its bytes.
        ticks: its nanoseconds.
        chosen: the choice of every operator.
        homes: where its weights live.
    """

    memory: int
    ticks: int
    chosen: tuple[int, ...]
    homes: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rivals:
    """What an assignment of a part competes with besides: wholes that are known, and what every whole needs.

    A whole takes at least what its part does, and at least the floor, so one that is known stands for every whole with
    a part if it needs no more than 1 + epsilon times as much as the part and the floor, whichever is more:

        ticks
          | k    .           k: wholes that are known; floor: (m, t)
          |      .  part     A part that has fewer ticks than the first k and less memory than the second one
        t | . . .+. . .      may be of a whole that neither stands for; another is not looked for.
          |      .     k
                 m           memory

    Args:
        memory: of wholes that are known, ascending.
        ticks: the same of their ticks, descending.
        floor: the bytes and the nanoseconds that a whole with this part needs at least.
    """

    memory: Column = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ticks: Column = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    floor: tuple[int, int] = (0, 0)

    def corners(self, known: Sequence[Found], epsilon: float) -> tuple[Floats, Floats]:
        """Memory and ticks below which a part between the first and the last of some lies that none stands for.

        Args:
            known: points of the part that are known, memory ascending and ticks descending.
            epsilon: by what share what stands for another may need more.
        """
        lean, fast = known[0], known[-1]
        first = max(int(np.searchsorted(self.memory, lean.memory, "right")) - 1, 0)
        last = int(np.searchsorted(self.memory, fast.memory, "right"))
        own = np.asarray([(one.memory, one.ticks) for one in known], dtype=np.int64)
        memory, ticks = (
            np.concatenate((column[first:last], mine))
            for column, mine in zip((self.memory, self.ticks), own.T, strict=True)
        )
        kept = reduce(memory, ticks)
        most, slowest = memory[kept[1:]] / (1.0 + epsilon), ticks[kept[:-1]] / (1.0 + epsilon)
        room = (most > max(lean.memory, self.floor[0])) & (slowest > max(fast.ticks, self.floor[1]))
        return most[room], slowest[room]

    def stand(self, epsilon: float) -> bool:
        """Whether a known whole stands for every one with this part, and none of those is the leanest or the fastest.

        Args:
            epsilon: by what share it may need more.
        """
        if not len(self.memory) or self.floor[0] < self.memory[0] or self.floor[1] < self.ticks[-1]:
            return False
        place = int(np.searchsorted(self.memory, (1.0 + epsilon) * self.floor[0], "right")) - 1
        return bool(self.ticks[place] <= (1.0 + epsilon) * self.floor[1])


ALONE = Rivals()
"""Nothing besides."""


@final
@dataclass(frozen=True, slots=True)
class Gap:
    """What lies between two neighbouring points.

    Args:
        lean: the one with less memory.
        fast: the one with fewer ticks.
        weights: of memory and ticks, for which both points have the same sum.
        least: no assignment has a smaller sum with these weights.
        between: points that are known to lie between the two, memory ascending and ticks descending.
        rivals: what stands for points of the gap besides.
    """

    lean: Found
    fast: Found
    weights: tuple[float, float]
    least: float
    between: tuple[Found, ...] = ()
    rivals: Rivals = ALONE

    def bound(self, epsilon: float) -> float:
        """What a point of the gap stays below that nothing known stands for; at most `least`: there is none.

        One point stands for another if it needs at most 1 + epsilon times its memory and its ticks. Of two neighbours a
        and b, a point that a does not stand for has fewer ticks than those of a / (1 + epsilon), one that b does not
        stand for less memory than that of b / (1 + epsilon).
        """
        return self.bounds(epsilon)[0][1]

    def bounds(self, epsilon: float) -> tuple[tuple[tuple[float, float], float], ...]:
        """All weights and what such a point stays below by them: the gap's own, memory alone, and ticks alone."""
        memory, ticks = self.rivals.corners((self.lean, *self.between, self.fast), epsilon)
        sums = self.weights[0] * memory + self.weights[1] * ticks
        above = sums > self.least  # below the others there is nothing
        return (
            (self.weights, float(sums[above].max(initial=-np.inf))),
            ((1.0, 0.0), float(memory[above].max(initial=-np.inf))),
            ((0.0, 1.0), float(ticks[above].max(initial=-np.inf))),
        )

    def beside(self, found: Sequence[Found]) -> Rivals:
        """What a part of the gap competes with: all that is known, and, beside the gap, what is not asked for.

        Args:
            found: points that are known besides.
        """
        known = [self.lean, *self.between, self.fast, *found]
        ends = np.asarray([(0, self.lean.ticks), (self.fast.memory, 0)], dtype=np.int64)
        own = np.concatenate([np.asarray([(one.memory, one.ticks) for one in known], dtype=np.int64), ends]).T
        return Rivals(*union((self.rivals.memory, self.rivals.ticks), (own[0], own[1])), self.rivals.floor)


@final
class WeightedSums:
    """The weighted sums of a model.

    Args:
        model: the model.
        entries: the largest table to make.
    """

    def __init__(self, model: Model, entries: int) -> None:
        self.model, self._entries = model, entries
        self.inexact: tuple[int, ...] = ()
        numbers: dict[tuple[int, bool], int] = {}
        self._terms: list[tuple[Term, bool]] = []
        self._known: list[tuple[tuple[int, ...], int]] = []
        own = [((number,), term) for number, term in enumerate(model.own)]
        for scope, term in [*own, *sorted(model.edges.items(), key=lambda item: item[0])]:
            key = id(term), len(scope) == 1
            if key not in numbers:
                numbers[key] = len(self._terms)
                self._terms.append((term, len(scope) == 1))
            self._known.append((scope, numbers[key]))
        self._courses: dict[bool, Course[Costs] | None] = {}

    def eliminate(self, weights: tuple[float, float], *, squares: bool = False) -> VariableElimination[Costs]:
        """The finished elimination for some weights of memory and ticks; alike operators share its steps.

        Args:
            weights: of memory and of ticks.
            squares: whether long chains of equal layers are squared; min-marginals are of folded ones.
        """
        given, course = self._given(weights), self._course(squares=squares)
        if course is not None:
            return course.repeat(MinPlus(), given)
        tables = [Table(scope, given[number]) for scope, number in self._known]
        (end,) = finish(begin(MinPlus(), self.model.sizes, tables, self._entries, {}, squares=squares), 1)
        self.inexact = end.inexact
        return end

    def _given(self, weights: tuple[float, float]) -> list[Costs]:
        """What is known for some weights, that of alike operators once."""
        given: list[Costs] = []
        for (memory, ticks), own in self._terms:
            sums = weights[0] * memory + weights[1] * ticks
            given.append(sums.min(axis=1) if own else sums)
        return given

    def _course(self, *, squares: bool) -> Course[Costs] | None:
        """The order of the steps, which is one for all weights; None where it depends on them."""
        if squares not in self._courses:
            found = self._courses[squares] = _course_of(
                self.model.sizes, tuple(self._known), self._entries, squares=squares
            )
            if squares and (found is None or not found.squares):
                self._courses[False] = found
        return self._courses[squares]

    def least(self, weights: tuple[float, float]) -> tuple[Found, float]:
        """The assignment of least sum, and the sum as floating-point numbers have it."""
        course = self._course(squares=True)
        if course is not None:
            steps, closed = course.outcome(MinPlus(), self._given(weights))
        else:
            end = self.eliminate(weights, squares=True)
            steps, closed = [(step.operator, step.neighbours, step.best) for step in end.steps], end.closed
        chosen = [0] * len(self.model.sizes)
        for operator, neighbours, best in reversed(steps):
            chosen[operator] = int(np.asarray(best)[tuple(chosen[other] for other in neighbours)])
        places, homes = np.asarray(chosen, dtype=np.int64), np.zeros(len(chosen), dtype=np.int64)
        for (memory, ticks), scopes in self.model.alike()[0]:
            rows = places[scopes[:, 0]]
            homes[scopes[:, 0]] = np.argmin(weights[0] * memory[rows] + weights[1] * ticks[rows], axis=1)
        found = Found(*self.model.total(chosen, homes.tolist()), tuple(chosen), tuple(homes.tolist()))
        return found, sum(float(costs) for costs in closed)

    def sweep(self, epsilon: float, cores: int, rivals: Rivals = ALONE) -> tuple[list[Found], list[Gap]]:
        """The points that weighted sums reach, memory ascending, and the gaps that may hold more.

        Args:
            epsilon: a gap in which what is known stands for all others is none, and its weight is not tried.
            cores: how many threads eliminate.
            rivals: what stands for points besides.
        """
        ends = ((1.0, 0.0), (0.0, 1.0))
        self._course(squares=True)  # before threads ask for it
        with ThreadPoolExecutor(cores) as threads:
            rough = [found for found, _ in threads.map(self.least, ends)]
            scale = max(rough[0].memory, 1) / max(rough[1].ticks, 1)
            (lean, _), (fast, _) = threads.map(self.least, ((1.0, EDGE * scale), (EDGE / scale, 1.0)))
            lean, fast = _leanest([*rough, lean, fast]), _fastest([*rough, lean, fast])
            points, gaps = {(found.memory, found.ticks): found for found in (lean, fast)}, list[Gap]()
            open_pairs = list(_pairs([lean, fast], epsilon, rivals))
            while open_pairs:
                weights = [(float(a.ticks - b.ticks), float(b.memory - a.memory)) for a, b in open_pairs]
                following: list[tuple[Found, Found]] = []
                for (a, b), pair, (found, least) in zip(
                    open_pairs, weights, threads.map(self.least, weights), strict=True
                ):
                    line = pair[0] * a.memory + pair[1] * a.ticks
                    if pair[0] * found.memory + pair[1] * found.ticks >= line * (1.0 - ROUNDING):
                        known = tuple(relinked(self.model, a, b))
                        gaps.append(Gap(a, b, pair, min(least, line) * (1.0 - ROUNDING), known, rivals))
                        points.update({(one.memory, one.ticks): one for one in known})
                    else:
                        points[found.memory, found.ticks] = found
                        following += _pairs([a, found, b], epsilon, rivals)
                open_pairs = following
        ordered = undominated(points.values())
        kept = [gap for gap in gaps if gap.bound(epsilon) > gap.least]
        return ordered, sorted(kept, key=lambda gap: gap.lean.memory)


@lru_cache(maxsize=COURSES)
def _course_of(
    sizes: tuple[int, ...], tables: tuple[Known, ...], entries: int, *, squares: bool
) -> Course[Costs] | None:
    """See `Course.of`: models of one shape, such as a stage with more or less in flight, have one."""
    return Course.of(sizes, tables, entries, squares=squares)


def relinked(model: Model, lean: Found, fast: Found) -> list[Found]:
    """The best assignments between two that have the choices of one up to some operator, then those of the other.

    Where layers are alike, those of some layers cost almost as little as all or none.
    """
    ways = (lean, fast), (fast, lean)
    memory, ticks = (np.concatenate([_mixed(model, before, after, axis) for before, after in ways]) for axis in (0, 1))
    inside = (memory < fast.memory) & (memory > lean.memory) & (ticks > fast.ticks) & (ticks < lean.ticks)
    # Only those that stay are written out: of a deep model there are some of very many.
    kept = np.flatnonzero(inside)[reduce(memory[inside], ticks[inside])]
    found = []
    for place in kept.tolist():
        way, length = divmod(place, len(memory) // 2)
        before, after = ways[way]
        chosen = before.chosen[:length] + after.chosen[length:]
        homes = before.homes[:length] + after.homes[length:]
        found.append(Found(int(memory[place]), int(ticks[place]), chosen, homes))
    return found


def _mixed(model: Model, before: Found, after: Found, axis: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """By length the total of the assignment that has so many choices of the first, and then those of the second."""
    count = len(model.sizes)
    one, other = (np.asarray((part.chosen, part.homes), dtype=np.int64) for part in (before, after))
    # What is added when the length becomes this large.
    steps = np.zeros(count + 2, dtype=np.int64)
    own, edges = model.alike()
    for term, scopes in own:
        mine, theirs = (term[axis][part[0, scopes[:, 0]], part[1, scopes[:, 0]]] for part in (one, other))
        steps[0] += theirs.sum()
        steps[scopes[:, 0] + 1] += mine - theirs
    for term, scopes in edges:
        costs, (a, b) = term[axis], scopes.T
        neither, both, first = (costs[x[0, a], y[0, b]] for x, y in ((other, other), (one, one), (one, other)))
        steps[0] += neither.sum()
        np.add.at(steps, a + 1, first - neither)
        np.add.at(steps, b + 1, both - first)
    return np.cumsum(steps)[: count + 1]


def undominated(found: Iterable[Found]) -> list[Found]:
    """The assignments that no other one beats, memory ascending; of equals the first."""
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: (one.memory, one.ticks)):
        if not kept or one.ticks < kept[-1].ticks:
            kept.append(one)
    return kept


def _pairs(points: list[Found], epsilon: float, rivals: Rivals) -> Iterable[tuple[Found, Found]]:
    """The neighbours between which there is room for points that nothing known stands for."""
    for lean, fast in pairwise(points):
        if len(rivals.corners((lean, fast), epsilon)[0]):
            yield lean, fast


def _leanest(found: list[Found]) -> Found:
    return min(found, key=lambda one: (one.memory, one.ticks))


def _fastest(found: list[Found]) -> Found:
    return min(found, key=lambda one: (one.ticks, one.memory))
