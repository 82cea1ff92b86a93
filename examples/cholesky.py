"""Blocked Cholesky: a matrix in tiles, tasks that name the tiles they use, and a trace of the whole factorisation.

python examples/cholesky.py
maniple run --nodes 2 --processors 2 examples/cholesky.py
"""

from __future__ import annotations

import torch

import maniple as mp

TILES = 4
SIZE = 96


@mp.task
def factor(a: mp.ReadWrite) -> None:
    """Factor a tile of the diagonal."""
    a.copy_(torch.linalg.cholesky(a))


@mp.task
def solve(diagonal: mp.Read, a: mp.ReadWrite) -> None:
    """Divide a tile below the diagonal by it."""
    a.copy_(torch.linalg.solve_triangular(diagonal, a.mT, upper=False).mT)


@mp.task
def update(left: mp.Read, right: mp.Read, a: mp.ReadWrite) -> None:
    """Subtract from a tile what two tiles of the panel make; points above the diagonal have no tile."""
    if a.numel():
        a -= left @ right.mT


def cholesky(matrix: mp.Region) -> None:
    """Factor a matrix in place, panel after panel. Which tiles cross between nodes follows from who uses them."""
    tiles = matrix[mp.blocks((TILES, TILES))]
    for k in range(TILES):
        mp.launch(factor, tiles[k, k])
        below = mp.Rect((k + 1,), (TILES,))
        if below.is_empty:
            continue
        panel = tiles.project(lambda point, k=k: (point[0], k))  # type: ignore[misc]
        mp.index_launch(solve, below, tiles[k, k], panel)
        mp.index_launch(
            update,
            mp.Rect((k + 1, k + 1), (TILES, TILES)),
            tiles.project(lambda point, k=k: (point[0], k)),  # type: ignore[misc]
            tiles.project(lambda point, k=k: (point[1], k)),  # type: ignore[misc]
            tiles.project(lambda point: point if point[0] >= point[1] else None),
        )


def main() -> None:
    """Factor three matrices; the second and third replay what was recorded for the first."""
    matrix = mp.region((SIZE, SIZE), dtype="float64", name="A")
    for seed in range(3):
        half = torch.rand(SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        values = half @ half.mT + SIZE * torch.eye(SIZE, dtype=torch.float64)
        matrix.write(values)
        with mp.trace("cholesky"):
            cholesky(matrix)
        lower = torch.tril(matrix.read())
        error = float((lower @ lower.mT - values).abs().max() / values.abs().max())
        print(f"matrix {seed}: relative error {'below 1e-14' if error < 1e-14 else error}")


if __name__ == "__main__":
    main()
