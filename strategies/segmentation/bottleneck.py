"""The least bottleneck of a pipeline over a lattice of ideals: bisection over bounds, one sweep for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline import sweep_kernels as kernels
from maniple.strategies.pipeline.ideals import Lattice, Ticks

if TYPE_CHECKING:
    from maniple.strategies.pipeline.sweep_kernels import Small

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """The end of one stage.

    Args:
        ideal: everything computed when the stage is done, as a place in its lattice.
        replicas: devices of the stage.
    """

    ideal: int
    replicas: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """What stages of a lattice cost, in ticks.

    Args:
        lattice: the ideals.
        work: of each ideal on 1, 2, ... replicas, shape (ideals, replicas).
        transfer: over the cut of each ideal on 1, 2, ... replicas, same shape; 0 at both ends.
        added: whether transfers add to the work; else the larger of work and either transfer counts.
    """

    lattice: Lattice
    work: Ticks
    transfer: Ticks
    added: bool = False

    def stage(self, start: int, end: int, replicas: int) -> int:
        """Ticks of the stage between two ideals."""
        load = int(self.work[end, replicas - 1] - self.work[start, replicas - 1])
        before, after = int(self.transfer[start, replicas - 1]), int(self.transfer[end, replicas - 1])
        return load + before + after if self.added else max(load, before, after)

    def bottleneck(self, cuts: tuple[Cut, ...]) -> int:
        """Ticks of the slowest stage."""
        starts = (0, *(cut.ideal for cut in cuts))
        return max(self.stage(start, cut.ideal, cut.replicas) for start, cut in zip(starts, cuts, strict=False))


@final
@dataclass(frozen=True, slots=True)
class Found:
    """The best pipeline of a lattice.

    Args:
        cuts: the end of every stage, in order; the last is the whole graph.
        ticks: its slowest stage.
    """

    cuts: tuple[Cut, ...]
    ticks: int


def least_bottleneck(loads: Loads, devices: int, floor: int, ceiling: int | None = None) -> Found | None:
    """The pipeline on at most some devices whose slowest stage is fastest; of equals one with the fewest devices.

    Args:
        loads: the lattice and its costs.
        devices: how many there are.
        floor: ticks that no pipeline of the lattice can go below.
        ceiling: ticks of a pipeline that is known; only better ones are looked for.

    Returns:
        The pipeline; None where none is below the ceiling.
    """
    search = _Search(loads, devices)
    best: Found | None = None
    if ceiling is None:
        best = search.whole()
        ceiling = best.ticks
    low, high = floor - 1, ceiling
    while high - low > 1:
        bound = (low + high) // 2
        need = search.sweep(bound)
        if search.reachable():
            best = search.trace(bound)
            high = best.ticks
        elif need == 0:
            break
        else:
            low = max(bound, need - 1)
    return best


@final
class _Search:
    """The scratch arrays of one bisection."""

    def __init__(self, loads: Loads, devices: int) -> None:
        self._loads = loads
        self._replicas = min(devices, loads.work.shape[1])
        self._work = np.ascontiguousarray(loads.work[:, : self._replicas])
        self._transfer = np.ascontiguousarray(loads.transfer[:, : self._replicas])
        self._devices = devices
        pairs = sum(devices - m for m in range(self._replicas))
        self._start: Ticks = np.empty((len(loads.lattice), pairs), dtype=np.int64)
        self._used: Small = np.empty(len(loads.lattice), dtype=np.int16)

    def sweep(self, bound: int) -> int:
        lattice = self._loads.lattice
        need: int = kernels.sweep(
            lattice.first,
            lattice.larger,
            self._work,
            self._transfer,
            self._loads.added,
            self._devices,
            bound,
            self._start,
            self._used,
        )
        return need

    def reachable(self) -> bool:
        return int(self._used[-1]) <= self._devices

    def whole(self) -> Found:
        """The best pipeline of one stage."""
        end = len(self._loads.lattice) - 1
        options = [Found((Cut(end, m),), self._loads.stage(0, end, m)) for m in range(1, self._replicas + 1)]
        return min(options, key=lambda found: found.ticks)

    def trace(self, bound: int) -> Found:
        """The pipeline that the last sweep found."""
        cuts: list[Cut] = []
        end = len(self._used) - 1
        while end:
            start, replicas = kernels.previous_cut(
                self._loads.lattice.members,
                self._work,
                self._transfer,
                self._loads.added,
                bound,
                self._used,
                end,
                int(self._used[end]),
            )
            cuts.append(Cut(end, replicas))
            end = start
        ordered = tuple(reversed(cuts))
        return Found(ordered, self._loads.bottleneck(ordered))
