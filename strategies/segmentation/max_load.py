"""The placement with the least largest load on accelerators and CPUs, every device with one convex part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from maniple.regions.error import RequestError
from maniple.strategies.segmentation import max_load_kernels as kernels
from maniple.strategies.segmentation.costs import Clock
from maniple.strategies.segmentation.ideals import Lattice, Links, chain, enumerate_ideals
from maniple.strategies.segmentation.pair_kernels import INFINITE

if TYPE_CHECKING:
    from maniple.strategies.segmentation.ideals import Index, Ticks, Words
    from maniple.strategies.segmentation.max_load_kernels import LoadTables
    from maniple.strategies.segmentation.placement import Placement

__all__: list[str] = []

MOST_IDEALS = 300_000
"""Ideals that are enumerated before the forward order is made linear."""
_NEVER = 1 << 50
"""Ticks of what a device cannot run."""


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
        load_s: the largest load.
        lower_bound_s: what no placement of convex parts goes below.
        exact: whether the load is known to be the least.
        states: ideals of the lattice that was searched.
        pairs: stages that were looked at.
    """

    shares: tuple[Share, ...]
    load_s: float
    lower_bound_s: float
    exact: bool
    states: int
    pairs: int


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
            raise _nothing_fits(placement)
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
        raise _nothing_fits(placement)
    # No ideal beats the line: its placement is the best.
    return line.answer(known, bound=known[0], pairs=search.pairs, states=len(lattice))


def _nothing_fits(placement: Placement) -> RequestError:
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
        atoms = placement.atoms
        longest = sum(atom.accelerator_s + (atom.cpu_s if atom.cpu_s < np.inf else 0.0) for atom in atoms)
        self._clock = Clock.fitting(longest + sum(sent.transfer_s for sent in placement.sent))
        accelerator = np.array([self._ticks(atom.accelerator_s, able=atom.supported) for atom in atoms], dtype=np.int64)
        cpu = np.array([self._ticks(atom.cpu_s, able=True) for atom in atoms], dtype=np.int64)
        self._saving = _saving(accelerator, cpu)
        able = accelerator[accelerator < _NEVER]
        # Everything on the accelerators, but for what a CPU can take off them in the same time.
        self.floor = int(able.sum() / max(placement.accelerators + placement.cpus * self._saving, 1e-9))
        self._tables = self._tabulated(accelerator, cpu)

    def _ticks(self, seconds: float, *, able: bool) -> int:
        return self._clock.ticks(seconds) if able and seconds < np.inf else _NEVER

    def _tabulated(self, accelerator: Ticks, cpu: Ticks) -> LoadTables:
        placement, lattice = self._placement, self._lattice
        sizes = np.array([atom.size_bytes for atom in placement.atoms])
        rows = [[place for place, sent in enumerate(placement.sent) if atom in sent.atoms] for atom in range(len(sizes))]
        users: Words = np.zeros((max(1, len(placement.sent)), lattice.links.words), dtype=np.uint64)
        for place, sent in enumerate(placement.sent):
            for atom in sent.atoms:
                users[place, atom // 64] |= np.uint64(1 << (atom % 64))
        starts: Index = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
        return kernels.LoadTables(
            lattice.members,
            lattice.first,
            lattice.larger,
            kernels.steps_of(lattice.first, lattice.larger, lattice.members),
            lattice.total(accelerator),
            lattice.total(cpu),
            lattice.total(np.rint(sizes).astype(np.int64)).astype(np.float64),
            starts,
            np.array([place for row in rows for place in row], dtype=np.int32),
            users,
            np.array([self._clock.ticks(sent.transfer_s) for sent in placement.sent], dtype=np.int64),
            placement.memory_bytes,
            self._overlap,
        )

    def run(self, ceiling: int) -> Found | None:
        """The best placement below a ceiling."""
        k, hosts = self._placement.accelerators, self._placement.cpus
        best: Ticks = np.empty((len(self._lattice), k + 1, hosts + 1), dtype=np.int64)
        choice: Index = np.empty((len(self._lattice), k + 1, hosts + 1, 2), dtype=np.int32)
        self.pairs += kernels.least_load(self._tables, k, hosts, ceiling, self._saving, best, choice)
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
            atoms = tuple(sorted(set(self._lattice.nodes(end)) - set(self._lattice.nodes(start))))
            load = (
                placement.cpu_load_s(atoms)
                if hosted
                else placement.accelerator_load_s(atoms, overlap=self._overlap)
            )
            size = sum(placement.atoms[atom].size_bytes for atom in atoms)
            shares.append(Share("cpu" if hosted else "accelerator", atoms, load, size))
        load = max(share.load_s for share in shares)
        exact = found[0] <= bound
        lower = load if exact else min(load, self._clock.seconds(bound))
        return MaxLoad(tuple(shares), load, lower, exact, states or len(self._lattice), pairs)


def _saving(accelerator: Ticks, cpu: Ticks) -> float:
    """Ticks of accelerators that one tick of a CPU replaces at most."""
    hosted = cpu < _NEVER
    able = hosted & (accelerator > 0) & (accelerator < _NEVER)
    if not able.any():
        return 0.0
    if (cpu[able] == 0).any():
        return float(accelerator[able].sum())
    return float((accelerator[able] / cpu[able]).max())
