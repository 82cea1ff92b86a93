"""The additive model: bytes and nanoseconds of every choice of every operator, and of every pair of neighbours'.

Time is OptCNN's additive cost, memory the additive one. Where the weights of an operator live (see `homes`) is a part
of its choice; a weight that several operators use lives where its default home is, and each of them bears an equal part
(see `shared_weight`).

Where results may be computed again (see `seam`), an operator has each of its choices twice, the second time so:

    choice                       bytes                            nanoseconds
    0 .. K-1     kept            as they are                      as they are
    K .. 2K-1    again           less results and saved           and forward once more
    of an edge, where the maker of a value computes it again:
                                 none for copies                  and the value's way once more, if a reader's backward
                                                                  pass reads it, or that is computed again itself
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.frontier.additive_memory import AdditiveMemory
from maniple.strategies.frontier.own_price import ONCE, OwnPrices
from maniple.strategies.frontier.shared_weight import SharedWeights
from maniple.strategies.optcnn.additive_cost import AdditiveCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from maniple.strategies.frontier.own_price import Turns
    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

NS = 1e-9
Term = tuple["npt.NDArray[np.int64]", "npt.NDArray[np.int64]"]
"""Bytes and nanoseconds, by choice."""
Alike = list[tuple[Term, "npt.NDArray[np.int64]"]]
"""Terms, and the numbers of what has each of them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A graph of costs.

    Args:
        own: of every operator bytes and nanoseconds, [choice, home]. Alike operators have the same arrays.
        edges: of every pair (first, second) of neighbours, first < second, the same, [choice, choice].
    """

    own: tuple[Term, ...]
    edges: Mapping[tuple[int, int], Term]
    _alike: list[tuple[Alike, Alike]] = field(init=False, repr=False, default_factory=list)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of every operator how many choices it has."""
        return tuple(len(memory) for memory, _ in self.own)

    def alike(self) -> tuple[Alike, Alike]:
        """The terms of operators and those of edges, each once, with who has it: [operator, 1] and [edge, 2]."""
        if not self._alike:
            each: list[tuple[tuple[int, ...], Term]] = [((number,), term) for number, term in enumerate(self.own)]
            found: list[Alike] = []
            for some in (each, list(self.edges.items())):
                scopes: dict[int, tuple[Term, list[tuple[int, ...]]]] = {}
                for scope, term in some:
                    scopes.setdefault(id(term), (term, []))[1].append(scope)
                found.append([(term, np.asarray(own, dtype=np.int64)) for term, own in scopes.values()])
            self._alike.append((found[0], found[1]))
        return self._alike[0]

    def total(self, chosen: Sequence[int], homes: Sequence[int]) -> tuple[int, int]:
        """The bytes and the nanoseconds of an assignment.

        Args:
            chosen: the choice of every operator.
            homes: where its weights live.
        """
        memory = ticks = 0
        for (size, tick), choice, home in zip(self.own, chosen, homes, strict=True):
            memory, ticks = memory + size.item(choice, home), ticks + tick.item(choice, home)
        for (a, b), (size, tick) in self.edges.items():
            memory, ticks = memory + size.item(chosen[a], chosen[b]), ticks + tick.item(chosen[a], chosen[b])
        return memory, ticks

    def totals(self, chosen: npt.NDArray[np.int64], homes: npt.NDArray[np.int64]) -> Term:
        """The same of many assignments.

        Args:
            chosen: [assignment, operator], its choice.
            homes: the same, where its weights live.
        """
        found = np.zeros((2, len(chosen)), dtype=np.int64)
        own, edges = self.alike()
        for axis in range(2):
            for term, scopes in own:
                found[axis] += term[axis][chosen[:, scopes[:, 0]], homes[:, scopes[:, 0]]].sum(axis=1)
            for term, scopes in edges:
                found[axis] += term[axis][chosen[:, scopes[:, 0]], chosen[:, scopes[:, 1]]].sum(axis=1)
        return found[0], found[1]


def additive_model(
    problem: Problem, space: Space, choices: Sequence[Sequence[Choice]], again: Sequence[bool] = ()
) -> tuple[Model, AdditiveCost, SharedWeights]:
    """The model of a graph, what its times are made of, and the weights that it prices user by user.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared.
        again: of every operator whether its results may be computed again; of none by default.
    """
    terms = Terms(AdditiveCost(problem, space, choices, at_once=True), again or (False,) * len(choices))
    own = tuple(terms.own(number) for number in range(len(choices)))
    model = Model(own, {pair: terms.edge(pair) for pair in terms.cost.edges})
    return model, terms.cost, SharedWeights(model, terms.cost, terms.memory, terms.prices)


