"""What forward keeps in plain attributes: refused where its next call computes with it, told where none does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maniple as mp
from maniple.process.error import RequestError


class Keeping(nn.Module):
    """A module that may keep something of each call.

    Args:
        keep: Gives what is judged, from the module and its layer's result.
    """

    mean: Tensor

    def __init__(self, keep: Callable[[Keeping, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.keep = nn.Linear(3, 3), keep
        self.register_buffer("mean", torch.zeros(3))
        self.last: Tensor | None = None
        self.calls, self.counts, self.seen = 0, [0], list[Tensor]()
        self.generators: dict[str, Any] = {
            "new": np.random.default_rng(0),
            "old": np.random.RandomState(0),
            "plain": random.Random(0),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.keep(self, self.layer(x)).square().mean()


def divided(module: Keeping, h: Tensor) -> Tensor:
    module.calls += 1
    return h / module.calls


def divided_by_a_tensor(module: Keeping, h: Tensor) -> Tensor:
    module.counts[0] += 1
    return h / torch.tensor(float(module.counts[0]))


def alternating(module: Keeping, h: Tensor) -> Tensor:
    module.calls += 1
    return h if module.calls % 2 else 2 * h


def recurrent(module: Keeping, h: Tensor) -> Tensor:
    h = h if module.last is None else h + module.last
    module.last = h.detach()
    return h


def added_up(module: Keeping, h: Tensor) -> Tensor:
    if module.last is None:
        module.last = torch.zeros(3)
    module.last.add_(h.detach().mean(0))
    return h + module.last


def listed(module: Keeping, h: Tensor) -> Tensor:
    module.seen.append(h)
    return torch.stack(module.seen).sum(0)


def drawn_once(module: Keeping, h: Tensor) -> Tensor:
    if module.last is None:
        module.last = torch.rand(3)
    return h * module.last


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (divided, "calls"),
        (divided_by_a_tensor, "counts.0"),
        (alternating, "calls"),
        (recurrent, "last"),
        (added_up, "last"),
        (listed, "seen.0"),
        (drawn_once, "last"),
    ],
)
def test_what_the_next_call_would_compute_with_is_refused(keep: Callable[..., Tensor], name: str) -> None:
    module = Keeping(keep)
    with pytest.raises(RequestError, match=rf"Keeping: forward changes '{name}'.*register_buffer"):
        mp.from_torch(module, (torch.zeros(4, 3),))
    assert (module.calls, module.counts, module.seen, module.last) == (0, [0], [], None)


def watched(module: Keeping, h: Tensor) -> Tensor:
    module.calls, module.counts[0] = module.calls + 1, len(h)
    module.last = h
    module.mean = 0.9 * module.mean + h.detach().mean(0)
    return F.dropout(h)


def masked(module: Keeping, h: Tensor) -> Tensor:
    if module.last is None:
        module.last = torch.triu(torch.ones(3, 3)) * torch.arange(3.0)
    return h @ module.last


@pytest.mark.parametrize(("keep", "names"), [(watched, ["calls", "counts.0", "last"]), (masked, ["last"])])
def test_what_no_call_computes_with_is_told(
    keep: Callable[..., Tensor], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = Keeping(keep)
    graph = mp.from_torch(module, (torch.zeros(4, 3),))
    said = capsys.readouterr().err
    assert "attributes that forward changes are not seen by the next step" in said
    assert sorted(line.strip() for line in said.splitlines()[1:]) == names
    assert (module.calls, module.counts, module.last) == (0, [0], None)
    assert isinstance(module.mean, Tensor)
    assert not module.mean.any()
    assert [each.name for each in graph.inputs] == ["x"]


def skipped(module: Keeping, h: Tensor) -> Tensor:
    return h if random.random() < 0.5 else 2 * h


def scaled(module: Keeping, h: Tensor) -> Tensor:
    return h * float(np.random.rand())  # noqa: NPY002


def scaled_by_its_own(module: Keeping, h: Tensor) -> Tensor:
    return h * module.generators["new"].random()


def scaled_by_an_older_kind(module: Keeping, h: Tensor) -> Tensor:
    return h * float(module.generators["old"].rand())


def skipped_by_its_own(module: Keeping, h: Tensor) -> Tensor:
    return h if module.generators["plain"].random() < 0.5 else 2 * h


@pytest.mark.parametrize(
    ("keep", "owner"),
    [
        (skipped, "Python's random"),
        (scaled, "numpy.random"),
        (scaled_by_its_own, "'generators.new'"),
        (scaled_by_an_older_kind, "'generators.old'"),
        (skipped_by_its_own, "'generators.plain'"),
    ],
)
def test_numbers_that_torch_does_not_draw_are_refused(keep: Callable[..., Tensor], owner: str) -> None:
    with pytest.raises(RequestError, match=rf"forward draws numbers of {owner}.*torch\.rand"):
        mp.from_torch(Keeping(keep), (torch.zeros(4, 3),))


def test_a_recurrent_layer_keeps_nothing_but_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Which torch lists once more beside them; and the module computes afterwards what it did."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.lstm(x)[0]
            return found.square().mean()

    module, x = Last(), torch.randn(2, 5, 3)
    before = module(x).item()
    mp.from_torch(module, (x,))
    assert capsys.readouterr().err == ""
    assert module(x).item() == before
    assert all(isinstance(each, nn.Parameter) for each in module.lstm._flat_weights)


def test_a_module_that_keeps_nothing_is_called_once(capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def counted(module: Keeping, h: Tensor) -> Tensor:
        calls.append(h.shape)
        return h

    mp.from_torch(Keeping(counted), (torch.zeros(4, 3),))
    assert len(calls) == 1
    assert not capsys.readouterr().err
