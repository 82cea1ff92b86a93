"""The frontier: branch and bound over choices in a fixed order, compiled.

Layers are decided in order, depth first. For each bound (see `relaxation`) bucket elimination (R. Dechter, Bucket
elimination: a unifying framework for reasoning, Artificial Intelligence 113, 1999) takes the layers out from the last
to the first: what it leaves at a layer is, for the choices before, the least that all layers after it add. So at any
point the bound is what the decided layers add and that rest, exactly the least of this bound over all ways to go on; of
all bounds the greatest counts.

    chain a - b - c      rest[b] = min over c of  alone[c] + pair[b, c]
                         rest[a] = min over b of  alone[b] + pair[a, b] + rest[b]
    a=2 decided          the bound is alone[a=2] + rest[a=2]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.exhaustive.branch_kernels import advance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.exhaustive.branch_kernels import Cube, Integers, Known
    from maniple.strategies.exhaustive.published_layer import Layers
    from maniple.strategies.exhaustive.relaxation import Bound
    from maniple.strategies.exhaustive.symmetry import Exchange
    from maniple.strategies.interface.space import Space


__all__: list[str] = []

ENTRIES = 30_000_000
"""Of a rest of more entries only the least of each of its tables counts."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Terms of all bounds over the choices of some layers.

    Args:
        layers: ascending, one axis each; the last axis is the bounds'.
        terms: the table.
    """

    layers: tuple[int, ...]
    terms: np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@final
class Frontier:
    """What a search needs to go from one plan that no bound excludes to the next.

    Args:
        layers: what is decided.
        bounds: of the same layers.
        space: the graph's space.
        exchanges: the machine's symmetries; of alike plans the first counts.
    """

    def __init__(self, layers: Layers, bounds: Sequence[Bound], space: Space, exchanges: Sequence[Exchange]) -> None:
        self.sizes = np.asarray([len(layers.choices[leader]) for leader in layers.leaders], dtype=np.int64)
        self._images = _images(layers, space, exchanges, int(self.sizes.max()))
        own = _stack(bounds, self.sizes)
        rests = _rests(own, self.sizes)
        self._least = np.asarray([bound.least for bound in bounds])
        parts, offsets, strides, decided, starts = [], [], [], [], [0]
        size, depths = 0, len(self.sizes)
        for depth in range(depths):
            mine = [(table, True) for table in own if table.layers[-1] == depth]
            # A rest that reaches past this layer, and one that a later layer takes up again, is not complete here.
            mine += [(table, False) for after, table in rests if after > depth >= table.layers[-1]]
            for table, is_own in mine:
                parts.append(np.ascontiguousarray(table.terms).reshape(-1))
                offsets.append(size)
                size += table.terms.size
                steps = [0] * depths
                for axis, layer in enumerate(table.layers):
                    steps[layer] = table.terms.strides[axis] // table.terms.itemsize
                strides.append(steps)
                decided.append(is_own)
            starts.append(len(offsets))
        self._terms = np.concatenate(parts)
        self._tables = (
            np.asarray(starts, dtype=np.int64),
            np.asarray(offsets, dtype=np.int64),
            np.asarray(strides, dtype=np.int64).reshape(-1, depths),
            np.asarray(decided, dtype=np.bool_),
        )

    @property
    def least(self) -> float:
        """The bound on all plans, in nanoseconds."""
        return min(self.bound([number]) for number in range(int(self.sizes[0])))

    @property
    def start(self) -> tuple[int, ...]:
        """Where a search begins: before all plans."""
        return (-1,) * len(self.sizes)

    def after(
        self, position: tuple[int, ...], fragments: Known, limits: tuple[int, int, int]
    ) -> tuple[int, tuple[int, ...], int]:
        """Go on from a position to the next plan that no bound excludes and that may be nearly the fastest.

        Args:
            position: the numbers of the choices, from the first -1 on not decided.
            fragments: by which plans are timed.
            limits: plans whose bound is at least so much are excluded; those that take at least so many nanoseconds are
                gone past; so many choices are tried at most.

        Returns:
            FOUND and the plan, PAUSED and where to go on, or ENDED; and how many plans were gone past.
        """
        place = np.asarray(position, dtype=np.int64)
        state, timed = advance(
            place, self._least, self._terms, self._tables, self.sizes, self._images, fragments, limits
        )
        return int(state), tuple(place.tolist()), int(timed)

    def alike(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """What else the machine's symmetries make of a plan, ascending: as fast, but for ties that ids break."""
        found = {
            tuple(int(self._images[layer, which, number]) for layer, number in enumerate(numbers))
            for which in range(self._images.shape[1])
        }
        return tuple(sorted(found - {tuple(numbers)}))

    def bound(self, numbers: Sequence[int]) -> float:
        """The greatest bound, in nanoseconds, when so many layers are decided."""
        starts, offsets, strides, decided = self._tables
        total = self._least.copy()
        place = np.asarray([*numbers, *[-1] * (len(self.sizes) - len(numbers))], dtype=np.int64)
        for depth in range(len(numbers)):
            for table in range(starts[depth], starts[depth + 1]):
                if decided[table] or depth == len(numbers) - 1:
                    at = offsets[table] + int((strides[table] * np.maximum(place, 0)).sum())
                    total += self._terms[at : at + len(total)]
        return float(total.max())


