"""Gaps searched: the points of a frontier that no weighted sum reaches.

A choice of an operator can be left out of a gap if no assignment with it comes into the gap: if its least sum, with the
weights of the gap, is above what a point of the gap stays below (`min_marginal`, `weighted_sum.Gap.bound`). Of the
choices that are left, mostly few, frontiers are eliminated, and nothing above the memory of the gap is kept. With
epsilon 0 that gives the points of the gap exactly.

**The bound.** Every assignment p has a point q of the result with memory(q) <= (1 + epsilon) memory(p) and ticks(q) <=
(1 + epsilon) ticks(p). Proof: p lies in a gap, or one of the points that weighted sums reach is at least as good, for
below the line of a gap there is nothing. Let a share s with (1 + s)^2 <= 1 + epsilon. If a known point of the gap, an
end or one between, stands for p with 1 + s, that is q. If not, all its choices are among those that are left, since
their least sums are no larger than p's own, which is below the bound. So the elimination meets p. There p may be left
out in two ways:

    thinned   the place of a part of p takes another with no more ticks and at most d times the memory of the part, or
              of the lean end, more, in each of n sums, one upon the other, and d is such that (1 + d)^n = 1 + s. So of
              every step there is an assignment r, what stands there for a part of p with all else of p, and ticks(r)
              <= ticks(p). It has at least the memory of the lean end, than which it has fewer ticks, for nothing beats
              that; so each sum adds at most d times memory(r), and memory(r) <= (1 + s) memory(p).
    `Below`   a part of r is dropped, for with the least of all else, and so with all else of p, too, it is above a
              bound. Where r has at least 1 / (1 + s) of the memory of the fast end, that stands for p: it needs at most
              (1 + s) memory(r), and has no more ticks than p, which is in the gap. Where r has at least that share of
              the ticks of the lean end, so has p, and the lean end stands for it. Else r is in the gap, and less than
              what neighbours a and b of the known points have at a corner: memory(b) / (1 + s), ticks(a) / (1 + s). If
              no known point stands for r with 1 + s, r is below such a corner, and of all that are not below the line
              of the gap each bound is the largest: r is not above it. So one stands for r

If r is never dropped, the point that is left of p is q, or is beaten by q, with 1 + s. If it is, what stands for it is
q: with 1 + s times the memory and the ticks of r, so (1 + s)^2 <= 1 + epsilon times the memory of p, and 1 + s times
its ticks. That is what the second 1 + s is for.

**Branches.** Where the choices that are left would make too many entries, one operator is conditioned on, the one by
which the ends of the gap differ most: for each of its choices, with each of its homes, the gap is searched by itself,
from weighted sums on. Mostly a wide gap is where a single operator changes, and no weighted sum reaches what the
others could do meanwhile:

    operators              bytes, or nanoseconds        weighted sums reach      between 3 and 13 bytes
    one                    10, or 65                                             with none of its 10: 4 5 6 7 8
    eight more, each        1, or 9 8 7 6 5 4 3 2       0 1 2 3 13 14 .. 18      with them: 10 11 12

What is known already are rivals of every branch (below), and two more beside the gap, for what a branch has there is
not asked for: one that needs no memory and the ticks of the lean end, and one that needs no ticks and the memory of the
fast end. Every p of the gap is in one branch, and has a q there, or one of those two stands for p, or for its r. If
the first does, the ticks of the lean end are at most 1 + s times those of r, so of p, and p has no less memory: the
lean end is q. If the other does, the memory of the fast end is at most 1 + s times that of r, so (1 + s)^2 times that
of p, which has no fewer ticks: the fast end is q. A branch in a branch has the gaps of both, in which p is.

**Rivals.** Where p is a part of a whole that needs the larger of p and of what other parts and a floor need, wholes
that are known are known points, too, and all that is said above of memory(p) and ticks(p), and of r, is said of the
larger of these and of the floor. What is then left out has a point, or a known whole, that needs at most 1 + epsilon
times what the whole does. Both ends are found whatever rivals there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.elimination.min_marginal import least_sums
from maniple.strategies.elimination.variable_elimination import Table, begin, finish
from maniple.strategies.frontier.additive_model import Model
from maniple.strategies.frontier.algebra import UNLIMITED, reduce
from maniple.strategies.frontier.contraction import Kept, contracted
from maniple.strategies.frontier.frontiers import Below, Frontiers
from maniple.strategies.frontier.weighted_sum import ALONE, ROUNDING, Found, Rivals, WeightedSums, undominated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from maniple.strategies.elimination.min_plus import Costs
    from maniple.strategies.frontier.contraction import Contraction
    from maniple.strategies.frontier.weighted_sum import Gap

__all__: list[str] = []

ENTRIES = 1_000_000
"""The largest table of frontiers that is made."""
BRANCHES = 64
"""So many eliminations conditioning may make."""
MOST_ENTRIES = 1 << 20
"""A gap whose elimination would make tables of more entries in all is searched in branches."""
CROWDED = 1 << 14
"""A frontier of more points is thinned by what is allowed, though all of it is known: choices are kept as objects, and
those of a stage of Inception-v3 took 10 GB."""
FLOOR_ROUNDING = 1e-6
"""By what share the leanest point of a gap may have more memory than one in it, for its sum is rounded."""
LARGEST = 20_000_000
"""The largest table of least sums that is made."""
EXACT_ENTRIES = 20_000
"""A model whose widest table, with those of all its steps, has no more entries is eliminated whole, without a sum that
is not exact."""


@final
@dataclass(frozen=True, slots=True)
class Solution:
    """The frontier of a model.

    Args:
        points: memory ascending, ticks descending.
        epsilon: by what share a point may need more memory, and more ticks, than an assignment that it stands for.
        inexact: the operators that kept a choice because tables would have been too large; of the others, epsilon
            says how exact the answer is.
        gap: by what share a plan may need less memory and less time than a point that stands for it, where weights are
            shared; None where no weight is, or it is not known.
    """

    points: tuple[Found, ...]
    epsilon: float
    inexact: tuple[int, ...]
    gap: float | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What is left of a model in a gap.

    Args:
        kept: of every operator the choices.
        least: of each choice of every operator, those that are not left, too, the least sum with the gap's weights.
    """

    kept: Kept
    least: tuple[Costs, ...]


