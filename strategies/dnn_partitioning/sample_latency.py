"""The placement that is done soonest with one sample (Tarnawski et al., NeurIPS 2020, section 4: latency).

Every accelerator holds one convex block; a block starts when all that it reads is there, and takes its transfers in,
its work and its transfers out. A CPU has room for everything at once and transfers nothing.

The search minimises the time of blocks that run one after the other, exactly over the ideals that can be enumerated;
independent blocks then run side by side. What no placement can go below is found on paths: a block that holds two
nodes of a path holds all between them, so along a path blocks are segments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.error import RequestError
from maniple.strategies.dnn_partitioning import max_load_kernels as kernels
from maniple.strategies.dnn_partitioning.max_load import Share, nothing_fits
from maniple.strategies.dnn_partitioning.placement_tables import PlacementTables
from maniple.strategies.pipeline.ideals import Lattice, Links, chain, enumerate_ideals
from maniple.strategies.pipeline.pair_kernels import INFINITE

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.strategies.dnn_partitioning.placement_problem import Placement
    from maniple.strategies.pipeline.ideals import Index, Ticks

__all__: list[str] = []

MOST_IDEALS = 60_000
"""Ideals that are enumerated before the order is made linear."""


@final
@dataclass(frozen=True, slots=True)
class SampleLatency:
    """A placement for one sample.

    Args:
        shares: in order; neighbouring atoms on a CPU are one share.
        value_s: seconds of a sample.
        lower_bound_s: what no placement goes below.
        states: ideals of the lattice that was searched.
    """

    shares: tuple[Share, ...]
    value_s: float
    lower_bound_s: float
    states: int

    @property
    def gap(self) -> float:
        """How far the time may be above the least, as a share of the bound."""
        return math.inf if self.lower_bound_s <= 0 else self.value_s / self.lower_bound_s - 1

    @property
    def exact(self) -> bool:
        """Whether the time is known to be the least."""
        return self.gap <= 1e-12


def sample_latency(placement: Placement, states: int = MOST_IDEALS) -> SampleLatency:
    """A placement that is soon done with one sample, and a bound.

    Args:
        placement: the problem, of a forward pass.
        states: the most ideals to enumerate.

    Raises:
        RequestError: the graph has a backward pass, or nothing fits.
    """
    if any(node.backward for node in placement.graph.nodes):
        raise RequestError(
            f"{placement.graph.name}: latency: expected the graph of a forward pass, got backward nodes; "
            "ask for throughput"
        )
    links = Links.of(len(placement.atoms), placement.edges)
    line = _serial(PlacementTables.of(placement, chain(links)), int(INFINITE) - 1)
    found, count = line, len(placement.atoms) + 1
    lattice: Lattice | None = enumerate_ideals(links, states)
    if lattice is not None:
        count = len(lattice)
        top = int(INFINITE) - 1 if line is None else line[0]
        better = _serial(PlacementTables.of(placement, lattice), top)
        found = line if better is None else better
    if found is None:
        raise nothing_fits(placement)
    shares = found[1]
    return SampleLatency(shares, finish_s(placement, shares), path_bound_s(placement), count)


def _serial(tables: PlacementTables, ceiling: int) -> tuple[int, tuple[Share, ...]] | None:
    """The blocks whose times add up to the least, below a ceiling."""
    placement, lattice = tables.placement, tables.lattice
    quickest = lattice.total(np.minimum(tables.accelerator, tables.cpu))
    best: Ticks = np.empty((len(lattice), placement.accelerators + 1), dtype=np.int64)
    choice: Index = np.empty((len(lattice), placement.accelerators + 1, 2), dtype=np.int32)
    # Without a CPU no atom can be left to one.
    cpu = tables.cpu if placement.cpus else np.full_like(tables.cpu, INFINITE // 4)
    kernels.least_serial(tables.loads, cpu, placement.accelerators, ceiling, quickest[-1] - quickest, best, choice)
    used = int(np.argmin(best[-1]))
    if best[-1, used] >= min(ceiling, int(INFINITE) // 8):
        return None
    blocks: list[tuple[bool, tuple[int, ...]]] = []
    end, value = len(lattice) - 1, int(best[-1, used])
    while end:
        start, hosted = (int(number) for number in choice[end, used])
        atoms = tables.atoms(start, end)
        if hosted and blocks and blocks[-1][0]:
            blocks[-1] = (True, tuple(sorted((*atoms, *blocks[-1][1]))))
        else:
            blocks.append((bool(hosted), atoms))
        end, used = start, used - (1 - hosted)
    return value, tuple(_share(placement, hosted, atoms) for hosted, atoms in reversed(blocks))


def _share(placement: Placement, hosted: bool, atoms: tuple[int, ...]) -> Share:  # noqa: FBT001
    size = sum(placement.atoms[atom].size_bytes for atom in atoms)
    if hosted:
        return Share("cpu", atoms, placement.cpu_load_s(atoms), size)
    return Share("accelerator", atoms, placement.accelerator_load_s(atoms), size)


def finish_s(placement: Placement, shares: tuple[Share, ...]) -> float:
    """Seconds until one sample is through: everything starts as soon as what it reads is there."""
    sources: list[list[int]] = [[] for _ in placement.atoms]
    for a, b in placement.edges:
        sources[b].append(a)
    done = [0.0] * len(placement.atoms)
    for share in shares:
        inside = set(share.atoms)
        if share.kind == "cpu":
            for atom in share.atoms:
                begun = max((done[source] for source in sources[atom]), default=0.0)
                done[atom] = begun + placement.atoms[atom].cpu_s
        else:
            begun = max((done[s] for atom in share.atoms for s in sources[atom] if s not in inside), default=0.0)
            for atom in share.atoms:
                done[atom] = begun + share.load_s
    return max(done)


def path_bound_s(placement: Placement) -> float:
    """Seconds that no placement goes below: the longest of what some paths take by themselves.

    The paths are the longest by work, by size and by both; of every path the best segments are found exactly.
    """
    atoms = placement.atoms
    sizes = max(1.0, sum(atom.size_bytes for atom in atoms))
    work = max(1e-12, sum(min(atom.accelerator_s, atom.cpu_s) for atom in atoms))

    def quick(atom: int) -> float:
        return min(atoms[atom].accelerator_s, atoms[atom].cpu_s) / work

    def large(atom: int) -> float:
        return atoms[atom].size_bytes / sizes

    weights: list[Callable[[int], float]] = [quick, large, lambda atom: quick(atom) + large(atom)]
    return max(_along(placement, _longest(placement, weight)) for weight in weights)


def _longest(placement: Placement, weight: Callable[[int], float]) -> list[int]:
    """The path with the largest sum of weights; of equals the one with the lowest atoms."""
    best = [weight(atom) for atom in range(len(placement.atoms))]
    back = [-1] * len(best)
    for source, target in placement.edges:  # sorted by source, which is a topological order
        reached = best[source] + weight(target)
        if reached > best[target]:
            best[target], back[target] = reached, source
    path = [max(range(len(best)), key=lambda atom: (best[atom], -atom))]
    while back[path[-1]] >= 0:
        path.append(back[path[-1]])
    return path[::-1]


def _along(placement: Placement, path: list[int]) -> float:
    """The least seconds of a path: segments on accelerators of their own, and single atoms on CPUs.

    An output that atoms inside and outside a segment use crosses the segment's block, wherever the rest is.
    """
    on_path = set(path)
    touching: dict[int, list[tuple[int, int, float]]] = {atom: [] for atom in path}
    for number, sent in enumerate(placement.sent):
        meeting = sorted(on_path.intersection(sent.atoms))
        if len(meeting) > 1:
            for atom in meeting:
                touching[atom].append((number, len(meeting), sent.transfer_s))
    best = [[0.0] + [math.inf] * placement.accelerators]
    for end in range(1, len(path) + 1):
        hosted = placement.atoms[path[end - 1]].cpu_s if placement.cpus else math.inf
        row = [value + hosted for value in best[end - 1]]
        work, size, moved = 0.0, 0.0, 0.0
        inside: dict[int, int] = {}
        for start in range(end - 1, -1, -1):
            joining = placement.atoms[path[start]]
            work, size = work + joining.accelerator_s, size + joining.size_bytes
            if size > placement.memory_bytes or not joining.supported:
                break
            for number, users, transfer in touching[path[start]]:
                held = inside.get(number, 0)
                moved += transfer if held == 0 else (-transfer if held + 1 == users else 0.0)
                inside[number] = held + 1
            for used in range(placement.accelerators):
                row[used + 1] = min(row[used + 1], best[start][used] + work + moved)
        best.append(row)
    return min(best[-1])
