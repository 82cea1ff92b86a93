"""Weights that several stages use: once a step they go from where they live to all who use them, and gradients back.

It lives cut over all processors of all stages that use it. What goes to one of them shares links with what goes to the
others at that time, and every stage waits for all of it, so each bears the whole price:

    3 stages of 2 processors, a weight w of which all use the whole
    lives      p0 [0:1/6]  p1 [1/6:2/6]  p2 [2/6:3/6]  p3 ..  p4 ..  p5 ..
    value      5/6 of w come to each processor; where each has a link of its own to each other one 1/6 goes over each
    gradient   1/6 of the sum to each processor, from each of the five others

How another stage uses it is that stage's choice, which a cell does not know (see `stage_search`): it is taken to be
used there as here, by the processor with the same number in its stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.plan.weight_home import home_among
from maniple.strategies.optcnn.home_table import SPREAD, HomeTable
from maniple.strategies.optcnn.use_table import BoxLists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.frontier.additive_model import Term, Terms

__all__: list[str] = []


@final
class StageWeight:
    """What a weight costs a stage more because other stages use it, too.

    Args:
        terms: the terms of operators on the stage's processors.
        tensor: the weight.
        own: the stage's processors.
        others: those of each other stage that uses it, as many in each.
    """

    def __init__(self, terms: Terms, tensor: int, own: Sequence[int], others: Sequence[Sequence[int]]) -> None:
        self._terms, self._tensor = terms, tensor
        self._everyone = np.asarray([[*own, *(each for other in others for each in other)]], dtype=np.int64)
        self._others = tuple(tuple(zip(own, other, strict=True)) for other in others)
        self._memories = np.unique(terms.cost.operators.memory_of[np.asarray(own)])
        self._known: dict[object, Term] = {}

    def added(self, own: Sequence[Term], first: int) -> tuple[Term, ...]:
        """The terms of a stage's operators, with what the weight costs more.

        Args:
            own: their terms without, by choice and home; in order.
            first: the first of them.
        """
        found, operators = list(own), self._terms.cost.operators
        users = [number for number in range(first, first + len(own)) if self._tensor in operators.weights(number)]
        for number in users:
            found[number - first] = with_more(found[number - first], self.price(number, len(users)))
        return tuple(found)

    def price(self, number: int, users: int) -> Term:
        """What it costs more than if this operator's stage alone used it: bytes and nanoseconds of a step, by choice.

        Args:
            number: an operator that uses it.
            users: how many operators of its stage do; each bears an equal part.
        """
        key = self._terms.cost.kind(number), users
        if key not in self._known:
            prices, memory = self._terms.prices, self._terms.memory
            home, part = self._home(number), self._terms.cost.operators.sharing(self._tensor) / users
            ticks = prices.synchronised_ns(number, self._tensor, home, self._others) * part
            ticks = ticks - prices.spread_ns(number, [self._tensor])
            alone = memory.weight_bytes(number, self._tensor, prices.homes(number, self._tensor)[SPREAD])
            size = (memory.weight_bytes(number, self._tensor, home) * part - alone)[:, self._memories].max(axis=1)
            self._known[key] = np.ceil(size).astype(np.int64), np.rint(ticks).astype(np.int64)
        return self._known[key]

    def _home(self, number: int) -> HomeTable:
        """Where it lives if all processors of these stages use it whole, whatever this operator chooses."""
        operators = self._terms.cost.operators
        shape = operators.plan_free.tensors[self._tensor].shape
        whole = np.asarray([[(0, extent) for extent in shape]], dtype=np.int64).reshape(1, len(shape), 2)
        plan = home_among(shape, [(whole, self._everyone)], 0, operators.turn(self._tensor))
        home = operators.home_boxes(self._tensor, plan)
        blocks, count = home.blocks.copy(), self._terms.cost.tables.count(number)
        blocks[:, 0] = home.home.processors
        lists = BoxLists(np.arange(count + 1) * len(blocks), np.tile(blocks, (count, 1)))
        nowhere = np.zeros(count, dtype=bool)
        return HomeTable(nowhere, nowhere, nowhere, lists, np.tile(home.home.colors, count))


def with_more(own: Term, more: Term) -> Term:
    """A term with more, by choice; where results may be computed again, an operator has each choice twice.

    Args:
        own: bytes and nanoseconds by choice and home.
        more: the same by choice.
    """
    times = len(own[0]) // len(more[0])
    size, tick = (one + np.tile(other, times)[:, None] for one, other in zip(own, more, strict=True))
    return size, tick