def solve(model: Model, epsilon: float, cores: int, limit: int = UNLIMITED, rivals: Rivals = ALONE) -> Solution:
    """The frontier of a model.

    Args:
        model: the model.
        epsilon: by what share at most points may need more than an assignment that they stand for.
        cores: how many threads eliminate.
        limit: points that need more memory are left out: with epsilon 0 the last point is the fastest within it.
        rivals: what stands for points besides; both ends of the frontier are there in any case.
    """
    # Beside rivals little is left of a frontier, and all of it would be made.
    if rivals is ALONE and _effort(model, EXACT_ENTRIES) <= EXACT_ENTRIES:
        whole = contracted(model, tuple(np.arange(size) for size in model.sizes))
        points, inexact, thinned = _eliminate(whole, limit, 0.0, cores, crowded=epsilon)
        return Solution(tuple(points), epsilon if thinned else 0.0, inexact)
    points, inexact = search_gaps(model, epsilon, cores, rivals)
    return Solution(tuple(point for point in points if point.memory <= limit), epsilon, inexact)


def search_gaps(
    model: Model, epsilon: float, cores: int, rivals: Rivals = ALONE
) -> tuple[list[Found], tuple[int, ...]]:
    """The points that weighted sums reach and those in their gaps, and the operators that kept a choice."""
    return _search(model, (1.0 + epsilon) ** 0.5 - 1.0, cores, rivals)


