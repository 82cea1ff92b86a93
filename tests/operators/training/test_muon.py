"""Muon: torch's numbers in float64, whole homes that are spread, an optimizer of their own for what is no matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.plan.weight_home import there_and_back
from maniple.operators.training.muon import RATES, non_matrices
from maniple.operators.training.optimizer_text import optimizer_named
from maniple.process.error import RequestError
from maniple.runtime.control.world import World

OPTIONS: list[dict[str, Any]] = [
    {},
    {"nesterov": False, "weight_decay": 0.0},
    {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.5},
    {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 3, "eps": 1e-3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6), (1, 4)], ids=str)
def test_twenty_steps_equal_torch(shape: tuple[int, int], options: dict[str, Any]) -> None:
    """With rates that change, to the last bit: the operations are the same in the same order."""
    chance = torch.Generator().manual_seed(2)
    value = torch.randn(shape, generator=chance, dtype=torch.float64)
    theirs = value.clone().requires_grad_()
    reference = torch.optim.Muon([theirs], **options)
    optimizer = mp.optim.Muon(**options)
    gradient, mean = torch.empty_like(value), torch.zeros_like(value)
    row = torch.zeros(1 + len(optimizer.numbers), dtype=torch.float64)
    update = optimizer.bind_update(value, gradient, (mean,), 1, row)
    for step in range(1, 21):
        lr = 0.1 / step
        row.copy_(torch.tensor([step, *optimizer.flat({**optimizer.arguments(), "lr": lr})], dtype=torch.float64))
        reference.param_groups[0]["lr"] = lr
        theirs.grad = torch.randn(shape, generator=chance, dtype=torch.float64)
        gradient.copy_(theirs.grad)
        update()
        reference.step()
        assert torch.equal(gradient, theirs.grad), "the gradient is only read"
    assert torch.equal(value, theirs.detach())
    assert torch.equal(mean, reference.state[theirs]["momentum_buffer"])


def test_a_direction_is_what_is_subtracted_of_the_mean() -> None:
    chance = torch.Generator().manual_seed(3)
    value, mean = (torch.randn(4, 6, generator=chance, dtype=torch.float64) for _ in range(2))
    optimizer, target = mp.optim.Muon(lr=0.1), torch.empty_like(value)
    row = torch.tensor([2.0, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
    optimizer.bind_direction(value, (mean,), 1, row, target)()
    after, own = value.clone(), mean.clone()
    optimizer.bind_update(after, mean, (own,), 1, row)()
    torch.testing.assert_close(target, value - after, rtol=0, atol=1e-14)
    assert torch.equal(own, mean)


def layers(width: int = 8) -> mp.Graph:
    graph = mp.Graph("layers")
    h, labels = graph.input("x", (8, width)), graph.input("labels", (8,), dtype="int64")
    for number, extent in enumerate((3 * width, width, 4 * width, width)):
        h = graph.linear(h, extent, name=f"l{number}")
    graph.loss(graph.cross_entropy(h, labels))
    return graph


def test_matrices_live_whole_with_those_who_use_them_in_turn() -> None:
    """
    matrix     3w x w   w x 3w   4w x w   w x 4w
    its turn   2        3        0        1
    of two     p1       p0       p0       p1
    """
    graph, machine = layers(), mp.Machine.preset("cpu:2x1")
    optimizer = mp.optim.Muon(groups={non_matrices(graph): mp.optim.AdamW()})
    for plan in (
        mp.search(graph, machine, strategy="data_parallel", optimizer=optimizer),
        mp.search(graph, machine, strategy="data_parallel").for_optimizer(optimizer, graph, machine),
        mp.search(graph, machine, strategy="data_parallel")
        .with_zero(3, graph, machine)
        .for_optimizer(optimizer, graph, machine),
    ):
        homes = [plan.weight(f"l{number}.weight") for number in range(4)]
        assert [(home.degrees, home.processors) for home in homes] == [
            ((1, 1), (1,)), ((1, 1), (0,)), ((1, 1), (0,)), ((1, 1), (1,)),
        ]  # fmt: skip
        assert plan.weight("l0.bias").degrees == (2,), "what AdamW updates is spread block by block"
    assert {home.copy for home in homes} == {"pass"}, "what a stage of ZeRO says stays"
    assert [there_and_back("abc", turn) for turn in range(7)] == list("abccbaa")  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["soap", "optcnn", "pareto", "exhaustive_layers", "expert", "gpipe"])
def test_every_search_gives_whole_homes(strategy: str) -> None:
    """And what it predicts is what is simulated: the trainer refuses other homes."""
    graph, machine = layers(), mp.Machine.preset("cpu:2x1")
    optimizer = optimizer_named("muon", graph)
    given: dict[str, Any] = {"proposals": 40} if strategy in {"soap", "exhaustive_layers"} else {}
    plan = mp.search(graph, machine, strategy=strategy, optimizer=optimizer, **given)
    assert plan.for_optimizer(optimizer, graph, machine) == plan
    with mp.Trainer(graph, plan, optimizer=optimizer, world=World.solo(2, 1)) as trainer:
        trainer.step(torch.ones(8, 8), torch.zeros(8, dtype=torch.int64))


def test_what_cannot_be_updated_is_refused() -> None:
    graph, machine = layers(), mp.Machine.cpu(2)
    cut = mp.search(graph, machine, strategy="data_parallel")
    others = {non_matrices(graph): mp.optim.AdamW()}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, r"Muon: l0\.bias: expected a matrix, got shape \(24,\); .*groups=\{mp\.optim\.non_matrices\(graph\)"),
        ({"groups": others}, r"plan: weights\.l0\.weight: expected one block, for Muon updates it whole; got degrees"),
        ({"groups": {"*.bios|*.bias": mp.optim.AdamW()}}, r"'\*\.bios' matches no parameter; did you mean"),
    ]
    for options, message in cases:
        with pytest.raises(RequestError, match=message):
            mp.Trainer(graph, cut, optimizer=mp.optim.Muon(**options), world=World.solo(2, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ns_steps": 100}, "Muon.ns_steps: expected a whole number from 0 to 99, got 100"),
        ({"ns_coefficients": (1.0, 2.0)}, "Muon.ns_coefficients: expected three finite numbers"),
        ({"ns_coefficients": (1.0, 2.0, float("nan"))}, "Muon.ns_coefficients: expected three finite numbers"),
        ({"adjust_lr_fn": "originale"}, f"Muon.adjust_lr_fn: expected {' or '.join(RATES)}, got 'originale'"),
        ({"nesterov": 2}, "Muon.nesterov: expected False or True, got 2"),
        ({"momentum": -1.0}, "Muon.momentum: expected a finite number >= 0"),
        ({"groups": {"*": {"clip_norm": 1.0}}}, "no argument 'clip_norm' of a group"),
        ({"groups": {"*": mp.optim.AdamW(clip_norm=1.0)}}, r"Muon.groups\['\*'\]: expected .* without clip_norm"),
        ({"groups": {"*": mp.optim.AdamW(groups={"a": {}})}}, "without groups: that is for all, around the groups"),
        ({"groups": {"*": mp.optim.averaged(mp.optim.AdamW())}}, "without an average: that is for all"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        mp.optim.Muon(**options)


def test_names_with_marks_of_patterns_are_taken_as_they_are() -> None:
    graph = mp.Graph("one")
    x = graph.input("x", (2, 3))
    graph.loss(graph.cross_entropy(graph.linear(x, 4, name="l[0]"), graph.input("y", (2,), dtype="int64")))
    optimizer = mp.optim.Muon(groups={non_matrices(graph): mp.SGD(lr=0.1)})
    optimizer.check_parameters(graph.parameters)
    assert [optimizer.row_of(tensor.name) for tensor in graph.parameters] == [0, 1]


def test_numbers_of_groups_that_have_others() -> None:
    """Each group has those of its optimizer, schedulers of torch drive them, and an average is kept around all."""
    graph = layers()
    own = mp.optim.Muon(lr=0.02, groups={non_matrices(graph): mp.optim.AdamW(lr=0.01)})
    pattern = non_matrices(graph)
    plan = mp.search(graph, mp.Machine.cpu(1))
    with mp.Trainer(graph, plan, optimizer=mp.optim.averaged(own), world=World.solo(1, 1)) as trainer:
        hyper = trainer.hyper
        assert (hyper["lr"], hyper[pattern, "lr"], hyper[pattern, "betas"]) == (0.02, 0.01, (0.9, 0.999))
        hyper["betas"] = (0.5, 0.7)
        hyper["lr"] = 0.1
        hyper[pattern, "lr"] = 0.2
        with pytest.raises(RequestError, match="hyper: Muon has no number 'betas'"):
            hyper["betas"]
        with pytest.raises(RequestError, match="hyper: AdamW has no number 'momentum'"):
            hyper[pattern, "momentum"] = 0.1
        table = hyper.table(3)
        assert table is not None
        assert table.tolist() == [[3, 0.1, 0.1, 0.95, 1e-7, 0], [3, 0.2, 1e-2, 0.5, 0.7, 1e-8]]
        scheduler = torch.optim.lr_scheduler.StepLR(trainer.torch_optimizer(), 1, 0.5)
        trainer.step(torch.ones(8, 8), torch.zeros(8, dtype=torch.int64))
        scheduler.step()
        assert (hyper["lr"], hyper[pattern, "lr"]) == (0.05, 0.1)
        assert "momentum" not in trainer.torch_optimizer().param_groups[1]
        names = {name.removeprefix("l0.") for name in trainer.optimizer_state() if name.startswith("l0.")}
        assert names == {
            "weight.momentum", "weight.ema", "bias.exp_avg", "bias.exp_avg_sq", "bias.ema",
        }  # fmt: skip


def test_work_of_blocks_by_their_extents() -> None:
    """A matrix's work grows with the cube, of columns of extents as of one."""
    import numpy as np

    optimizer = mp.optim.Muon()
    assert optimizer.work((2, 3)) == 5 * (4 * 4 * 3 + 2 * 8) + 8 * 6
    assert optimizer.work((np.asarray([2, 3]), np.asarray([3, 2]))).tolist() == [optimizer.work((2, 3))] * 2
    assert optimizer.work((5,)) == 40
    assert mp.optim.averaged(optimizer).work((5,)) == 55
