"""The placement with the least largest load on accelerators and CPUs, every device with one convex part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from maniple.process.error import RequestError
from maniple.strategies.dnn_partitioning import max_load_kernels as kernels
from maniple.strategies.dnn_partitioning.placement_tables import NEVER, PlacementTables
from maniple.strategies.pipeline.ideals import Lattice, Links, chain, enumerate_ideals
from maniple.strategies.pipeline.pair_kernels import INFINITE

if TYPE_CHECKING:
    from maniple.strategies.dnn_partitioning.placement_problem import Placement
    from maniple.strategies.pipeline.ideals import Index, Ticks

__all__: list[str] = []

MOST_IDEALS = 300_000
"""Ideals that are enumerated before the forward order is made linear."""


@final
@dataclass(frozen=True, slots=True)
class Share:
    """What one device runs.

    Args:
        kind: the device.
        atoms: of the placement, ascending.
        load_s: seconds per sample.
        size_bytes: on the device.
    """

    kind: Literal["accelerator", "cpu"]
    atoms: tuple[int, ...]
    load_s: float
    size_bytes: float


@final
@dataclass(frozen=True, slots=True)
class MaxLoad:
    """A placement.

    Args:
        shares: in the forward order.
        value_s: the largest load.
        lower_bound_s: what no placement of convex parts goes below.
        exact: whether the load is known to be the least.
        states: ideals of the lattice that was searched.
        pairs: stages that were looked at.
    """

    shares: tuple[Share, ...]
    value_s: float
    lower_bound_s: float
    exact: bool
    states: int
    pairs: int

    @property
    def gap(self) -> float:
        """How far the load may be above the least, as a share of the bound; 0 when exact."""
        if self.exact:
            return 0.0
        return math.inf if self.lower_bound_s <= 0 else self.value_s / self.lower_bound_s - 1


def max_load(placement: Placement, *, overlap: bool = False, states: int = MOST_IDEALS) -> MaxLoad:
    """The placement with the least largest load, in contiguous parts.

    Args:
        placement: the problem.
        overlap: whether transfers overlap with work.
        states: the most ideals to enumerate.

    Raises:
        RequestError: nothing fits on the devices.
    """
    links = Links.of(len(placement.atoms), placement.edges)
    line = _Search(placement, chain(links), overlap=overlap)
    known = line.run(int(INFINITE) - 1)
    lattice = enumerate_ideals(links, states)
    if lattice is None:
        if known is None:
            raise nothing_fits(placement)
        return line.answer(known, bound=line.floor, pairs=line.pairs)
    search = _Search(placement, lattice, overlap=overlap)
    # Low ceilings first: they leave little to look at, and a placement below one is the best there is.
    top = int(INFINITE) - 1 if known is None else known[0]
    ceiling = min(top, search.floor + search.floor // 256 + 2)
    while True:
        found = search.run(ceiling)
        if found is not None:
            return search.answer(found, bound=found[0], pairs=search.pairs)
        if ceiling >= top:
            break
        ceiling = min(top, search.floor + 4 * (ceiling - search.floor))
    if known is None:
        raise nothing_fits(placement)
    # No ideal beats the line: its placement is the best.
    return line.answer(known, bound=known[0], pairs=search.pairs, states=len(lattice))


def nothing_fits(placement: Placement) -> RequestError:
    """The refusal of a problem that has no solution."""
    return RequestError(
        f"{placement.graph.name}: memory: no placement on {placement.accelerators} accelerators of "
        f"{placement.memory_bytes:.0f} bytes and {placement.cpus} CPUs fits; give more devices or memory"
    )


Found = tuple[int, tuple[tuple[int, int, int], ...]]
"""Ticks, and for every part the ideals before and after it and 1 for a CPU."""


@final
class _Search:
    """A placement over a lattice, in ticks."""

    def __init__(self, placement: Placement, lattice: Lattice, *, overlap: bool) -> None:
        self._placement, self._lattice, self._overlap = placement, lattice, overlap
        self.pairs = 0
        self._all = PlacementTables.of(placement, lattice, overlap=overlap)
        accelerator = self._all.accelerator
        self._saving = _saving(accelerator, self._all.cpu)
        able = accelerator[accelerator < NEVER]
        # Everything on the accelerators, but for what a CPU can take off them in the same time.
        self.floor = int(able.sum() / max(placement.accelerators + placement.cpus * self._saving, 1e-9))

    def run(self, ceiling: int) -> Found | None:
        """The best placement below a ceiling."""
        k, hosts = self._placement.accelerators, self._placement.cpus
        best: Ticks = np.empty((len(self._lattice), k + 1, hosts + 1), dtype=np.int64)
        choice: Index = np.empty((len(self._lattice), k + 1, hosts + 1, 2), dtype=np.int32)
        self.pairs += kernels.least_load(self._all.loads, k, hosts, ceiling, self._saving, best, choice)
        values = best[-1]
        a, c = (int(place) for place in np.unravel_index(int(np.argmin(values)), values.shape))
        if values[a, c] >= ceiling:
            return None
        parts: list[tuple[int, int, int]] = []
        end = len(self._lattice) - 1
        while end:
            start, hosted = (int(value) for value in choice[end, a, c])
            parts.append((start, end, hosted))
            end, a, c = start, a - (1 - hosted), c - hosted
        return int(values.min()), tuple(reversed(parts))

    def answer(self, found: Found, *, bound: int, pairs: int, states: int | None = None) -> MaxLoad:
        """The placement with its loads added up anew."""
        placement, shares = self._placement, []
        for start, end, hosted in found[1]:
            atoms = self._all.atoms(start, end)
            load = placement.cpu_load_s(atoms) if hosted else placement.accelerator_load_s(atoms, overlap=self._overlap)
            size = sum(placement.atoms[atom].size_bytes for atom in atoms)
            shares.append(Share("cpu" if hosted else "accelerator", atoms, load, size))
        load = max(share.load_s for share in shares)
        exact = found[0] <= bound
        lower = load if exact else min(load, self._all.clock.seconds(bound))
        return MaxLoad(tuple(shares), load, lower, exact, states or len(self._lattice), pairs)


def _saving(accelerator: Ticks, cpu: Ticks) -> float:
    """Ticks of accelerators that one tick of a CPU replaces at most."""
    hosted = cpu < NEVER
    able = hosted & (accelerator > 0) & (accelerator < NEVER)
    if not able.any():
        return 0.0
    if (cpu[able] == 0).any():
        return float(accelerator[able].sum())
    return float((accelerator[able] / cpu[able]).max())
