"""A 2-D stencil: blocks of a grid that read their neighbours' edges through a halo.

python examples/stencil.py [--size N] [--blocks B] [--steps S]
maniple run --nodes 2 examples/stencil.py
"""

from __future__ import annotations

import argparse

import torch

import maniple as mp


@mp.task
def relax(old: mp.Read, new: mp.WriteDiscard) -> None:
    """Sets every inner element to the mean of its four neighbours, and keeps those at the grid's border."""
    source, target = mp.index_space(old).bounds, mp.index_space(new).bounds
    new.copy_(old[target.slices(source.lo)])
    inside = tuple(
        slice(max(low, first + 1) - first, min(high, last - 1) - first)
        for low, high, first, last in zip(target.lo, target.hi, source.lo, source.hi, strict=True)
    )
    rows, columns = inside
    mean = (
        old[rows.start - 1 : rows.stop - 1, columns]
        + old[rows.start + 1 : rows.stop + 1, columns]
        + old[rows, columns.start - 1 : columns.stop - 1]
        + old[rows, columns.start + 1 : columns.stop + 1]
    ) / 4
    place = tuple(
        slice(cut.start + first - low, cut.stop + first - low)
        for cut, first, low in zip(inside, source.lo, target.lo, strict=True)
    )
    new[place] = mean


def main() -> None:
    """Relaxes a grid with one hot side, and checks it against plain tensors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("size", 120), ("blocks", 2), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    start = torch.zeros(given.size, given.size)
    start[0] = 100.0

    grid = mp.region((given.size, given.size), name="grid", fields={"old": "float32", "new": "float32"})
    grid["old"].write(start)
    tiles = mp.blocks((given.blocks, given.blocks))
    halos = mp.halo(tiles, (1, 1))
    names = ["old", "new"]
    for _ in range(given.steps):
        mp.index_launch(relax, tiles.colors, grid[names[0]][halos], grid[names[1]][tiles])
        names.reverse()

    for _ in range(given.steps):
        start[1:-1, 1:-1] = (start[:-2, 1:-1] + start[2:, 1:-1] + start[1:-1, :-2] + start[1:-1, 2:]) / 4
    error = float((grid[names[0]].read() - start).abs().max())
    if mp.world().rank == 0:
        print(f"tiles disjoint {grid['old'].partition(tiles).disjoint}, halos {grid['old'].partition(halos).disjoint}")
        print(f"largest difference from plain tensors: {error:.1e} ({'good' if error < 1e-4 else 'BAD'})")


if __name__ == "__main__":
    main()
