"""Trains every other one of some pipelines on four ranks, and writes what came of each: `drawn_pipelines.py OUT FIRST`.

They are every synchronous order on stages of its form, and drawn networks with stages, splits and recomputation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "laws"))

from pipelined_networks import Drawn, drawn, in_stages, perceptron, trained

import maniple as mp

FORMS = {
    "sequential": ([[0], [1], [2]], 3),
    "gpipe": ([[0], [1], [2], [3]], 5),
    "1f1b": ([[0], [1], [2], [3]], 8),
    "early_backward": ([[0], [1], [2]], 5),
    "interleaved_1f1b": ([[0, 2], [1, 3]], 4),
    "looped_bfs": ([[0, 2], [1, 3]], 3),
    "zb_h1": ([[0], [1], [2], [3]], 5),
    "zb_h2": ([[0], [1]], 8),
    "v_half": ([[0, 3], [1, 2]], 5),
    "v_zb": ([[0, 3], [1, 2]], 8),
}
"""By order the stages of each lane, and the number of micro-batches."""
SEEDS = (3, 11, 29, 45)
"""Of drawn networks in one to four stages, with dropout, skips, tied weights and two losses among them."""


def cases() -> list[Drawn]:
    """What is trained."""
    ordered = [
        in_stages(perceptron(8, sum(map(len, lanes))), lanes, order, parts, again=("relu",))
        for order, (lanes, parts) in FORMS.items()
    ]
    return [*ordered, *(drawn(Random(seed)) for seed in SEEDS)]


def main(out: Path, first: int) -> None:
    """Train, and write."""
    world, found = mp.world(), []
    for case in cases()[first::2]:
        losses, parameters = trained(case, case.plan, world)
        found.append([losses, {name: value.tolist() for name, value in parameters.items()}])
    if world.rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