def _stack(bounds: Sequence[Bound], sizes: Integers) -> list[_Table]:
    """The tables of all bounds, one for each layer and each pair."""
    count = len(bounds)
    found: dict[tuple[int, ...], np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = {
        (layer,): np.zeros((size, count)) for layer, size in enumerate(sizes)
    }
    for number, bound in enumerate(bounds):
        for layer, alone in bound.alone.items():
            found[layer,][:, number] += alone
        for pair, both in bound.pairs.items():
            if pair not in found:
                found[pair] = np.zeros((*(sizes[layer] for layer in pair), count))
            found[pair][..., number] += both
    return [_Table(layers, terms) for layers, terms in sorted(found.items())]


def _rests(own: Sequence[_Table], sizes: Integers) -> list[tuple[int, _Table]]:
    """The rests, each with the layer that was taken out, from the last layer on."""
    waiting = list(own)
    found: list[tuple[int, _Table]] = []
    for layer in range(len(sizes) - 1, 0, -1):
        mine = [table for table in waiting if table.layers[-1] == layer]
        waiting = [table for table in waiting if table.layers[-1] != layer]
        involved = sorted({other for table in mine for other in table.layers})
        count = mine[0].terms.shape[-1]
        if np.prod([float(sizes[other]) for other in involved]) * count > ENTRIES:
            least = np.sum([table.terms.reshape(-1, count).min(axis=0) for table in mine], axis=0)
            found.append((layer, _Table((0,), np.tile(least, (int(sizes[0]), 1)))))
            continue
        total = np.zeros((*[1] * len(involved), count))
        for table in mine:
            shape = [sizes[other] if other in table.layers else 1 for other in involved]
            total = total + table.terms.reshape((*shape, count))
        rest = _Table(tuple(involved[:-1]), np.ascontiguousarray(total.min(axis=len(involved) - 1)))
        if rest.layers:
            waiting.append(rest)
            found.append((layer, rest))
    return found


def _images(layers: Layers, space: Space, exchanges: Sequence[Exchange], most: int) -> Cube:
    """By layer, symmetry and choice: the choice that it becomes.

    Only the exchanges count that make of each choice of each layer another one of it: a range of processors need not
    stay one, and a plan may be left out only for one that is tried.
    """
    images = np.zeros((len(layers.leaders), len(exchanges), most), dtype=np.int64)
    closed = [True] * len(exchanges)
    for place, leader in enumerate(layers.leaders):
        own = space.operators[leader]
        at = {(c.degrees, own.plan(c).processors): n for n, c in enumerate(layers.choices[leader])}
        for (degrees, processors), number in at.items():
            for which, exchange in enumerate(exchanges):
                image = at.get((degrees, tuple(exchange[p] for p in processors)), -1)
                images[place, which, number] = image
                closed[which] &= image >= 0
    # numpy may leave the layers innermost, and compiled code would be compiled again for that.
    return np.ascontiguousarray(images[:, closed])
