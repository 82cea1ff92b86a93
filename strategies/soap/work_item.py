"""Work items of a search over choices; see ``maniple.strategies.interface.parallel_search``.

item    what a step evaluates                              keeps it
Walk    a proposal of a chain                              by the chain's rule
Sweep   the next choice, of one operator after another     if the step gets shorter
Merge   what another item changed, on top of the fastest   if the step gets shorter
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, final

from maniple.process.error import RequestError
from maniple.strategies.interface.space import Choice
from maniple.strategies.soap.markov_chain import Chain, advance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.soap.evaluation import Evaluation, Shortfall
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

WIDTH = 8
"""So many items are a round: more processes than that have nothing to do."""
Change = tuple[tuple[int, Choice], ...]
"""(operator, choice) for every operator that changes."""


@final
@dataclass(frozen=True, slots=True)
class Walk:
    """Some proposals of a chain.

    Args:
        chain: as far as it has come; it begins with the item.
        temperature_s: how much longer a step may get with probability 1/e, in seconds.
        most: how many proposals it makes.
        least: the least by which a plan that it tried did not fit.
    """

    chain: Chain
    temperature_s: float
    most: int
    least: Shortfall | None = None

    @property
    def proposals(self) -> int:
        """How many have been evaluated."""
        return self.chain.proposals

    @property
    def accepted(self) -> int:
        """How many of them were kept."""
        return self.chain.accepted

    @property
    def best(self) -> Choices:
        """The fastest choices seen."""
        return self.chain.best

    @property
    def best_cost(self) -> float:
        """Their step time."""
        return self.chain.best_cost

    @property
    def finished(self) -> bool:
        """Whether all have been evaluated."""
        return self.chain.proposals >= self.most

    def step(self, evaluation: Evaluation) -> Walk:
        """The item after one more proposal."""
        evaluation.stand_at(self.chain.choices)
        evaluation.least = self.least
        chain = advance(self.chain, evaluation.space, evaluation, self.temperature_s, 1.0)
        return replace(self, chain=chain, least=evaluation.least)

    def pack(self) -> list[object]:
        """The item as plain data."""
        chain = self.chain
        chances = [chain.seed, chain.proposals, chain.accepted]
        ends = [_pack_choices(chain.choices), chain.cost, _pack_choices(chain.best), chain.best_cost]
        return ["walk", *ends, *chances, self.temperature_s, self.most, _packed_shortfall(self.least)]


@final
@dataclass(frozen=True, slots=True)
class Sweep:
    """Some of the choices of the operators, each tried on its own; kept if the step gets shorter.

    Args:
        best: the choices as they are now.
        best_cost: their step time.
        position: the number of the next choice to try, counted over all operators and around.
        most: how many it tries.
        proposals: how many it has tried; the present one, whose step time is known, is one of them.
        accepted: how many it has kept.
        least: the least by which a plan that it tried did not fit.
    """

    best: Choices
    best_cost: float
    position: int
    most: int
    proposals: int = 0
    accepted: int = 0
    least: Shortfall | None = None

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return self.proposals >= self.most

    def step(self, evaluation: Evaluation) -> Sweep:
        """The item after one more choice."""
        operator, option = evaluation.options.at(self.position)
        following = (self.position + 1) % evaluation.options.count
        moved = replace(self, position=following, proposals=self.proposals + 1)
        if option == self.best[operator]:
            return moved
        evaluation.stand_at(self.best)
        evaluation.least = self.least
        cost = evaluation.evaluate([(operator, option)], self.best_cost)
        moved = replace(moved, least=evaluation.least)
        if cost >= self.best_cost:
            evaluation.reject()
            return moved
        evaluation.accept()
        return replace(moved, best=evaluation.choices, best_cost=cost, accepted=self.accepted + 1)

    def pack(self) -> list[object]:
        """The item as plain data."""
        counts = [self.position, self.most, self.proposals, self.accepted]
        return ["sweep", _pack_choices(self.best), self.best_cost, *counts, _packed_shortfall(self.least)]


@final
@dataclass(frozen=True, slots=True)
class Merge:
    """What several items changed, joined: the fastest one's changes, then those of the others as long as they help.

    Args:
        best: the choices as they are now.
        best_cost: their step time.
        waiting: what is still to be tried.
        proposals: how many have been tried.
        accepted: how many of them were kept.
        least: the least by which a plan that it tried did not fit.
    """

    best: Choices
    best_cost: float
    waiting: tuple[Change, ...]
    proposals: int = 0
    accepted: int = 0
    least: Shortfall | None = None

    @property
    def most(self) -> int:
        """How many it tries in all."""
        return self.proposals + len(self.waiting)

    @property
    def finished(self) -> bool:
        """Whether all have been tried."""
        return not self.waiting

    def step(self, evaluation: Evaluation) -> Merge:
        """The item after one more change."""
        evaluation.stand_at(self.best)
        evaluation.least = self.least
        change, *others = self.waiting
        cost = evaluation.evaluate(change, self.best_cost)
        moved = replace(self, waiting=tuple(others), proposals=self.proposals + 1, least=evaluation.least)
        if cost >= self.best_cost:
            evaluation.reject()
            return moved
        evaluation.accept()
        return replace(moved, best=evaluation.choices, best_cost=cost, accepted=self.accepted + 1)

    def pack(self) -> None:
        """Nothing: a merge is short, and alone in its round."""
        return


SearchItem = Walk | Sweep | Merge


def merge(items: Sequence[SearchItem], before: Choices, cost: float) -> Merge | None:
    """The item that joins what items have found from one plan; None where none of them found a faster one.

    Args:
        items: those that searched from it.
        before: the choices that they were to improve.
        cost: their step time.
    """
    better = sorted(((item.best_cost, place) for place, item in enumerate(items) if item.best_cost < cost))
    if not better:
        return None
    fastest, *others = (items[place].best for _, place in better)
    changes = (_difference(before, other) for other in others)
    return Merge(fastest, better[0][0], tuple(dict.fromkeys(change for change in changes if change)))


def unpack(plain: Sequence[object]) -> Walk | Sweep:
    """The item that ``pack`` gave.

    Raises:
        RequestError: it is none.
    """
    try:
        kind, *fields = plain
        if kind == "walk":
            here, cost, best, best_cost, seed, proposals, accepted, warmth, most, least = cast("list[int]", fields)
            chain = Chain(_choices(here), cost, _choices(best), best_cost, seed, proposals, accepted)
            return Walk(chain, warmth, most, _shortfall(least))
        if kind == "sweep":
            best, best_cost, position, most, proposals, accepted, least = cast("list[int]", fields)
            return Sweep(_choices(best), best_cost, position, most, proposals, accepted, _shortfall(least))
    except (TypeError, ValueError) as error:
        raise RequestError(f"item: expected what packed() gives, got something else ({error})") from error
    raise RequestError(f"item: expected a walk or a sweep, got {kind!r}")


def _difference(before: Choices, after: Choices) -> Change:
    pairs = enumerate(zip(before, after, strict=True))
    return tuple((operator, choice) for operator, (old, choice) in pairs if choice != old)


def _pack_choices(choices: Choices) -> list[object]:
    return [[choice.degrees, choice.replicas, choice.start, choice.stride] for choice in choices]


def _choices(plain: object) -> Choices:
    rows = cast("list[tuple[list[int], int, int, int]]", plain)
    return tuple(Choice(tuple(degrees), replicas, start, stride) for degrees, replicas, start, stride in rows)


def _packed_shortfall(least: Shortfall | None) -> list[object] | None:
    return None if least is None else [least[0], least[1], _pack_choices(least[2])]


def _shortfall(plain: object) -> Shortfall | None:
    if plain is None:
        return None
    size, memory, choices = cast("tuple[int, int, object]", plain)
    return size, memory, _choices(choices)
