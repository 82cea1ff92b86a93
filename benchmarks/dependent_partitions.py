"""Dependent partitions of large fields: seconds for by_field, image, preimage and the algebra, as JSON and a table.

    python benchmarks/dependent_partitions.py [--elements N] [--pieces P] [--repeat R] [--json]

Pointers are random, the worst case for runs: an image has about as many runs as elements.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from time import perf_counter

import numpy as np

from maniple.regions.dependent import by_field, image, preimage
from maniple.regions.partition import blocks
from maniple.regions.rectangle import Rect
from maniple.regions.subspace import Partition


def measured(operation: Callable[[], Partition], repeat: int) -> dict[str, float]:
    """Median seconds of an operation, and the runs of its result."""
    times = []
    found = operation()
    for _ in range(repeat):
        begun = perf_counter()
        found = operation()
        times.append(perf_counter() - begun)
    runs = sum(len(space.columns[0]) for space in found.subspaces if not isinstance(space, Rect))
    return {"seconds": statistics.median(times), "least": min(times), "runs": runs}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("elements", 10_000_000), ("pieces", 4), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    space, colors = Rect.of_shape((given.elements,)), Rect.of_shape((given.pieces,))
    pointers = draw.integers(given.elements, size=given.elements)
    near = np.clip(np.arange(given.elements) + draw.integers(-8, 9, size=given.elements), 0, given.elements - 1)
    named = draw.integers(given.pieces, size=given.elements)
    cut = blocks((given.pieces,)).bind(space)
    reached = image(cut, [pointers], space, space)
    operations: dict[str, Callable[[], Partition]] = {
        "by_field, random colours": lambda: by_field(space, named, colors),
        "image, random pointers": lambda: image(cut, [pointers], space, space),
        "image, near pointers": lambda: image(cut, [near], space, space),
        "preimage, random pointers": lambda: preimage(cut, [pointers], space, space),
        "difference image - blocks": lambda: reached - cut,
        "union image | blocks": lambda: reached | cut,
    }
    results = {name: measured(operation, given.repeat) for name, operation in operations.items()}
    if given.json:
        print(json.dumps({"elements": given.elements, "pieces": given.pieces, "results": results}))
        return
    print(f"{given.elements:,} elements, {given.pieces} pieces, median of {given.repeat}")
    for name, found in results.items():
        print(f"{name:28s} {found['seconds']:8.3f} s   least {found['least']:8.3f} s   {found['runs']:>10,} runs")


if __name__ == "__main__":
    main()
