"""Weights that several operators use: what they cost together, and what they cost at least.

The additive model is a sum over operators and pairs of neighbours, so it prices a weight for each of its users as if
that were the only one, at the home that suits it, and each bears an equal part. Its home is one for all of them. So a
frontier of the model is not proved where a weight is shared, and how far it may be off is found by two more prices:

    together    each user's part at the home that the plan has, which depends on what all of them choose
    at least    what is used of the weight where it is used, and nothing that moves, updates, or lives at home

Whatever users choose, together is no less than at least. A frontier by the least prices is within epsilon of a bound
for every plan, so the *gap*, by what share a plan may need less memory and less time than some point found, is at most

    (1 + epsilon) x the largest, over the points q of the bound, of the smallest, over the points p that were found, of
    max(memory together of p / memory of q, time together of p / time of q),  less 1

Proof: a plan s has a point q with at most 1 + epsilon times its least price, which is no more than its price together,
on both axes; and the p of that q has at most the largest of these ratios times q.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.optcnn.home_table import HOMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.frontier.additive_memory import AdditiveMemory
    from maniple.strategies.frontier.additive_model import Model, Term
    from maniple.strategies.frontier.own_price import OwnPrices
    from maniple.strategies.frontier.weighted_sum import Found
    from maniple.strategies.interface.space import Choice
    from maniple.strategies.optcnn.additive_cost import AdditiveCost
    from maniple.strategies.simulation.home_boxes import HomeBoxes

__all__: list[str] = []

Price = tuple[int, int]
"""Bytes and nanoseconds."""


@final
class SharedWeights:
    """The weights of a graph that several operators use.

    Args:
        model: the additive model.
        cost: its times.
        memory: its bytes.
        prices: what operators take under all of their choices.
    """

    def __init__(self, model: Model, cost: AdditiveCost, memory: AdditiveMemory, prices: OwnPrices) -> None:
        self._model, self._cost, self._memory, self._prices = model, cost, memory, prices
        self._choices = choices = cost.operators.choices
        users: dict[int, list[int]] = {}
        for number in range(len(choices)):
            for tensor in cost.operators.weights(number):
                if cost.operators.sharing(tensor) > 1:
                    users.setdefault(tensor, []).append(number)
        self._users = {tensor: tuple(found) for tensor, found in users.items()}
        self.operators: tuple[int, ...] = tuple(sorted({number for found in users.values() for number in found}))
        """The operators that use one, ascending."""
        self._known: dict[object, Price] = {}

    def least(self) -> Model:
        """The model by the least prices."""
        own: list[Term] = list(self._model.own)
        made: dict[tuple[int, int], Term] = {}
        for number in self.operators:
            kind = self._cost.kind(number), len(own[number][0])
            if kind not in made:
                made[kind] = self._least(number)
            own[number] = made[kind]
        return replace(self._model, own=tuple(own))

    def together(self, found: Found) -> Price:
        """The bytes and nanoseconds of an assignment whose shared weights live where a plan of it has them."""
        chosen: dict[int, Choice] = {}
        again: dict[int, bool] = {}
        for number in self.operators:
            own = self._choices[number]
            again[number], place = found.chosen[number] >= len(own), found.chosen[number] % len(own)
            chosen[number] = own[place]
        memory, ticks = found.memory, found.ticks
        homes = {
            tensor: self._cost.operators.home(tensor, users, [chosen[user] for user in users])
            for tensor, users in self._users.items()
        }
        for number, choice in chosen.items():
            weights = self._cost.operators.weights(number)
            mine = [homes.get(tensor) or self._alone(tensor, number, choice) for tensor in weights]
            key = number, choice, again[number], tuple(home.home.plan for home in mine)
            if key not in self._known:
                alone = [self._alone(tensor, number, choice) for tensor in weights]
                times = [
                    sum(self._cost.synchronisation_ns(t, number, choice, h) for t, h in zip(weights, some, strict=True))
                    for some in (mine, alone)
                ]
                sizes = [
                    self._memory.own_bytes(number, choice, list(zip(weights, some, strict=True)), again=again[number])
                    for some in (mine, alone)
                ]
                self._known[key] = sizes[0] - sizes[1], round(times[0] - times[1])
            memory, ticks = memory + self._known[key][0], ticks + self._known[key][1]
        return memory, ticks

    def _alone(self, tensor: int, number: int, choice: Choice) -> HomeBoxes:
        """The home that suits one user."""
        return self._cost.operators.home(tensor, (number,), (choice,))

    def _least(self, number: int) -> Term:
        """The least bytes and nanoseconds of an operator, by choice and home."""
        size, tick = (np.array(axis) for axis in self._model.own[number])
        count = len(self._choices[number])
        shared = [tensor for tensor in self._cost.operators.weights(number) if tensor in self._users]
        for first in range(0, len(size), count):  # kept, and then again
            rows = slice(first, first + count)
            moved = self._prices.spread_ns(number, shared)
            tick[rows] = np.maximum(tick[rows] - np.ceil(moved).astype(np.int64)[:, None] - 1, 0)
            for home in range(HOMES):
                homes = [
                    (tensor, None if tensor in shared else self._prices.homes(number, tensor)[home])
                    for tensor in self._cost.operators.weights(number)
                ]
                least = self._memory.all_bytes(number, homes, again=first >= count)
                size[rows, home] = np.minimum(size[rows, home], least)
        return size, tick


def gap(found: Sequence[Price], bound: Sequence[Price], epsilon: float) -> float:
    """By what share a plan may need less memory and less time than some point that was found; see the module.

    Args:
        found: the prices of what was found, together.
        bound: the frontier by the least prices.
        epsilon: within which that is one.
    """
    mine, least = (np.maximum(np.asarray(points, dtype=np.float64), 1.0) for points in (found, bound))
    ratios = (mine[None, :, :] / least[:, None, :]).max(axis=2).min(axis=1)
    return float((1.0 + epsilon) * ratios.max() - 1.0)
