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

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.frontier.additive_memory import AdditiveMemory
from maniple.strategies.frontier.homes import HOMES, SPREAD, homes_of
from maniple.strategies.frontier.shared_weight import SharedWeights
from maniple.strategies.optcnn.additive_cost import AdditiveCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

NS = 1e-9
Term = tuple["npt.NDArray[np.int64]", "npt.NDArray[np.int64]"]
"""Bytes and nanoseconds, by choice."""


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

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of every operator how many choices it has."""
        return tuple(len(memory) for memory, _ in self.own)

    def total(self, chosen: Sequence[int], homes: Sequence[int]) -> tuple[int, int]:
        """The bytes and the nanoseconds of an assignment.

        Args:
            chosen: the choice of every operator.
            homes: where its weights live.
        """
        found = []
        for axis in range(2):
            own = (int(self.own[o][axis][c, home]) for o, (c, home) in enumerate(zip(chosen, homes, strict=True)))
            between = (int(term[axis][chosen[a], chosen[b]]) for (a, b), term in self.edges.items())
            found.append(sum(own) + sum(between))
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
    cost, may = AdditiveCost(problem, space, choices), again or (False,) * len(choices)
    memory = AdditiveMemory(cost.operators)
    own: dict[object, Term] = {}
    edges: dict[object, Term] = {}
    terms = []
    for number in range(len(choices)):
        kind = cost.kind(number), may[number]
        if kind not in own:
            kept = own_term(cost, memory, number, choices[number])
            own[kind] = _with_again(kept, cost, memory, number, choices[number]) if may[number] else kept
        terms.append(own[kind])
    between: dict[tuple[int, int], Term] = {}
    for pair in cost.edges:
        # The cost's table stays, so its identity tells alike edges.
        alike = id(cost.edge(*pair)), may[pair[0]], may[pair[1]]
        if alike not in edges:
            edges[alike] = _edge_term(cost, memory, pair, choices, may)
        between[pair] = edges[alike]
    model = Model(tuple(terms), between)
    return model, cost, SharedWeights(model, cost, memory, choices)


def own_term(
    cost: AdditiveCost,
    memory: AdditiveMemory,
    number: int,
    choices: Sequence[Choice],
    *,
    again: bool = False,
) -> Term:
    """The bytes and nanoseconds of an operator, by choice and home.

    Args:
        cost: the times.
        memory: the bytes.
        number: the operator.
        choices: those that are compared.
        again: whether its results are computed again; the nanoseconds do not say so.
    """
    times = np.rint(cost.operator(number) / NS).astype(np.int64)
    size, tick = (np.zeros((len(choices), HOMES), dtype=np.int64) for _ in range(2))
    for place, choice in enumerate(choices):
        found = homes_of(cost.operators, number, choice)
        moved = [
            sum(cost.synchronisation_ns(tensor, number, choice, lives) for tensor, lives in weights)
            for weights in (found.values() if len(found) > 1 else ())
        ]
        # A home that is none of this choice's costs what the first one does.
        size[place, :] = memory.own_bytes(number, choice, found[SPREAD], again=again)
        tick[place, :] = times[place]
        for at, home in enumerate([*found][1:], start=1):
            size[place, home] = memory.own_bytes(number, choice, found[home], again=again)
            tick[place, home] += round(moved[at] - moved[0])
    return size, tick


def _with_again(kept: Term, cost: AdditiveCost, memory: AdditiveMemory, number: int, choices: Sequence[Choice]) -> Term:
    """The bytes and nanoseconds of an operator whose results may be computed again."""
    size, _ = own_term(cost, memory, number, choices, again=True)
    more = np.asarray([round(cost.again_ns(number, choice)) for choice in choices], dtype=np.int64)
    return np.concatenate([kept[0], size]), np.concatenate([kept[1], kept[1] + more[:, None]])


def _edge_term(
    cost: AdditiveCost,
    memory: AdditiveMemory,
    pair: tuple[int, int],
    choices: Sequence[Sequence[Choice]],
    may: Sequence[bool],
) -> Term:
    """The bytes and nanoseconds of what goes between two operators, by choice of both."""
    writer, reader = pair
    size, tick = memory.edge_bytes(writer, reader, choices), np.rint(cost.edge(writer, reader) / NS).astype(np.int64)
    if may[writer]:
        once_more = np.rint(cost.edge_again(writer, reader) / NS).astype(np.int64)
        back = np.asarray([cost.reads_back(writer, reader, choice) for choice in choices[reader]])
        others = [tick + once_more * back]
        if may[reader]:
            others.append(tick + once_more)
            tick, size = np.concatenate([tick, tick], axis=1), np.concatenate([size, size], axis=1)
        again = np.concatenate(others, axis=1)
        return np.concatenate([size, np.zeros_like(size)]), np.concatenate([tick, again])
    if may[reader]:
        return np.concatenate([size, size], axis=1), np.concatenate([tick, tick], axis=1)
    return size, tick
