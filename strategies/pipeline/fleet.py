"""Fleets: the processors of a machine by which of them can stand for each other, for stages that are matched to them.

Two processors can stand for each other if they are as fast, may hold as much, and reach each other one as fast.

    p100x8, two hosts     class 0: p0 p1 p2 p3     class 1: p4 p5 p6 p7     within a class 12 GB/s, between 1.25
    a fast and two slow   class 0: p0              class 1: p1 p2           all links alike
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline.team import used

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.pipeline.stage_costs import Floats
    from maniple.strategies.pipeline.team import Team

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Classes of processors.

    Args:
        classes: the processors of each class, ascending.
        bandwidth: bytes per second between a processor of one class and another one of a class; infinite where they
            share a memory. Shape (classes, classes).
        held_bytes: what a processor of each class may hold.
    """

    classes: tuple[tuple[int, ...], ...]
    bandwidth: Floats
    held_bytes: tuple[float, ...]

    @staticmethod
    def of(machine: Machine) -> Fleet:
        """The fleet of a machine."""
        processors = machine.processors
        memories = [processor.memory for processor in processors]
        between = np.full((len(machine.memories),) * 2, np.inf)
        for a in machine.memories:
            for b in machine.memories:
                if a.id != b.id:
                    between[a.id, b.id] = machine.link(a.id, b.id).bandwidth
        speeds = between[np.ix_(memories, memories)]
        share = [machine.memories[m].capacity_bytes / len(machine.processors_of(m)) for m in memories]
        rate = [machine.memories[m].bandwidth / len(machine.processors_of(m)) for m in memories]
        kinds = [
            (each.kind, each.cores, each.flops_per_s, each.launch_s, rate[each.id], share[each.id])
            for each in processors
        ]
        classes: list[list[int]] = []
        for place in range(len(processors)):
            alike = (own for own in classes if kinds[own[0]] == kinds[place] and _alike(speeds, own[0], place))
            joined = next(alike, None)
            if joined is None:
                classes.append([place])
            else:
                joined.append(place)
        found = np.full((len(classes),) * 2, np.inf)
        for row, own in enumerate(classes):
            for column, other in enumerate(classes):
                pairs = [float(speeds[p, q]) for p in own[:2] for q in other[:2] if p != q]
                found[row, column] = min(pairs, default=np.inf)
        return Fleet(tuple(map(tuple, classes)), found, tuple(share[own[0]] for own in classes))

    def within_limit(self, held_bytes: float | None) -> Fleet:
        """The fleet whose processors may hold no more than so many bytes; None: what they may."""
        if held_bytes is None:
            return self
        return replace(self, held_bytes=tuple(min(own, held_bytes) for own in self.held_bytes))

    def slowest_between(self, classes: Sequence[int], others: Sequence[int]) -> float:
        """The bandwidth of the slowest link from processors of some classes to other ones of some classes."""
        return min(float(self.bandwidth[one, other]) for one in classes for other in others)

    def slowest_within(self, team: Team) -> float:
        """The bandwidth of the slowest link between processors of a team; infinite of one alone."""
        own = used(team)
        pairs = [(one, other) for one in own for other in own if one != other or team[one] > 1]
        return min((float(self.bandwidth[pair]) for pair in pairs), default=np.inf)


def _alike(speeds: Floats, one: int, other: int) -> bool:
    """Whether all others reach two processors as fast, and are reached so."""
    rest = [place for place in range(len(speeds)) if place not in {one, other}]
    out = speeds[one, rest], speeds[other, rest]
    back = speeds[rest, one], speeds[rest, other]
    return bool(np.array_equal(*out) and np.array_equal(*back) and speeds[one, other] == speeds[other, one])
