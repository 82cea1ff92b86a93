"""Contracted models: what is left of a model once most operators have one choice.

What an operator of one choice has to do with a neighbour is then the neighbour's own, and what it takes itself is the
same whatever the others choose:

    a: 2 choices    b: 1 choice    c: 3 choices          left
    a - b - c                                            a with its edge to b, c with its edge to b, no edge
                                                         and b's own bytes and nanoseconds beside them

Of homes that are worse than another in both, none is left; an operator that still has several stays, without edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.frontier.additive_model import Model
from maniple.strategies.frontier.algebra import reduce
from maniple.strategies.frontier.weighted_sum import Found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from maniple.strategies.frontier.additive_model import Term
    from maniple.strategies.frontier.algebra import Column

__all__: list[str] = []

Kept = tuple["npt.NDArray[np.int64]", ...]
"""Of every operator the choices that are left, ascending."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A model with some of its choices.

    Args:
        whole: the model.
        kept: of every operator the choices that are left.
        model: of the operators that are left.
        numbers: of these in the whole model, ascending.
        homes: of every operator that is not left its home; of the others 0.
        base: the bytes and nanoseconds of what is not left.
    """

    whole: Model
    kept: Kept
    model: Model
    numbers: tuple[int, ...]
    homes: tuple[int, ...]
    base: tuple[int, int]

    def found(self, places: Column, homes: Column) -> list[Found]:
        """Assignments of the whole model.

        Args:
            places: of every operator that is left which of its choices it has, of those that are left, by assignment.
            homes: the same of its homes.
        """
        count = len(places)
        chosen = np.tile(np.asarray([choices[0] for choices in self.kept], dtype=np.int64), (count, 1))
        lives = np.tile(np.asarray(self.homes, dtype=np.int64), (count, 1))
        for at, number in enumerate(self.numbers):
            chosen[:, number], lives[:, number] = self.kept[number][places[:, at]], homes[:, at]
        memory, ticks = self.whole.totals(chosen, lives)
        rows = zip(
            memory.tolist(), ticks.tolist(), map(tuple, chosen.tolist()), map(tuple, lives.tolist()), strict=True
        )
        return [Found(*row) for row in rows]

    def with_base(self) -> Model:
        """The model of what is left, and of one operator more that takes what is not left."""
        base = tuple(np.full((1, 1), part, dtype=np.int64) for part in self.base)
        return Model((*self.model.own, (base[0], base[1])), self.model.edges)

    def lifted(self, points: Sequence[Found]) -> list[Found]:
        """Assignments of the whole model.

        Args:
            points: assignments of the model with its base.
        """
        shape = len(points), len(self.numbers)
        places, homes = (
            np.asarray([getattr(one, row)[:-1] for one in points], dtype=np.int64).reshape(shape)
            for row in ("chosen", "homes")
        )
        return self.found(places, homes)


def contracted(model: Model, kept: Kept, at: Mapping[int, int] | None = None) -> Contraction:
    """A model with some of its choices; what was alike, and has the same choices and nothing else, is alike.

    Args:
        model: the model.
        kept: of every operator the choices, at least one.
        at: of operators of one choice their home, where that is given; of none by default.
    """
    at = at or {}
    made: dict[tuple[object, ...], Term] = {}
    own: list[Term] = []
    for number, (term, choices) in enumerate(zip(model.own, kept, strict=True)):
        first, last = (at[number], at[number] + 1) if number in at else (0, term[0].shape[1])
        key: tuple[object, ...] = id(term), choices.tobytes(), first, last
        if key not in made:
            made[key] = term[0][choices, first:last], term[1][choices, first:last]
        own.append(made[key])
    base, edges = np.zeros(2, dtype=np.int64), dict[tuple[int, int], "Term"]()
    for (a, b), term in model.edges.items():
        grid = np.ix_(kept[a], kept[b])
        if len(kept[a]) > 1 and len(kept[b]) > 1:
            key = id(term), kept[a].tobytes(), kept[b].tobytes()
            if key not in made:
                made[key] = term[0][grid], term[1][grid]
            edges[a, b] = made[key]
            continue
        memory, ticks = term[0][grid], term[1][grid]
        if len(kept[a]) == len(kept[b]) == 1:
            base += memory[0, 0], ticks[0, 0]
            continue
        number = a if len(kept[a]) > 1 else b
        own[number] = own[number][0] + memory.reshape(-1, 1), own[number][1] + ticks.reshape(-1, 1)
    numbers, homes, left = [], [0] * len(kept), list["Term"]()
    for number, term in enumerate(own):
        best = reduce(term[0][0], term[1][0])
        if len(kept[number]) == len(best) == 1:
            homes[number] = int(best[0]) + at.get(number, 0)
            base += term[0][0, best[0]], term[1][0, best[0]]
            continue
        numbers.append(number)
        left.append(term)
    place = {number: at for at, number in enumerate(numbers)}
    small = Model(tuple(left), {(place[a], place[b]): term for (a, b), term in edges.items()})
    return Contraction(model, kept, small, tuple(numbers), tuple(homes), (int(base[0]), int(base[1])))
