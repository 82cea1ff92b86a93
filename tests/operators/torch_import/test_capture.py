"""An export beside other threads: torch replaces ``min`` of the whole process while it runs, and nobody may notice."""

from __future__ import annotations

from importlib import import_module
from threading import Thread

import numba
import pytest
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


class LastStates(nn.Module):
    """An LSTM of which the last states are read too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), nn.Linear(16, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        sequence, (hidden, cell) = self.lstm(x)
        found = self.head(torch.cat([sequence[:, 0], hidden[-1], cell[1]], -1))
        return nn.functional.cross_entropy(found, y)


@pytest.mark.parametrize("release", ["2.11", "2.13"])
def test_an_lstms_last_states_have_the_shapes_that_the_layer_gives(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.11 exports them with a dimension of one element in front of each layer's."""
    place = "torch._decomp.decompositions.one_layer_lstm"
    layer = import_module("torch._decomp.decompositions").one_layer_lstm

    def one_more(*given: object, **named: object) -> object:
        sequence, states = layer(*given, **named)
        return sequence, tuple(state.view(1, *state.shape[-2:]) for state in states)

    if release == "2.11":
        monkeypatch.setattr(place, one_more)
    module, batch = LastStates().double(), (torch.randn(5, 6, 3).double(), torch.arange(5) % 2)
    graph = mp.from_torch(module, batch)
    with mp.Trainer(
        graph, mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel"), optimizer=mp.SGD(0.1)
    ) as trainer:
        assert trainer.step(*batch) == pytest.approx(module(*batch).item(), rel=0, abs=1e-12)