def _search(model: Model, share: float, cores: int, rivals: Rivals) -> tuple[list[Found], tuple[int, ...]]:
    """The same, by the share of which two make an epsilon."""
    sums = WeightedSums(model, LARGEST)
    points, gaps = sums.sweep(share, cores, rivals)
    inexact = sums.inexact
    if not inexact:
        for gap, left in _screened(sums, gaps, share):
            small = contracted(model, left.kept)
            if _effort(small.model, MOST_ENTRIES) <= MOST_ENTRIES:
                found, kept_choice, _ = _eliminate(small, UNLIMITED, share, cores, gap)
            else:
                found, kept_choice = _branched(model, gap, left, share, cores)
            points, inexact = [*points, *found], (*inexact, *kept_choice)
    return undominated(points), tuple(sorted(set(inexact)))


def _branched(model: Model, gap: Gap, left: Left, share: float, cores: int) -> tuple[list[Found], tuple[int, ...]]:
    """The points of a gap, for each choice and home of one operator by itself; and who kept a choice."""
    number, found, inexact = _most_different(model, gap), list[Found](), set[int]()
    for least, choice, home in _places(model, gap, left, number):
        # What was found in one branch, others need not find.
        rivals = gap.beside(found)
        bound = replace(gap, rivals=rivals).bound(share) * (1.0 + ROUNDING)
        if least > bound:
            break
        kept = [choices[own[choices] <= bound] for choices, own in zip(left.kept, left.least, strict=True)]
        kept[number] = np.asarray([choice])
        small = contracted(model, tuple(kept), {number: home})
        points, kept_choice = _search(small.with_base(), share, cores, rivals)
        found += small.lifted(points)
        inexact |= {small.numbers[operator] for operator in kept_choice}
    return found, tuple(sorted(inexact))


def _places(model: Model, gap: Gap, left: Left, number: int) -> list[tuple[float, int, int]]:
    """The choices of an operator, each with each home that none beats, and their least sums, ascending."""
    memory, ticks = model.own[number]
    found = []
    for choice in left.kept[number].tolist():
        sums = gap.weights[0] * memory[choice] + gap.weights[1] * ticks[choice]
        least = left.least[number][choice] - sums.min()
        found += [(float(least + sums[home]), choice, home) for home in reduce(memory[choice], ticks[choice]).tolist()]
    return sorted(found)


def _most_different(model: Model, gap: Gap) -> int:
    """The operator by which the ends of a gap differ most, with what goes between it and its neighbours."""
    lean, fast = gap.lean, gap.fast
    differ = [(lean.chosen[n], lean.homes[n]) != (fast.chosen[n], fast.homes[n]) for n in range(len(model.sizes))]
    apart = np.zeros((len(model.sizes), 2))
    for axis in (0, 1):
        for number, term in enumerate(model.own):
            costs = term[axis]
            apart[number, axis] += costs[fast.chosen[number], fast.homes[number]]
            apart[number, axis] -= costs[lean.chosen[number], lean.homes[number]]
        for pair, term in model.edges.items():
            more = term[axis][fast.chosen[pair[0]], fast.chosen[pair[1]]]
            apart[list(pair), axis] += more - term[axis][lean.chosen[pair[0]], lean.chosen[pair[1]]]
    return int(np.argmax(np.where(differ, np.abs(apart) @ np.asarray(gap.weights), -1.0)))


def _effort(model: Model, most: int) -> int:
    """The entries of the tables of all steps of an elimination; no more are counted than the most that matter."""
    total = 0
    tables: list[Table[None]] = [Table((number,), None) for number in range(len(model.sizes))]
    tables += [Table(pair, None) for pair in model.edges]
    state = begin(_Sizes(), model.sizes, tables, UNLIMITED)
    while not state.finished and total <= most:
        total += min(state.widths.values())
        state = state.advance()
    return total


@final
class _Sizes:
    """A semiring of tables without entries, to see how large they would be."""

    def eliminate(self, operator: int, neighbours: tuple[int, ...], tables: Sequence[Table[None]]) -> tuple[None, None]:
        """Nothing."""
        del operator, neighbours, tables
        return None, None

    def favourite(self, operator: int, tables: Sequence[Table[None]]) -> int:
        """The first choice."""
        del operator, tables
        return 0

    def fix(self, costs: None, axis: int, choice: int) -> None:
        """Nothing."""
        del costs, axis, choice


