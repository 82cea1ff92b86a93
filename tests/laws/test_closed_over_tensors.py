"""Law 1 for tensors that a module reads from elsewhere than its arguments: told, and refused if they would change."""

from __future__ import annotations

import re

import pytest
import torch
from example_inputs import (
    WIDTH,
    Draw,
    Net,
)
from torch import Tensor, nn

import maniple as mp
from maniple.process.error import RequestError

X = torch.zeros(6, WIDTH, dtype=torch.float64)
ELSEWHERE = torch.full((WIDTH,), 3.0, dtype=torch.float64)

CLOSED = nn.Parameter(ELSEWHERE.clone())


class Closing(Net):
    """Reads tensors from anywhere but its arguments, parameters and buffers."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.plain = torch.full((WIDTH,), 2.0, dtype=torch.float64)
        self.listed = [nn.Parameter(self.plain.clone())]
        self.layers = [nn.Linear(WIDTH, WIDTH, dtype=torch.float64)]
        self.register_buffer("kept", self.plain.clone(), persistent=False)

    def forward(self, x: Tensor, default: Tensor = ELSEWHERE) -> Tensor:
        if self.what == "assigned":
            self.plain = self.plain + 1
        if self.what == "written":
            self.plain.add_(1)
        factors: dict[str, Draw] = {
            "a number": lambda: torch.tensor([2.0], dtype=torch.float64),
            "buffer": lambda: self.kept,
            "global": lambda: ELSEWHERE,
            "default": lambda: default,
            "listed": lambda: self.listed[0],
            "closed": lambda: CLOSED,
            "detached": CLOSED.detach,
        }
        out = self.layers[0](self.layer(x)) if self.what == "modules" else self.layer(x)
        return (out * factors.get(self.what, lambda: self.plain)()).sum()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "plain",
            r"stay as they are now:\n  'plain', read at .*test_closed_over_tensors\.py:\d+; make it a buffer",
        ),
        ("global", r"  a tensor of shape \(5,\), read at .*test_closed_over_tensors\.py:\d+; make it a buffer"),
        ("default", r"  a tensor of shape \(5,\), read at .*test_closed_over_tensors\.py:\d+; make it a buffer"),
        ("detached", r"  a tensor of shape \(5,\), read at"),
        ("a number", "^$"),
        ("buffer", "^$"),
    ],
)
def test_constants_from_elsewhere_are_told(what: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = Closing(what)
    plan = mp.search(graph := mp.from_torch(module, (X,)), mp.Machine.cpu(1), strategy="data_parallel")
    assert re.search(told, capsys.readouterr().err)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.0)) as trainer:
        assert trainer.step(X + 1) == pytest.approx(module(X + 1).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("listed", r"'listed\.0', read at .*test_closed_over_tensors\.py:\d+, requires a gradient and is no parameter"),
        (
            "modules",
            r"'layers\.0\.weight', read at .*, requires a gradient .* register it \(nn\.Parameter, nn\.M",
        ),
        ("closed", r"a tensor of shape \(5,\), read at .*, requires a gradient and is no parameter"),
        ("written", r"'plain', read at .*, yet forward writes to it; make it a buffer"),
        ("assigned", r"forward changes 'plain', and what its next call computes depends on it.*keep it in a buffer"),
    ],
)
def test_constants_that_would_change_are_refused(what: str, said: str) -> None:
    module = Closing(what)
    with pytest.raises(RequestError, match=said):
        mp.from_torch(module, (X,))
    assert module.plain.tolist() == [2.0] * WIDTH
