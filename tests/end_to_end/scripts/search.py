"""A program that searches on rank 0, for half a second and with measured costs, and shows that all have one plan."""

# ruff: noqa: T201 - what it prints is what the test looks at

from __future__ import annotations

import hashlib

import maniple as mp
from maniple.models import digits_cnn
from maniple.runtime.control import world


def layers() -> mp.Graph:
    """Make a graph of few tasks: each is measured."""
    g = mp.Graph("layers")
    x, y = g.input("x", (8, 6)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 8)), 4), y))
    return g


def search(graph: mp.Graph, budget: float | None, proposals: int | None, costs: str) -> None:
    """Search, and print of each rank a digest of its plan and whether it searched."""
    calls: list[float] = []
    plan = mp.search(
        graph,
        mp.Machine.preset("cpu:2x1"),
        strategy="soap",
        budget=budget,
        proposals=proposals,
        costs=costs,
        watch=lambda _, s: calls.append(s),
    )
    mine = hashlib.sha256(plan.text().encode()).hexdigest()[:16]
    told = world.current().control.gather(f"{mine} {bool(calls)}".encode())
    print("plans", *(part.decode() for part in told))
    if costs == "measured" and world.current().rank == 0:
        print("terms", *(term for term, _ in dict(plan.explanation)[""]))


search(digits_cnn(8), 0.5, None, "analytic")
search(layers(), None, 20, "measured")
