"""The additive model: bytes and nanoseconds of every choice of every operator, and of every pair of neighbours'.

Time is OptCNN's additive cost, memory the additive one. Where the weights of an operator live is a part of its choice:

    home          where a weight is                                  against the other
    spread        cut over all who use it, where they do not each    states and updates of one part each; values are
                  use a part of their own                            gathered, gradients scattered
    where used    each part at all who use it                        nothing to gather; states and updates several times

A weight that several operators use lives where its default home is, and each of them bears an equal part (see
`shared_weight`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.configuration import WeightPlan
from maniple.strategies.frontier.additive_memory import AdditiveMemory
from maniple.strategies.frontier.shared_weight import SharedWeights
from maniple.strategies.optcnn.additive_cost import AdditiveCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from maniple.operators.plan.weight_home import Users
    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.interface.strategy import Problem
    from maniple.strategies.simulation.at_home.home_boxes import HomeBoxes

__all__: list[str] = []

NS = 1e-9
Term = tuple["npt.NDArray[np.int64]", "npt.NDArray[np.int64]"]
"""Bytes and nanoseconds, by choice."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A graph of costs.

    Args:
        own: of every operator bytes and nanoseconds, [choice, home]: by default, where used. Alike operators have the
            same arrays.
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
    problem: Problem, space: Space, choices: Sequence[Sequence[Choice]]
) -> tuple[Model, AdditiveCost, SharedWeights]:
    """The model of a graph, what its times are made of, and the weights that it prices user by user.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared.
    """
    cost = AdditiveCost(problem, space, choices)
    memory = AdditiveMemory(cost.operators)
    own: dict[int, Term] = {}
    edges: dict[object, Term] = {}
    terms = []
    for number in range(len(choices)):
        kind = cost.kind(number)
        if kind not in own:
            own[kind] = _own_term(cost, memory, number, choices[number])
        terms.append(own[kind])
    between: dict[tuple[int, int], Term] = {}
    for pair in cost.edges:
        seconds = cost.edge(*pair)
        # The cost's table stays, so its identity tells alike edges.
        if id(seconds) not in edges:
            edges[id(seconds)] = memory.edge_bytes(*pair, choices), np.rint(seconds / NS).astype(np.int64)
        between[pair] = edges[id(seconds)]
    model = Model(tuple(terms), between)
    return model, cost, SharedWeights(model, cost, memory, choices)


def _own_term(cost: AdditiveCost, memory: AdditiveMemory, number: int, choices: Sequence[Choice]) -> Term:
    """The bytes and nanoseconds of an operator, by choice and home."""
    operators = cost.operators
    times = np.rint(cost.operator(number) / NS).astype(np.int64)
    size, tick = (np.zeros((len(choices), 2), dtype=np.int64) for _ in range(2))
    for place, choice in enumerate(choices):
        default = [(tensor, operators.home(tensor, (number,), (choice,))) for tensor in operators.weights(number)]
        size[place, :] = memory.own_bytes(number, choice, default)
        tick[place, :] = times[place]
        there = [(tensor, home_where_used(cost, tensor, number, choice)) for tensor, _ in default]
        if not any(home is not None for _, home in there):
            continue
        other = [(tensor, home or old) for (tensor, home), (_, old) in zip(there, default, strict=True)]
        more = sum(
            cost.synchronisation_ns(tensor, number, choice, home) - cost.synchronisation_ns(tensor, number, choice, old)
            for (tensor, home), (_, old) in zip(other, default, strict=True)
        )
        size[place, 1] = memory.own_bytes(number, choice, other)
        tick[place, 1] += round(more)
    return size, tick


def home_where_used(cost: AdditiveCost, tensor: int, number: int, choice: Choice) -> HomeBoxes | None:
    """The home of a weight at all who use each part of it; None where its default home is there, or it is shared."""
    if cost.operators.sharing(tensor) > 1:
        return None
    plan = plan_where_used(cost.operators.users(tensor, number, choice))
    return None if plan is None else cost.operators.home_boxes(tensor, plan)


def plan_where_used(users: Users) -> WeightPlan | None:
    """The home whose blocks are the tiles that are used, each at all that use it; None where one uses each.

    Args:
        users: the tiles, and by tile the processors that use it.
    """
    tiles, processors = users
    owners: dict[tuple[int, ...], list[int]] = {}
    for tile, found in zip(tiles.reshape(len(tiles), -1).tolist(), processors.tolist(), strict=True):
        mine = owners.setdefault(tuple(tile), [])
        mine += [processor for processor in found if processor not in mine]
    counts = {len(found) for found in owners.values()}
    if len(counts) != 1 or counts == {1}:
        return None
    ordered = sorted(owners)
    axes = len(ordered[0]) // 2
    degrees = tuple(len({tile[2 * axis] for tile in ordered}) for axis in range(axes))
    if int(np.prod(degrees)) != len(ordered):
        return None
    return WeightPlan(degrees, tuple(place for tile in ordered for place in owners[tile]), counts.pop())
