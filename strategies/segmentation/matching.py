"""Matching: the stages of a pipeline and the unequal processors that they run on, chosen together.

A stage runs on a *team*: so many processors of each class, which share the samples of each micro-batch evenly, so the
slowest of them and the slowest link between them set its pace. What is left to do after an ideal, by how many
processors of each class, the next stage on a given team, has a least slowest stage; it follows from what is left after
a larger ideal:

    best(i, counts, t)  =  min over ideals j that hold i:  max( stage of j without i on team t,
                               min over teams u:  max( what leaves j over the links from t to u,
                                                       best(j, counts without t, u) ) )

Where a stage is busy while it sends and receives, what crosses its cuts adds to its own time, so what is left also
depends on the team of the stage before:

    best(i, counts, t, s)  =  min over j and teams u:  max( stage of j without i on t  +  what leaves i from s to t
                                                              +  what leaves j from t to u,
                                                            best(j, counts without t, u, t) )

    two fast, two slow          straight pipelines     (1, 0) (0, 1)
    teams                       replicas               (1, 0) (2, 0) (0, 1) (0, 2) (1, 1) (1, 2) (2, 1) (2, 2)
                                replicas, of a class   (1, 0) (2, 0) (0, 1) (0, 2)      where all teams are too many

A stage that its processors have no room for does not count: with 1F1B it holds the more micro-batches, the more
processors come after it, and their number is known. Where not all ideals can be looked at in pairs, lines are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import inf
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline.coarse_graph import CoarseGraph
from maniple.strategies.pipeline.ideals import chain, enumerate_ideals
from maniple.strategies.pipeline.pipeline_timing import StageTimes
from maniple.strategies.pipeline.problem import Segmentation, Stage
from maniple.strategies.pipeline.stage_costs import Level, synchronization_s, transfer_s, work_s
from maniple.strategies.pipeline.team import Team, team_families, used, without
from maniple.strategies.segmentation.refinement import lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.fleet import Fleet
    from maniple.strategies.pipeline.ideals import Lattice
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.pipeline.stage_costs import Floats, Number
    from maniple.strategies.pipeline.team import TeamFamily

__all__: list[str] = []

MOST_IDEALS = 1_000
"""Ideals that are looked at in pairs."""
MOST_WORK = 200_000_000
"""Pairs of ideals, for all that can be left of each class and the teams that can be next."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """What is matched.

    Args:
        asked: the assumptions, how much stages hold, and whether a stage may have replicas; its levels and its limit
            are not regarded.
        costs: the graph with what it takes on a processor of each class; only times differ.
        fleet: the processors.
    """

    asked: SegmentationProblem
    costs: tuple[CostGraph, ...]
    fleet: Fleet

    def pipelines(self) -> tuple[Segmentation, ...]:
        """For each number of processors the pipeline with the least slowest stage, the fewest processors first.

        Only those that hold in memory what their stages need; and none, where the fleet has so many classes that all
        matches are too many.
        """
        graph = self.costs[0]
        whole = CoarseGraph.whole(graph)
        lattice = enumerate_ideals(whole.links, MOST_IDEALS)
        spaces = [(whole, lattice)] if lattice is not None else []
        if not spaces:
            spaces = [(found, chain(found.links)) for found in (CoarseGraph.of(graph, line) for line in lines(graph))]
        best: dict[int, Segmentation] = {}
        for coarse, found in spaces:
            for answer in self._over(coarse, found, exact=lattice is not None):
                count = sum(stage.replicas for stage in answer.stages)
                known = best.get(count)
                if known is None or answer.bottleneck_s < known.bottleneck_s:
                    best[count] = answer
        return tuple(best[count] for count in sorted(best))

    def widest(self, most: int) -> Segmentation | None:
        """The match on the most processors, of those with at most so many stages; None where there is none."""
        return next((cut for cut in reversed(self.pipelines()) if len(cut.stages) <= most), None)

    @property
    def adds(self) -> bool:
        """Whether a stage is busy while it sends and while it receives."""
        return self.asked.assumptions.transfers == "add"

    def times(self, found: Segmentation) -> tuple[StageTimes, ...]:
        """What one micro-batch takes in every stage of a pipeline."""
        given, parts = self.asked.assumptions, self.asked.assumptions.micro_batches
        teams = [self.team_of(stage) for stage in found.stages]
        times = []
        for place, (stage, team) in enumerate(zip(found.stages, teams, strict=True)):
            passes = []
            for here in used(team):
                nodes = [self.costs[here].nodes[node] for node in stage.nodes]
                forward = sum(work_s(given, node.forward_s, node.forward_start_s, stage.replicas) for node in nodes)
                backward = sum(work_s(given, node.backward_s, node.backward_start_s, stage.replicas) for node in nodes)
                passes.append((forward, backward))
            forward, backward = max(passes, key=sum)  # the slowest of the team
            last = place + 1 == len(teams)
            moved = 0.0 if last else self.moved_s(team, teams[place + 1], float(stage.sent_bytes))
            times.append(StageTimes(forward / parts, backward / parts, moved / parts / 2))
        return tuple(times)

    def team_of(self, stage: Stage) -> Team:
        """The team that a stage runs on."""
        return tuple(len(set(own).intersection(stage.devices)) for own in self.fleet.classes)

    def moved_s(self, team: Team, other: Team, size: Number) -> Number:
        """Seconds of a mini-batch in which so many bytes cross the cut between two teams: its narrow end is busy."""
        link = Level(1, self.fleet.slowest_between(used(team), used(other)))
        return size * transfer_s(self.asked.assumptions, link, min(sum(team), sum(other)), 1.0)

    def together_s(self, team: Team, work: Sequence[Floats], weights: Floats) -> Floats:
        """Seconds of a mini-batch in which stages compute and their replicas synchronise weights.

        Args:
            team: who runs them.
            work: of a processor of each of its classes, its share of all samples.
            weights: bytes of them.
        """
        given, replicas = self.asked.assumptions, sum(team)
        link = Level(replicas, self.fleet.slowest_within(team))
        agreed = weights * synchronization_s(given, link, replicas, 1, 1.0)
        slowest: Floats = reduce(np.maximum, work)
        together: Floats = slowest + agreed if given.synchronization == "add" else np.maximum(slowest, agreed)
        return together

    def _over(self, coarse: CoarseGraph, lattice: Lattice, *, exact: bool) -> Iterator[Segmentation]:
        """The best pipelines over the ideals of a coarse graph."""
        sizes = tuple(len(own) for own in self.fleet.classes)
        families = team_families(sizes, replicate=self.asked.replicate)
        family = next((each for each in families if self._work(each, len(lattice)) <= MOST_WORK), None)
        if family is None:
            return
        table = _Table.of(self, coarse, lattice, family.teams)
        for counts in sorted(product(*(range(size + 1) for size in sizes)), key=sum):
            table.fill(counts)
        for count in range(1, sum(sizes) + 1):
            first = [(key, best) for key, best in table.best.items() if sum(key[0]) == count and not any(key[2])]
            ends = [(float(best[0]), *key) for key, best in first]
            value, counts, team, _ = min(ends, default=(inf, (), (), ()))
            if value < inf:
                cuts = table.trace(counts, team)
                yield self._segmentation(coarse, lattice, cuts, value, exact=exact and family.complete)

    def _work(self, family: TeamFamily, ideals: int) -> int:
        """What looking at all teams of a family takes, in pairs of ideals."""
        return family.work(ideals) * (len(family.teams) ** 2 if self.adds else 1)

    def _segmentation(
        self, coarse: CoarseGraph, lattice: Lattice, cuts: Sequence[tuple[int, Team]], value: float, *, exact: bool
    ) -> Segmentation:
        """The pipeline that ends stages at some ideals, each on a team."""
        crossing = lattice.crossing(coarse.tensors)
        free = [list(own) for own in self.fleet.classes]
        stages, done, before = list[Stage](), set[int](), 0
        for place, (ideal, team) in enumerate(cuts):
            groups = set(lattice.nodes(ideal))
            nodes = tuple(sorted(node for group in groups - done for node in coarse.groups[group]))
            own = [self.costs[0].nodes[node] for node in nodes]
            work = [self._work_s(here, nodes, sum(team)) for here in used(team)]
            weights = float(sum(node.parameter_bytes for node in own))
            moved = [self._crosses_s(cuts, end, int(crossing[at])) for end, at in ((place, before), (place + 1, ideal))]
            held = self.asked.held_bytes(
                weights,
                sum(node.stored_bytes for node in own) + int(crossing[before]),
                sum(sum(after) for _, after in cuts[place + 1 :]),
                sum(team),
            )
            devices = tuple(free[here].pop(0) for here, count in enumerate(team) for _ in range(count))
            together = self.together_s(team, [np.asarray(each) for each in work], np.asarray(weights))
            load = float(together) + sum(moved) if self.adds else max(float(together), *moved)
            stages.append(Stage(nodes, devices, load, max(work), held, int(crossing[ideal])))
            done, before = groups, ideal
        return Segmentation(tuple(stages), value, value if exact else 0.0, exact, len(lattice), value)

    def _work_s(self, here: int, nodes: Sequence[int], replicas: int) -> float:
        """Seconds of a mini-batch in which a processor of a class computes its share of some nodes."""
        given, own = self.asked.assumptions, [self.costs[here].nodes[node] for node in nodes]
        return float(sum(work_s(given, node.compute_s, node.start_s, replicas) for node in own))

    def _crosses_s(self, cuts: Sequence[tuple[int, Team]], end: int, size: int) -> float:
        """Seconds over the cut between the stages before and after a place; none at both ends of the pipeline."""
        return self.moved_s(cuts[end - 1][1], cuts[end][1], float(size)) if 0 < end < len(cuts) else 0.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The best of what is left to do after each ideal.

    Args:
        teams: those that a stage may run on.
        seconds: by class, of all ideals, of all samples.
        starts: by class, of them what each micro-batch takes however small.
        nested: whether the second ideal holds the first, and more.
        weights: bytes of the parameters of each ideal.
        kept: bytes that each ideal keeps for backward.
        sent: bytes over the cut after each ideal.
        matching: what is matched.
        best: by the numbers of processors of each class, the team of the next stage, and where transfers add also that
            of the stage before it, the slowest stage after each ideal.
        ends: likewise the ideal that the next stage ends with, and the team of the one after it.
    """

    teams: tuple[Team, ...]
    seconds: tuple[Floats, ...]
    starts: tuple[Floats, ...]
    nested: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    weights: Floats
    kept: Floats
    sent: Floats
    matching: Matching
    best: dict[tuple[Team, Team, Team], Floats]
    ends: dict[tuple[Team, Team, Team], tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]]

    @staticmethod
    def of(matching: Matching, coarse: CoarseGraph, lattice: Lattice, teams: tuple[Team, ...]) -> _Table:
        """The table of a lattice, not yet filled."""

        def total(values: Sequence[float]) -> Floats:
            """The sum of some values of nodes over each ideal, in units that hold them exactly enough."""
            scale = max(max(values, default=0.0), 1e-300) / 2**40
            ticks = np.rint(np.asarray(values, dtype=np.float64) / scale).astype(np.int64)
            return lattice.total(coarse.gather(ticks)).astype(np.float64) * scale

        seconds = tuple(total([node.compute_s for node in graph.nodes]) for graph in matching.costs)
        starts = tuple(total([node.start_s for node in graph.nodes]) for graph in matching.costs)
        nodes, sent = matching.costs[0].nodes, lattice.crossing(coarse.tensors).astype(np.float64)
        members = lattice.members
        inside = np.stack([~(row & ~members).any(axis=1) for row in members])  # row within each of the ideals
        np.fill_diagonal(inside, val=False)
        weights, kept = total([n.parameter_bytes for n in nodes]), total([n.stored_bytes for n in nodes])
        return _Table(teams, seconds, starts, inside, weights, kept, sent, matching, {}, {})

    def fill(self, counts: Team) -> None:
        """Find the best with so many processors of each class; fewer are filled already."""
        nobody = (0,) * len(counts)
        for team in self.teams:
            rest = without(counts, team)
            if rest is not None:
                alone = self._alone(team, rest)
                for before in (nobody, *self.teams) if self.matching.adds else (nobody,):
                    self._fill((counts, team, before), rest, alone)

    def _alone(self, team: Team, rest: Team) -> Floats:
        """Seconds of a stage between each two ideals, without its transfers; infinite where it is none or too large."""
        matching = self.matching
        copies, flights = matching.asked.holding(sum(rest), sum(team))
        weights = self.weights - self.weights[:, None]
        held = copies * weights + flights * (self.kept - self.kept[:, None] + self.sent[:, None])
        work = []
        for here in used(team):
            own = work_s(matching.asked.assumptions, self.seconds[here], self.starts[here], sum(team))
            work.append(own - own[:, None])
        limit = min(matching.fleet.held_bytes[here] for here in used(team))
        alone: Floats = np.where(self.nested & (held <= limit), matching.together_s(team, work, weights), inf)
        return alone

    def _fill(self, key: tuple[Team, Team, Team], rest: Team, alone: Floats) -> None:
        """Find the best of a stage that begins after each ideal, of what may follow it."""
        (_, team, before), count = key, len(self.sent)
        if any(before):
            alone = alone + self.matching.moved_s(before, team, self.sent)[:, None]
        best, end, then = np.full(count, inf), np.zeros(count, np.int64), np.zeros(count, np.int64)
        for following, value, crossing in self._following(team, rest):
            slowest = np.maximum(alone + crossing, value)
            at = slowest.argmin(axis=1)
            found = slowest[np.arange(count), at]
            better = found < best
            best = np.where(better, found, best)
            end, then = np.where(better, at, end), np.where(better, following[at], then)
        self.best[key], self.ends[key] = best, (end, then)

    def _following(self, team: Team, rest: Team) -> Iterator[tuple[np.ndarray, Floats, Floats]]:
        """What may come after a stage on a team: by ideal who, the slowest stage then, and what adds to its own."""
        count, adds = len(self.sent), self.matching.adds
        nothing, last = np.zeros(count), np.full(count, inf)
        if not any(rest):
            last[-1] = 0.0
        least, then = last, np.full(count, -1)
        for number, other in enumerate(self.teams):
            key = rest, other, team if adds else (0,) * len(team)
            if key not in self.best:
                continue
            moved = self.matching.moved_s(team, other, self.sent)
            if adds:
                yield np.full(count, number), self.best[key], moved
            else:
                value = np.maximum(self.best[key], moved)
                then = np.where(value < least, number, then)
                least = np.minimum(value, least)
        yield then, least, nothing

    def trace(self, counts: Team, team: Team) -> list[tuple[int, Team]]:
        """The (ideal that a stage ends with, its team) of each stage of the best pipeline."""
        nobody = (0,) * len(counts)
        found, ideal, left, before = list[tuple[int, Team]](), 0, counts, nobody
        while any(left):
            end, then = self.ends[left, team, before]
            found.append((int(end[ideal]), team))
            left = without(left, team) or ()
            before = team if self.matching.adds else nobody
            ideal, team = int(end[ideal]), self.teams[int(then[ideal])]
        return found
