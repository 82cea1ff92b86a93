"""An export beside other threads: torch replaces ``min`` of the whole process while it runs, and nobody may notice."""

from __future__ import annotations

from threading import Thread

import numba
import torch
from torch import Tensor, nn

import maniple as mp

# The other thread either comes through at once, which is the defect, or waits until this one is done.
MOMENT_S = 1.0


class Calling(nn.Module):
    """A layer whose forward pass calls ``then``."""

    def __init__(self, then: object) -> None:
        super().__init__()
        self.then = then
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert callable(self.then)
        self.then()
        return self.layer(x).sum()


def imported(then: object) -> mp.Graph:
    return mp.from_torch(Calling(then), (torch.zeros(4, 3),))


def test_a_kernel_compiles_beside_an_export() -> None:
    found: list[int] = []

    @numba.njit
    def least(a: int, b: int) -> int:
        return min(a, b)

    other = Thread(target=lambda: found.append(least(2, 1)))

    def compile_meanwhile() -> None:
        other.start()
        other.join(MOMENT_S)

    imported(compile_meanwhile)
    other.join()
    assert found == [1]
