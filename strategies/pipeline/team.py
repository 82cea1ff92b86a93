"""Teams: the processors of a fleet that may run a stage together, by how many there are of each class.

Of two fast and two slow processors:

    all teams      (0, 1) (0, 2) (1, 0) (1, 1) (1, 2) (2, 0) (2, 1) (2, 2)
    of one class   (1, 0) (2, 0) (0, 1) (0, 2)
    alone          (1, 0) (0, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import final

__all__: list[str] = []

Team = tuple[int, ...]
"""How many processors of each class."""
LOOK = 4_000
"""A look at which team may be next takes about as long as so many pairs of ideals."""
MOST_TEAMS = 1 << 12
"""Of more, those of one class are looked at."""


@final
@dataclass(frozen=True, slots=True)
class TeamFamily:
    """Teams that are looked at together.

    Args:
        teams: each with a processor at least.
        pairs: in how many ways one of them can be taken from what may be left of each class.
        complete: whether these are all that a stage may run on.
    """

    teams: tuple[Team, ...]
    pairs: int
    complete: bool

    def work(self, ideals: int) -> int:
        """What looking at all of them takes, in pairs of ideals, of so many ideals."""
        return self.pairs * (ideals**2 + LOOK * len(self.teams))


def team_families(sizes: Team, *, replicate: bool) -> tuple[TeamFamily, ...]:
    """The families of teams of classes of some sizes, the largest first; without replicas there is one.

    Args:
        sizes: of the classes.
        replicate: whether a stage may run on several processors.
    """
    states = prod(size + 1 for size in sizes)
    if not replicate:
        alone = tuple(_of_class(sizes, here, 1) for here in range(len(sizes)))
        return (TeamFamily(alone, sum(states // (size + 1) * size for size in sizes), complete=True),)
    pure = tuple(_of_class(sizes, here, count) for here, size in enumerate(sizes) for count in range(1, size + 1))
    families = [TeamFamily(pure, states * sum(sizes) // 2, complete=len(sizes) == 1)]
    if states <= MOST_TEAMS:
        mixed = tuple(team for team in product(*(range(size + 1) for size in sizes)) if any(team))
        pairs = prod((size + 1) * (size + 2) // 2 for size in sizes) - states
        families.insert(0, TeamFamily(mixed, pairs, complete=True))
    return tuple(families)


def used(team: Team) -> tuple[int, ...]:
    """The classes of which a team has processors."""
    return tuple(here for here, count in enumerate(team) if count)


def without(counts: Team, team: Team) -> Team | None:
    """What is left of each class without a team; None where it is not there."""
    left = tuple(own - taken for own, taken in zip(counts, team, strict=True))
    return None if min(left) < 0 else left


def _of_class(sizes: Team, here: int, count: int) -> Team:
    return tuple(count if place == here else 0 for place in range(len(sizes)))
