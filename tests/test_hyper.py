"""Hyper-parameters of a training: what may be set, what is refused, and that nothing is lowered for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.process.error import RequestError
from maniple.runtime.control.world import World


def network() -> mp.Graph:
    graph = mp.Graph("one layer")
    x, y = graph.input("x", (4, 3)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 2), y))
    return graph


BATCH = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)


def trainer_of(optimizer: AbstractOptimizer) -> mp.Trainer:
    graph = network()
    return mp.Trainer(graph, mp.search(graph, mp.Machine.cpu(1)), optimizer=optimizer, world=World.solo(cores=1))


@pytest.fixture
def trainer() -> Iterator[mp.Trainer]:
    with trainer_of(mp.optim.AdamW(groups={"*.bias": {"weight_decay": 0.0}})) as made:
        yield made


def test_numbers_by_group(trainer: mp.Trainer) -> None:
    hyper = trainer.hyper
    assert (hyper["lr"], hyper["betas"], hyper["weight_decay"], hyper["*.bias", "weight_decay"]) == (
        1e-3, (0.9, 0.999), 1e-2, 0.0,
    )  # fmt: skip
    hyper["*.bias", "lr"] = 0.5
    assert (hyper["lr"], hyper["*.bias", "lr"]) == (1e-3, 0.5)
    hyper["lr"] = 0.25
    assert (hyper["lr"], hyper["*.bias", "lr"]) == (0.25, 0.25)
    table = hyper.table(7)
    assert table is not None
    assert table.tolist() == [[7, 0.25, 1e-2, 0.9, 0.999, 1e-8], [7, 0.25, 0, 0.9, 0.999, 1e-8]]


def test_setting_a_number_lowers_nothing(trainer: mp.Trainer) -> None:
    trainer.step(*BATCH)
    schedule = trainer.schedule
    trainer.hyper["lr"] = 0.1
    trainer.torch_optimizer().param_groups[0]["lr"] = 0.2
    trainer.step(*BATCH)
    assert trainer.schedule is schedule
    assert trainer.hyper["lr"] == 0.2


def test_plain_descent_is_lowered_once_more_for_its_first_change() -> None:
    with trainer_of(mp.SGD(0.1, 0.9)) as trainer:
        trainer.step(*BATCH)
        bound = trainer.schedule
        assert "hyper.input" not in {launch.name for launch in bound.launches}
        trainer.hyper["lr"] = 0.2
        entered = trainer.schedule
        assert "hyper.input" in {launch.name for launch in entered.launches}
        trainer.step(*BATCH)
        trainer.hyper["momentum"] = 0.5
        trainer.step(*BATCH)
        assert trainer.schedule is entered


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lr", float("nan"), "hyper: lr: expected a finite number >= 0, got nan"),
        ("lr", -1.0, "hyper: lr"),
        ("lr", True, "hyper: lr"),
        ("lr", 10**400, "hyper: lr: expected a finite number >= 0"),
        ("lr", torch.ones(2), "hyper: lr: expected a finite number >= 0"),
        ("betas", (0.9, 10**400), "hyper: betas: expected two numbers"),
        (("*.bias", "lr"), float("inf"), r"hyper: lr of group '\*.bias'"),
        ("betas", (0.9, 1.0), r"hyper: betas: expected two numbers in \[0, 1\)"),
        ("betas", 0.9, "hyper: betas"),
        ("rate", 0.1, "hyper: AdamW has no number 'rate'"),
        (("*.weight", "lr"), 0.1, r"hyper: the optimizer has no group '\*.weight'"),
    ],
)
def test_refusals(trainer: mp.Trainer, key: str | tuple[str, str], value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        trainer.hyper[key] = value
    trainer.step(*BATCH)


def test_what_a_scheduler_sets_is_checked_before_the_step(trainer: mp.Trainer) -> None:
    before = trainer.parameters()
    trainer.torch_optimizer().param_groups[1]["lr"] = float("nan")
    with pytest.raises(RequestError, match=r"hyper: lr of group '\*.bias': expected a finite number >= 0, got nan"):
        trainer.step(*BATCH)
    trainer.hyper["lr"] = 0.1
    assert all(torch.equal(before[name], value) for name, value in trainer.parameters().items())
    trainer.step(*BATCH)


def test_the_torch_optimizer_updates_nothing(trainer: mp.Trainer) -> None:
    with pytest.raises(RequestError, match="the trainer's step updates parameters"):
        trainer.torch_optimizer().step()


def test_the_torch_optimizer_takes_no_other_group(trainer: mp.Trainer) -> None:
    made = trainer.torch_optimizer()
    with pytest.raises(RequestError, match=r"add_param_group would update nothing: .*; make it with groups="):
        made.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    assert len(made.param_groups) == 2


def test_a_scheduler_begins_again_where_another_was() -> None:
    with trainer_of(mp.optim.AdamW(lr=0.1)) as one, trainer_of(mp.optim.AdamW(lr=0.1)) as two:
        scheduler = torch.optim.lr_scheduler.StepLR(one.torch_optimizer(), 1, 0.5)
        one.step(*BATCH)
        scheduler.step()
        two.torch_optimizer().load_state_dict(one.torch_optimizer().state_dict())
        assert two.hyper["lr"] == one.hyper["lr"] == 0.05


def test_plain_descent_keeps_the_number_of_steps_alone() -> None:
    with trainer_of(mp.SGD(0.1)) as trainer:
        trainer.step(*BATCH)
        assert trainer.optimizer_state() == {"step": torch.tensor(1)}


def test_a_group_of_no_parameter_is_refused() -> None:
    with pytest.raises(RequestError, match=r"AdamW.groups: '\*.bais' matches no parameter"):
        trainer_of(mp.optim.AdamW(groups={"*.bais": {"lr": 0.1}}))


def test_state_that_does_not_fit_is_refused(trainer: mp.Trainer) -> None:
    trainer.step(*BATCH)
    state = trainer.optimizer_state()
    with pytest.raises(RequestError, match="optimizer state: expected an entry 'step'"):
        trainer.load_optimizer_state({})
    with pytest.raises(RequestError, match=r"expected one entry for each of 4; wrong: linear.bias.exp_avg"):
        trainer.load_optimizer_state({name: value for name, value in state.items() if name != "linear.bias.exp_avg"})
    with pytest.raises(RequestError, match=r"optimizer state linear.bias.exp_avg: expected \(2,\), got \(3,\)"):
        trainer.load_optimizer_state({**state, "linear.bias.exp_avg": torch.zeros(3)})
    trainer.load_optimizer_state(state)
    assert all(torch.equal(value, state[name]) for name, value in trainer.optimizer_state().items())


@pytest.mark.parametrize(
    "optimizer",
    [
        mp.SGD(0.1),
        mp.SGD(0.1, groups={"*.bias": {"momentum": 0.5}}),
        mp.optim.by_torch(torch.optim.SGD, lr=0.1),
        mp.optim.by_torch(torch.optim.RMSprop, lr=0.1),
    ],
    ids=["SGD", "SGD with a group", "SGD of torch", "RMSprop of torch"],
)
def test_a_momentum_whose_state_is_not_kept_is_refused(optimizer: AbstractOptimizer) -> None:
    message = "hyper: momentum: expected 0, got 0.9: .* keeps no state for another; make it with momentum > 0"
    with trainer_of(optimizer) as trainer:
        with pytest.raises(RequestError, match=message):
            trainer.hyper["momentum"] = 0.9
        assert trainer.hyper["momentum"] == 0
        trainer.hyper["momentum"] = 0.0
        trainer.hyper["weight_decay"] = 0.1
        if optimizer.groups:
            trainer.hyper["*.bias", "momentum"] = 0.9
        trainer.step(*BATCH)
        trainer.torch_optimizer().param_groups[0]["momentum"] = 0.9
        with pytest.raises(RequestError, match=message):
            trainer.step(*BATCH)


def test_a_momentum_that_was_set_to_zero_comes_back() -> None:
    with trainer_of(mp.optim.by_torch(torch.optim.RMSprop, lr=0.1, momentum=0.9)) as trainer:
        for momentum in (0.0, 0.5):
            trainer.hyper["momentum"] = momentum
            trainer.step(*BATCH)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("step", torch.tensor(-5), "step: expected a whole number >= 0"),
        ("step", torch.tensor(float("nan")), "step: expected a whole number >= 0"),
        ("step", torch.tensor(1.5), "step: expected a whole number >= 0"),
        ("step", torch.ones(2), "step: expected a whole number >= 0"),
        ("step", torch.ones((), device="meta"), "step: expected a whole number >= 0"),
        ("step", 2**53, "step: expected a whole number >= 0"),
        ("step", True, "step: expected a whole number >= 0"),
        ("step", "3", "step: expected a whole number >= 0"),
        ("linear.bias.exp_avg_sq", torch.ones(2, dtype=torch.float64), "expected torch.float32, got torch.float64"),
        ("linear.bias.exp_avg_sq", torch.ones(1, 2), r"expected \(2,\), got \(1, 2\)"),
        ("linear.bias.exp_avg_sq", torch.ones(2, device="meta"), "expected a tensor, got a tensor without values"),
        ("linear.bias.exp_avg_sq", [0.0, 0.0], "expected a tensor, got list"),
        ("linear.bias.exp_avg_cube", torch.ones(2), "wrong: linear.bias.exp_avg_cube"),
        (3, torch.ones(2), "wrong: 3"),
    ],
)
def test_of_a_state_with_a_wrong_entry_nothing_is_written(
    trainer: mp.Trainer, name: Any, value: Any, message: str
) -> None:
    trainer.step(*BATCH)
    before = trainer.optimizer_state()
    others = {key: held + 1 for key, held in before.items()}
    with pytest.raises(RequestError, match=f"optimizer state.*{message}"):
        trainer.load_optimizer_state({**others, name: value})
    assert all(torch.equal(held, before[key]) for key, held in trainer.optimizer_state().items())
    trainer.load_optimizer_state({**others, "step": torch.tensor(7.0)})
    assert int(trainer.optimizer_state()["step"]) == 7


def test_no_mapping_is_no_state(trainer: mp.Trainer) -> None:
    with pytest.raises(RequestError, match="optimizer state: expected an entry 'step'"):
        trainer.load_optimizer_state(None)  # type: ignore[arg-type]
