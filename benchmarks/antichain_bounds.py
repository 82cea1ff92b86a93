"""Lower bounds of the cuts that `maniple partition` cannot prove the best: how near they are to what was found.

    python benchmarks/antichain_bounds.py --data FOLDER           prints the table of docs/explanation/antichain.md
    python benchmarks/antichain_bounds.py --data FOLDER --json    prints one JSON object

FOLDER holds the published profiles; by default MANIPLE_REFERENCE_DATA names it. The problems are those of
`benchmarks/antichain.py`: 4 and 8 devices at 1 GB/s and without communication, with and without replicas, and groups
of 4 devices at 10 GB/s in 2 or 4 servers at 1.25 GB/s. Exact answers are their own bound, and are left out.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.profile import read_profile
from maniple.strategies.pipeline.stage_costs import Level
from maniple.strategies.segmentation.segment import load_compiled, segment

WANTED = 0.96
SERVERS = 4
LARGEST = "nasnetamobile"  # whose ideals cannot be enumerated


def problems() -> Iterator[tuple[str, tuple[Level, ...], bool]]:
    """What the machines are called, their levels, and whether stages may have replicas."""
    for devices in (4, 8):
        yield f"{devices}, 1 GB/s", (Level(devices, 1e9),), False
        yield f"{devices}, 1 GB/s, replicas", (Level(devices, 1e9),), True
        yield f"{devices}", (Level(devices, math.inf),), False
    for servers in (2, SERVERS):
        yield f"4x{servers}, replicas", (Level(4, 10e9), Level(servers, 1.25e9)), True


def rows(folder: Path) -> Iterator[dict[str, object]]:
    """One row for each cut that is not exact."""
    for path in sorted((folder / "pipedream-profiles").glob("[a-z]*.txt")):
        graph = read_profile(path)
        for machine, levels, replicate in problems():
            if path.stem == LARGEST and len(levels) > 1:
                continue
            begun = time.perf_counter()
            found = segment(SegmentationProblem(graph, levels, replicate))
            seconds = time.perf_counter() - begun
            if found.exact:
                continue
            yield {
                "profile": path.stem,
                "machine": machine,
                "found s": round(found.value_s, 6),
                "bound s": round(found.lower_bound_s, 6),
                "bound / found": round(found.lower_bound_s / found.value_s, 4),
                "search s": round(seconds, 1),
            }


@click.command()
@click.option("--data", envvar="MANIPLE_REFERENCE_DATA", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(data: Path, as_json: bool) -> None:  # noqa: FBT001  (click passes flags by name)
    """Print the table, and its mean."""
    load_compiled()
    table = []
    for row in rows(data):
        print(row, file=sys.stderr, flush=True)
        table.append(row)
    mean = statistics.fmean(float(str(row["bound / found"])) for row in table)
    if as_json:
        print(json.dumps({"rows": table, "mean": mean, "wanted": WANTED}))
        return
    print(f"| {' | '.join(table[0])} |\n|{' --- |' * len(table[0])}")
    for row in table:
        print(f"| {' | '.join(map(str, row.values()))} |")
    print(f"\nmean {mean:.4f}, wanted at least {WANTED}: {'reached' if mean >= WANTED else 'missed'}")


if __name__ == "__main__":
    main()