def model_of_times(problem: Problem, space: Space, choices: Sequence[Sequence[Choice]]) -> Model:
    """The model of a graph in which nothing takes memory: its fastest assignment is that of the whole model.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared. None is computed again, which is never faster.
    """
    terms = Terms(AdditiveCost(problem, space, choices, at_once=True), (False,) * len(choices))
    times: dict[int, Term] = {}

    def timed(ticks: npt.NDArray[np.int64]) -> Term:
        # The array stays in the term, so its identity tells what is alike.
        return times.setdefault(id(ticks), (np.zeros_like(ticks), ticks))

    own = tuple(timed(terms.own_ticks(number)) for number in range(len(choices)))
    return Model(own, {pair: timed(terms.edge_ticks(pair)) for pair in terms.cost.edges})


@final
class Terms:
    """The terms of a model, made as they are asked for; what is alike shares.

    Args:
        cost: the times, of all choices at once.
        may: of every operator whether its results may be computed again.
        turns: how often operators take their turn in a step.
        like: terms of the same operators of as many micro-batches, whose tables are shared.
    """

    def __init__(self, cost: AdditiveCost, may: Sequence[bool], turns: Turns = ONCE, like: Terms | None = None) -> None:
        self.cost = cost
        known = (None, None) if like is None else (like.memory.known, like.prices.known)
        self.memory: AdditiveMemory = AdditiveMemory(cost.tables, turns.flying, known[0])
        self.prices: OwnPrices = OwnPrices(cost, self.memory, turns, known[1])
        self._may, self.turns = may, turns
        self._own: dict[object, Term] = {}
        self._edges: dict[object, Term] = {}
        self._own_ticks: dict[object, npt.NDArray[np.int64]] = {}
        self._edge_ticks: dict[object, npt.NDArray[np.int64]] = {}

    def own_ticks(self, number: int) -> npt.NDArray[np.int64]:
        """The nanoseconds of an operator whose results are kept, by choice and home."""
        kind = self.cost.kind(number)
        if kind not in self._own_ticks:
            self._own_ticks[kind] = self.prices.ticks(number)
        return self._own_ticks[kind]

    def edge_ticks(self, pair: tuple[int, int]) -> npt.NDArray[np.int64]:
        """The nanoseconds of what goes between two operators whose results are kept, by choice of both."""
        seconds = self.cost.edge(*pair)
        # The cost's table stays, so its identity tells alike edges.
        if id(seconds) not in self._edge_ticks:
            self._edge_ticks[id(seconds)] = np.rint(seconds / NS * self.turns.rounds).astype(np.int64)
        return self._edge_ticks[id(seconds)]

    def own(self, number: int) -> Term:
        """The bytes and nanoseconds of an operator, by choice and home."""
        kind = self.cost.kind(number), self._may[number]
        if kind not in self._own:
            kept = self.prices.price(number)
            self._own[kind] = self._with_again(kept, number) if self._may[number] else kept
        return self._own[kind]

    def edge(self, pair: tuple[int, int]) -> Term:
        """The bytes and nanoseconds of what goes between two operators, by choice of both."""
        # The cost's table stays, so its identity tells alike edges.
        alike = id(self.cost.edge(*pair)), self._may[pair[0]], self._may[pair[1]]
        if alike not in self._edges:
            self._edges[alike] = self._edge(*pair)
        return self._edges[alike]

    def _with_again(self, kept: Term, number: int) -> Term:
        """The bytes and nanoseconds of an operator whose results may be computed again."""
        size = self.prices.sizes(number, again=True)
        more = np.rint(self.cost.tables.again_ns(number) * self.turns.rounds).astype(np.int64)
        return np.concatenate([kept[0], size]), np.concatenate([kept[1], kept[1] + more[:, None]])

    def _edge(self, writer: int, reader: int) -> Term:
        cost, rounds = self.cost, self.turns.rounds
        size = self.memory.edge_bytes(writer, reader)
        tick = self.edge_ticks((writer, reader))
        if self._may[writer]:
            once_more = np.rint(cost.edge_again(writer, reader) / NS * rounds).astype(np.int64)
            operands = [operand for _, operand, _ in cost.operators.ends(writer, reader)]
            others = [tick + once_more * cost.tables.reads_back(reader, operands)]
            if self._may[reader]:
                others.append(tick + once_more)
                tick, size = np.concatenate([tick, tick], axis=1), np.concatenate([size, size], axis=1)
            again = np.concatenate(others, axis=1)
            return np.concatenate([size, np.zeros_like(size)]), np.concatenate([tick, again])
        if self._may[reader]:
            return np.concatenate([size, size], axis=1), np.concatenate([tick, tick], axis=1)
        return size, tick
