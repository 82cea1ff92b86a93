"""Sweeps: every system over sizes of tasks, in turn, until the METG of each is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maniple.process.error import RunError
from taskbench.metg import Sample, UndecidedError, metg
from taskbench.system import NODES

if TYPE_CHECKING:
    from taskbench.graph import TaskGraph
    from taskbench.system import System

# The sizes that the first rounds measure, as powers of two around that whose kernel takes as long as an empty task.
AROUND = range(-2, 3)
MOST_EXTENSIONS = 5


@dataclass
class Curve:
    """What was measured of one system on one graph.

    Args:
        graph: the graph.
        peak: floating-point operations per second of the bare kernel on all cores.
        empty_us: granularity of tasks without a kernel.
        seconds: by iterations, one figure per round.
    """

    graph: TaskGraph
    peak: float
    empty_us: float
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def sizes(self) -> list[int]:
        """The iterations to begin with."""
        per_iteration_us = 2 * 64 * NODES / self.peak * 1e6
        middle = max(0, round(math.log2(self.empty_us / per_iteration_us)))
        return sorted({1 << max(0, middle + offset) for offset in AROUND}, reverse=True)

    def samples(self) -> list[Sample]:
        """The medians over rounds."""
        tasks = sum(1 for _ in self.graph.tasks())
        found = []
        for iterations, values in self.seconds.items():
            seconds = statistics.median(values)
            efficiency = self.graph.flops(iterations) / seconds / self.peak
            found.append(Sample(iterations, seconds * NODES / tasks * 1e6, efficiency))
        return found

    def wanted(self) -> int | None:
        """The size that METG still lacks; None when it is known, or when there is no such size."""
        try:
            metg(self.samples())
        except UndecidedError as gap:
            return 2 * max(self.seconds) if gap.larger else (min(self.seconds) // 2 or None)
        except RunError:
            return None
        return None


def measure(
    graph: TaskGraph, systems: Mapping[str, System], peak: Callable[[], float], rounds: int
) -> dict[str, Curve]:
    """Measure all systems on one graph, in turn.

    Args:
        graph: the graph.
        systems: those that are up, by name.
        peak: measures the bare kernel on all cores.
        rounds: how often each figure is taken; medians count.

    Returns:
        Each system's curve; one whose METG is out of reach has been extended as far as is sensible.

    Raises:
        RunError: a run failed.
    """
    for system in systems.values():
        system.prepare(graph)
    tasks = sum(1 for _ in graph.tasks())
    peaks: list[float] = []
    empty: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        peaks.append(peak())
        for name, system in systems.items():
            empty[name].append(system.run(0) * NODES / tasks * 1e6)
    best = max(peaks)  # whatever slowed the bare kernel down was not a system
    curves = {name: Curve(graph, best, statistics.median(found)) for name, found in empty.items()}
    todo = {name: curve.sizes() for name, curve in curves.items()}
    for _ in range(1 + MOST_EXTENSIONS):
        _take(systems, curves, todo, rounds)
        missing = {name: curve.wanted() for name, curve in curves.items()}
        todo = {name: [size] for name, size in missing.items() if size is not None}
        if not todo:
            break
    return curves


def _take(
    systems: Mapping[str, System], curves: Mapping[str, Curve], todo: Mapping[str, list[int]], rounds: int
) -> None:
    """Measure some sizes: a round takes each system's first, then each system's second, and so on."""
    for _ in range(rounds):
        for turn in range(max(map(len, todo.values()))):
            for name, sizes in todo.items():
                if turn < len(sizes):
                    found = curves[name].seconds.setdefault(sizes[turn], [])
                    found.append(systems[name].run(sizes[turn]))
