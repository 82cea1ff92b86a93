"""K-means: points in blocks, centres that all blocks read, and sums that all blocks reduce into.

python examples/kmeans.py [--points N] [--clusters K] [--blocks B] [--steps S]
maniple run --nodes 2 examples/kmeans.py
"""

from __future__ import annotations

import argparse

import torch

import maniple as mp


@mp.task
def assign(points: mp.Read, centres: mp.Read, sums: mp.ReduceSum, counts: mp.ReduceSum, spread: mp.ReduceMax) -> None:
    """Adds every point to its nearest centre's sum, and takes the greatest distance from any."""
    distances = torch.cdist(points, centres)
    nearest = distances.argmin(dim=1)
    sums.index_add_(0, nearest, points)
    counts.index_add_(0, nearest, torch.ones(len(points), dtype=torch.float64))
    torch.maximum(spread, distances.min(dim=1).values.max(), out=spread)


@mp.task
def move(centres: mp.ReadWrite, sums: mp.Read, counts: mp.Read) -> None:
    """Moves each centre to the mean of its points; one that has none stays."""
    used = counts > 0
    centres[used] = sums[used] / counts[used, None]


def main() -> None:
    """Clusters random points around known centres, and checks the result against plain tensors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("points", 4000), ("clusters", 5), ("blocks", 4), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    true = 10 * torch.rand((given.clusters, 2), generator=draw, dtype=torch.float64)
    label = torch.randint(given.clusters, (given.points,), generator=draw)
    values = true[label] + 0.3 * torch.randn((given.points, 2), generator=draw, dtype=torch.float64)

    points = mp.region((given.points, 2), "float64", "points")
    centres = mp.region((given.clusters, 2), "float64", "centres")
    sums = mp.region((given.clusters, 2), "float64", "sums")
    counts = mp.region((given.clusters,), "float64", "counts")
    spread = mp.region((), "float64", "spread")
    points.write(values)
    centres.write(values[: given.clusters].clone())
    blocks = points.partition(mp.blocks((given.blocks, 1)))
    everyone = mp.replicate((given.blocks, 1))
    for _ in range(given.steps):
        sums.fill(0.0)
        counts.fill(0.0)
        spread.fill(0.0)
        mp.index_launch(
            assign, blocks.colors, points[blocks], centres, sums[everyone], counts[everyone], spread[everyone]
        )
        mp.launch(move, centres, sums, counts)

    wanted = values[: given.clusters].clone()
    for _ in range(given.steps):
        distances = torch.cdist(values, wanted)
        nearest = distances.argmin(dim=1)
        for cluster in range(given.clusters):
            if bool((nearest == cluster).any()):
                wanted[cluster] = values[nearest == cluster].mean(dim=0)
    error = float((centres.read() - wanted).abs().max())
    farthest = float(spread.read())
    if mp.world().rank == 0:
        print(f"farthest point before the last move: {farthest:.2f}")
        print(f"largest difference from plain tensors: {error:.1e} ({'good' if error < 1e-9 else 'BAD'})")


if __name__ == "__main__":
    main()
