"""The scale of a loss where a training is kept, goes on elsewhere or is told to torch; and steps that overflow."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
import torch

import maniple as mp
from maniple.process.error import RequestError

FP16 = {"precision": "fp16"}
X, Y = torch.linspace(-1.0, 1.0, 48).reshape(8, 6), torch.arange(8) % 3


def network() -> mp.Graph:
    g = mp.Graph("two layers")
    x, y = g.input("x", (8, 6)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 5)), 3), y))
    return g


def plan_of(graph: mp.Graph, semantics: dict[str, str]) -> mp.Plan:
    return mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel", semantics=semantics)


def trainer(semantics: dict[str, str], scale: float = 2.0**10) -> mp.Trainer:
    graph, optimizer = network(), mp.optim.Adam(lr=0.01, loss_scale=mp.optim.LossScale(init_scale=scale))
    return mp.Trainer(graph, plan_of(graph, semantics), optimizer=optimizer)


def test_another_precision_is_not_adopted_and_the_old_plan_goes_on() -> None:
    with trainer({}) as there:
        there.step(X, Y)
        with pytest.raises(RequestError, match="adopt: expected a plan of the same semantics"):
            there.adopt(replace(there.plan, semantics=(("precision", "fp16"),)))
        assert there.step(X, Y) > 0


@pytest.mark.parametrize(("before", "after"), [({}, FP16), (FP16, {})])
def test_a_checkpoint_of_another_scale_is_refused_by_name(
    before: dict[str, str], after: dict[str, str], tmp_path: Path
) -> None:
    with trainer(before) as there:
        there.step(X, Y)
        there.save(tmp_path)
    graph = network()
    with pytest.raises(RequestError, match=r"resume: the loss is (not )?scaled under this plan"):
        mp.Trainer.resume(tmp_path, graph, plan_of(graph, after))


def test_a_checkpoint_goes_on_under_another_precision_that_scales_no_loss(tmp_path: Path) -> None:
    """Homes are float32 under both: what is resumed is what was kept, and its losses differ as those of halves do."""
    losses: dict[str, list[float]] = {}
    graph = network()
    for before, after in (("float32", "bf16"), ("bf16", "float32")):
        folder = tmp_path / before
        with trainer({"precision": before}) as there:
            there.step(X, Y)
            assert there.save(folder, wait=False).wait()
            kept = {**there.state_dict(), **there.optimizer_state()}
            losses[before] = [there.step(X, Y) for _ in range(3)]
        with mp.Trainer.resume(folder, graph, plan_of(graph, {"precision": after})) as there:
            found = {**there.state_dict(), **there.optimizer_state()}
            assert all(torch.equal(value, found[name]) for name, value in kept.items())
            losses[f"{before}, {after}"] = [there.step(X, Y) for _ in range(3)]
    for before, after in (("float32", "bf16"), ("bf16", "float32")):
        assert losses[f"{before}, {after}"] != losses[before]
        assert losses[f"{before}, {after}"] == pytest.approx(losses[before], rel=0, abs=2.0**-7)


def test_torch_is_told_of_the_steps_that_were_taken_and_gives_them_back() -> None:
    """At its first scale gradients overflow: some steps are skipped, as GradScaler does, and the others are taken."""
    with trainer(FP16, scale=2.0**20) as there:
        losses = [there.step(X * 64, Y) for _ in range(12)]
        own, told = there.optimizer_state(), there.torch_optimizer_state()
        skipped = int(own["loss_scale.skipped"])
        assert 0 < skipped < 12
        assert {int(held["step"]) for held in told["state"].values()} == {12 - skipped}
        there.load_torch_optimizer_state(told)
        assert all(torch.equal(value, own[name]) for name, value in there.optimizer_state().items())
    assert not any(map(isnan, losses))


def test_a_loss_that_overflows_is_skipped_and_the_training_goes_on() -> None:
    with trainer(FP16) as there:
        before = {name: value.clone() for name, value in there.parameters().items()}
        assert not torch.isfinite(torch.tensor(there.step(X * 1e30, Y)))
        assert all(torch.equal(value, before[name]) for name, value in there.parameters().items())
        assert there.step(X, Y) > 0
