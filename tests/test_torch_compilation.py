"""Compilation by torch: steps of a compiled trainer are torch's own, and whoever cannot compile is told why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import maniple as mp
from maniple.operators.recording import inductor_tape
from maniple.process import torch_internals
from maniple.runtime.control.world import World
from maniple.torch_compilation import checked_compilation

needs_compiler = pytest.mark.skipif(bool(torch_internals.missing_compiler()), reason="torch finds no C++ compiler")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.LayerNorm(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.tanh(self.linear(x))).pow(4).mean()


@needs_compiler
def test_steps_are_those_of_torch_in_float64() -> None:
    torch.manual_seed(0)
    module, x = Network().double(), torch.randn(6, 5, dtype=torch.float64)
    graph = mp.from_torch(module, (x,))
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
    before = len(inductor_tape._COMPILED)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), compile=True) as trainer:
        found = [trainer.step(x=x) for _ in range(3)]
        state = trainer.state_dict()
    assert len(inductor_tape._COMPILED) == before + 2, "one function forward, and one backward"
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert found == pytest.approx(losses, rel=0, abs=1e-12)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-10)


@needs_compiler
def test_a_compiled_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Compiled again, bit for bit; not compiled, as near as the order of operations allows."""
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64)
    graph = mp.from_torch(Network().double(), (x,))
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW(lr=0.05, clip_norm=1.0), compile=True) as trainer:
        trainer.step(x=x)
        assert trainer.save(tmp_path, wait=False).wait()
        wanted = [trainer.step(x=x) for _ in range(3)]
    assert len(inductor_tape._COMPILED) >= 2
    for compiled, bound in ((True, 0.0), (False, 1e-12)):
        with mp.Trainer.resume(tmp_path, graph, compile=compiled) as trainer:
            assert [trainer.step(x=x) for _ in range(3)] == pytest.approx(wanted, rel=0, abs=bound)


def test_the_launcher_says_it_where_the_trainer_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "missing_compiler", lambda: "")
    world = World.solo(cores=1)
    told = replace(world, compiles=True)
    assert not checked_compilation(None, world)
    assert checked_compilation(None, told)
    assert not checked_compilation(asked=False, world=told)
    assert checked_compilation(asked=True, world=world)


def test_who_cannot_compile_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.solo(cores=1)
    with pytest.raises(mp.RequestError, match="CPUs, got null"):
        checked_compilation(asked=True, world=replace(world, device="null"))
    monkeypatch.setattr(torch_internals, "missing_compiler", lambda: "InvalidCxxCompiler: none")
    with pytest.raises(mp.RequestError, match=r"install g\+\+"):
        checked_compilation(asked=True, world=world)
    with pytest.raises(mp.RequestError, match="True or False"):
        checked_compilation("yes", world)  # type: ignore[arg-type]
    assert not checked_compilation(None, world)