def _screened(sums: WeightedSums, gaps: Sequence[Gap], share: float) -> list[tuple[Gap, Left]]:
    """The gaps that an assignment may come into, with the choices that it may have."""
    found = []
    for gap in gaps:
        # A little more than the bound stays, for sums of floating-point numbers are not exact.
        bound = gap.bound(share) * (1.0 + ROUNDING)
        least = least_sums(sums.eliminate(gap.weights), bound * (1.0 + ROUNDING)).marginals
        kept = tuple(np.flatnonzero(own <= bound) for own in least)
        if all(map(len, kept)):
            found.append((gap, Left(kept, least)))
    return found


def _below(small: Contraction, gap: Gap, share: float) -> Below | None:
    """What a point of a gap may come to in each table of an elimination; None where that is not known.

    A point of a table, with the least of all that is not in it, must stay below the bound of the gap, the memory of its
    fast end and the ticks of its lean one.
    """
    sums = WeightedSums(small.model, ENTRIES)
    weights: list[tuple[float, float]] = []
    columns: list[tuple[Costs, ...]] = []
    for pair, bound in gap.bounds(share):
        end = sums.eliminate(pair)
        if any(step.rest is None for step in end.steps):
            return None
        left = bound * (1.0 + ROUNDING) - (pair[0] * small.base[0] + pair[1] * small.base[1])
        rest = least_sums(end, left + 2.0 * ROUNDING * bound).outside
        columns.append(tuple(left - least * (1.0 - ROUNDING) for least in rest))
        weights.append(pair)
    bounds = {operator: np.stack(found, axis=-1) for operator, found in enumerate(zip(*columns, strict=True))}
    return Below(np.asarray(weights), bounds)


def _eliminate(
    small: Contraction, limit: int, share: float, cores: int, gap: Gap | None = None, crowded: float = 0.0
) -> tuple[list[Found], tuple[int, ...], bool]:
    """The frontier of some choices, which operators kept one for want of entries, and whether it was thinned at last.

    Args:
        small: the model with these choices.
        limit: points that need more memory are left out.
        share: the bound on what is left out besides, see the module.
        cores: how many threads eliminate.
        gap: what is not in this gap may be left out.
        crowded: the bound on what is left out of the whole frontier where it has more than `CROWDED` points.
    """
    operators, sizes = len(small.numbers), small.model.sizes
    below = None if gap is None else _below(small, gap, share)
    # Each table is multiplied once, and each operator summed once.
    epsilon = (1.0 + share) ** (1.0 / (2 * operators + len(small.model.edges) + 1)) - 1.0
    floor = 0 if gap is None else int(gap.lean.memory * (1.0 - FLOOR_ROUNDING))
    if limit < small.base[0]:
        return [], (), False
    semiring = Frontiers(limit=limit - small.base[0], epsilon=epsilon, floor=floor, cores=cores, below=below)
    tables, marks = [], [0]
    for number, (memory, ticks) in enumerate(small.model.own):
        alternatives = semiring.given(memory, ticks, marks[-1])
        marks.append(marks[-1] + memory.size)
        tables.append(Table((number,), semiring.choices(alternatives)))
    shared: dict[int, npt.NDArray[np.int64]] = {}
    for pair, term in small.model.edges.items():
        if id(term) not in shared:
            shared[id(term)] = semiring.given(*term, -1)
        tables.append(Table(pair, shared[id(term)]))
    ends = finish(begin(semiring, sizes, tables, ENTRIES), BRANCHES)
    cell = semiring.union([semiring.product(end.closed) for end in ends])
    inexact = tuple(sorted({small.numbers[operator] for end in ends for operator in end.inexact}))
    homes = np.asarray([memory.shape[1] for memory, _ in small.model.own], dtype=np.int64)
    thinned = bool(crowded > 0.0 and cell[1] > CROWDED)
    places = semiring.unrolled(semiring.thinned(cell, crowded) if thinned else cell, marks)
    return small.found(places // homes, places % homes), inexact, thinned
