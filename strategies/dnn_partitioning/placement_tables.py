"""A placement problem over a lattice, in ticks: what the compiled searches read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.dnn_partitioning import max_load_kernels as kernels
from maniple.strategies.pipeline.stage_costs import Clock

if TYPE_CHECKING:
    from maniple.strategies.dnn_partitioning.max_load_kernels import LoadTables
    from maniple.strategies.dnn_partitioning.placement_problem import Placement
    from maniple.strategies.pipeline.ideals import Index, Lattice, Ticks

__all__: list[str] = []

NEVER = 1 << 50
"""Ticks of what a device cannot run."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlacementTables:
    """The tables with what they were made from.

    Args:
        placement: the problem.
        lattice: the ideals of its atoms.
        clock: what a tick is.
        accelerator: ticks of each atom on an accelerator; ``NEVER`` where it cannot run.
        cpu: on a CPU.
        loads: the tables.
    """

    placement: Placement
    lattice: Lattice
    clock: Clock
    accelerator: Ticks
    cpu: Ticks
    loads: LoadTables

    @staticmethod
    def of(placement: Placement, lattice: Lattice, *, overlap: bool = False) -> PlacementTables:
        """The tables of a problem over a lattice.

        Args:
            placement: the problem.
            lattice: the ideals of its atoms.
            overlap: whether transfers overlap with work.
        """
        atoms = placement.atoms
        longest = sum(atom.accelerator_s + (atom.cpu_s if atom.cpu_s < np.inf else 0.0) for atom in atoms)
        clock = Clock.fitting(longest + sum(sent.transfer_s for sent in placement.sent))
        accelerator: Ticks = np.array(
            [clock.ticks(atom.accelerator_s) if atom.supported else NEVER for atom in atoms], dtype=np.int64
        )
        cpu: Ticks = np.array(
            [clock.ticks(atom.cpu_s) if atom.cpu_s < np.inf else NEVER for atom in atoms], dtype=np.int64
        )
        return PlacementTables(
            placement, lattice, clock, accelerator, cpu, _loads(placement, lattice, clock, accelerator, cpu, overlap)
        )

    def atoms(self, start: int, end: int) -> tuple[int, ...]:
        """The atoms between two ideals, ascending."""
        return tuple(sorted(set(self.lattice.nodes(end)) - set(self.lattice.nodes(start))))


def _loads(
    placement: Placement,
    lattice: Lattice,
    clock: Clock,
    accelerator: Ticks,
    cpu: Ticks,
    overlap: bool,  # noqa: FBT001
) -> LoadTables:
    sizes = np.array([atom.size_bytes for atom in placement.atoms])
    rows: list[list[int]] = [[] for _ in placement.atoms]
    for place, sent in enumerate(placement.sent):
        for atom in sent.atoms:
            rows[atom].append(place)
    starts: Index = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    return kernels.LoadTables(
        lattice.members,
        lattice.first,
        lattice.larger,
        kernels.steps_of(lattice.first, lattice.larger, lattice.members),
        lattice.total(accelerator),
        lattice.total(cpu),
        lattice.total(np.where(accelerator < NEVER, accelerator, 0)),
        lattice.total(np.rint(sizes).astype(np.int64)).astype(np.float64),
        starts,
        np.array([place for row in rows for place in row], dtype=np.int32),
        np.cumsum([0, *(len(sent.atoms) for sent in placement.sent)]).astype(np.int32),
        np.array([atom for sent in placement.sent for atom in sent.atoms], dtype=np.int32),
        np.array([clock.ticks(sent.transfer_s) for sent in placement.sent], dtype=np.int64),
        placement.memory_bytes,
        overlap,
    )
