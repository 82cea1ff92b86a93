"""Chains: several walks from the fastest plan, joined after every few proposals.

    round   walks from            find                what follows
    1       seed, seed, seed      8 ms, 9 ms, none    8 ms, with those changes of the second that make it shorter
    2       7 ms, 7 ms, 7 ms      none, none, none    each walks on from where it is
    ...     3 places              none, none, none    after RESTART such rounds, all from 7 ms again

A walk takes longer steps with a probability that falls with its temperature; the walks of a round have different ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, final

from maniple.strategies.soap.markov_chain import Chain
from maniple.strategies.soap.work_item import Merge, Walk, merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.soap.move import Choices
    from maniple.strategies.soap.work_item import SearchItem

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Tempering:
    """How chains walk.

    Args:
        temperatures: of the walks of a round: the shares of the fastest seed's step time by which a step may get longer
            with probability 1/e.
        length: so many proposals are a walk.
        restart: after so many rounds without a shorter step all walk from the best plan again.
        patience: the chains end after so many proposals per operator without a shorter step; about 50 of them change
            something, the others count as rejected.
    """

    temperatures: tuple[float, ...] = (0.0, 0.001, 0.003, 0.01) * 2
    length: int = 32
    restart: int = 8
    patience: int = 80


TEMPERING = Tempering()


@final
@dataclass(frozen=True, slots=True)
class Chains:
    """The chains from one seed, between two rounds.

    Args:
        tempering: how they walk.
        scale: the step time of the fastest seed.
        seed: of the search; each walk's chance comes from it and the walk's number.
        best: the fastest choices that they have seen.
        best_cost: their step time.
        stands: (choices, step time) of each.
        begun: how many walks have begun, those from other seeds included.
        quiet: how many rounds in a row found nothing faster.
    """

    tempering: Tempering
    scale: float
    seed: int
    best: Choices
    best_cost: float
    stands: tuple[tuple[Choices, float], ...]
    begun: int = 0
    quiet: int = 0

    @staticmethod
    def at(tempering: Tempering, scale: float, seed: int, start: tuple[Choices, float], begun: int) -> Chains:
        """The chains that all begin at some choices."""
        return Chains(tempering, scale, seed, *start, (start,) * len(tempering.temperatures), begun)

    def has_ended(self, operators: int) -> bool:
        """Whether they have not found anything faster for so long, for a number of operators, that they end."""
        made = self.quiet * self.tempering.length * len(self.stands)
        return made >= self.tempering.patience * operators

    def items(self) -> tuple[Walk, ...]:
        """The walks of the next round."""
        ways = zip(self.stands, self.tempering.temperatures, strict=True)
        return tuple(
            Walk(Chain.at(*stand, self._chance(number)), temperature * self.scale, self.tempering.length)
            for number, (stand, temperature) in enumerate(ways)
        )

    def join(self, items: Sequence[SearchItem]) -> tuple[Chains, Merge | None]:
        """The chains after a round, and a merge if one has to come before the next."""
        if isinstance(items[0], Merge):
            return self._from(items[0].best, items[0].best_cost, self.begun), None
        begun = self.begun + len(items)
        found = merge(items, self.best, self.best_cost)
        if found is not None:
            return self._from(found.best, found.best_cost, begun), None if found.finished else found
        quiet = self.quiet + 1
        stands = tuple((item.chain.choices, item.chain.cost) for item in items if isinstance(item, Walk))
        if quiet % self.tempering.restart == 0:
            stands = ((self.best, self.best_cost),) * len(stands)
        return replace(self, begun=begun, quiet=quiet, stands=stands), None

    def _from(self, best: Choices, cost: float, begun: int) -> Chains:
        return Chains.at(self.tempering, self.scale, self.seed, (best, cost), begun)

    def _chance(self, number: int) -> int:
        return Random((self.seed << 64) + self.begun + number).getrandbits(62)
