"""Fused launches: one row where weights are used and live alike, and the same values as row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.expansion import Expansion, training_step
from maniple.operators.lowering.fusion.fused_launch import fused_name, home_names, home_users, merged
from maniple.operators.lowering.weight import weights
from maniple.operators.rules.configuration import WeightPlan
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.launch import Launch

OPTIMIZERS = {
    "plain": mp.SGD(lr=0.1),
    "entering": mp.SGD(lr=0.1, momentum=0.9, groups={"*.bias": {"weight_decay": 0.1}}),
    "adamw": mp.optim.AdamW(lr=0.01),
    "clipped": mp.optim.AdamW(lr=0.01, clip_norm=0.5),
    "torch's": mp.optim.by_torch(torch.optim.RMSprop, lr=0.01, momentum=0.9, clip_value=0.1),
}


class Network(nn.Module):
    """A layer used twice, a norm with running statistics, and a layer whose weight is another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.last.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.tied(torch.tanh(self.last(torch.tanh(self.norm(self.first(x))))))
        return hidden.square().mean()


def module() -> Network:
    torch.manual_seed(0)
    return Network().double()


@cache
def graph() -> Graph:
    return mp.from_torch(module(), (torch.randn(8, 6, dtype=torch.float64),))


def launches(plan: mp.Plan, machine: mp.Machine, optimizer: object = OPTIMIZERS["plain"]) -> list[tuple[str, ...]]:
    program = training_step(graph(), plan, machine, optimizer)  # type: ignore[arg-type]
    return [home_names(launch) for launch in program.launches if home_names(launch)]


def test_what_is_used_alike_and_lives_alike_is_one_launch() -> None:
    """The weight that two layers share waits for both, and each bias for its own."""
    machine = mp.Machine.cpu(1)
    assert launches(mp.search(graph(), machine, strategy="data_parallel"), machine) == [
        ("tied.bias",),
        ("last.weight",),
        ("last.bias",),
        ("norm.weight", "norm.bias"),
        ("first.weight", "first.bias"),
        ("norm.num_batches_tracked",),
        ("norm.running_mean", "norm.running_var"),
    ]


def test_weights_that_live_elsewhere_keep_their_launches() -> None:
    machine = mp.Machine.cpu(2)
    plan = mp.search(graph(), machine, strategy="data_parallel")
    homes = dict(plan.weights) | {"first.bias": WeightPlan((1,), (0,)), "norm.bias": WeightPlan((2,), (1, 0))}
    found = launches(replace(plan, weights=tuple(homes.items())), machine)
    assert {("first.weight",), ("first.bias",), ("norm.weight",), ("norm.bias",)} <= set(found)
    assert ("norm.running_mean", "norm.running_var") in found


def test_whoever_asks_for_every_launch_has_it() -> None:
    machine = mp.Machine.cpu(1)
    plan = mp.search(graph(), machine, strategy="data_parallel")
    apart = training_step(graph(), plan, machine, OPTIMIZERS["plain"], views=False).launches
    assert all(len(home_names(launch)) < 2 for launch in apart)
    together = training_step(graph(), plan, machine, OPTIMIZERS["plain"]).launches
    assert sorted(_named(apart)) == sorted(_named(together))


def _named(found: tuple[Launch, ...]) -> Iterator[str]:
    return (name for launch in found for name in home_names(launch))


def test_numbers_that_all_read_are_required_once() -> None:
    machine = mp.Machine.cpu(1)
    plan = mp.search(graph(), machine, strategy="data_parallel")
    program = training_step(graph(), plan, machine, OPTIMIZERS["clipped"])
    found = next(launch for launch in program.launches if home_names(launch) == ("first.weight", "first.bias"))
    names = [need.region.name for need in found.requirements]
    own = ["", ".grad", ".exp_avg", ".exp_avg_sq"]
    assert names == [
        *[f"first.weight{end}" for end in own],
        "hyper",
        "squares",
        *[f"first.bias{end}" for end in own],
    ]
    assert found.name == "first.weight+first.bias.update"


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=4))
def test_merged_uses_are_each_there_once_and_found_again(uses: list[list[int]]) -> None:
    found, slots = merged(uses)
    assert len(set(found)) == len(found)
    assert [[found[slot] for slot in own] for own in slots] == uses


def test_a_name_says_all_that_is_updated() -> None:
    assert fused_name(["a.weight.update", "a.bias.update"]) == "a.weight+a.bias.update"


def test_users_are_readers_and_who_makes_the_next_value() -> None:
    users = home_users(graph())
    assert users["norm.running_mean"] == users["norm.running_var"] == users["norm.weight"]
    assert len(users["last.weight"]) == 2
    assert users["last.bias"] != users["tied.bias"]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("seed", [1, 10])
def test_steps_are_those_of_launches_by_themselves(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 1: whether updates are rows of their own changes no bit, under random splits and homes."""
    machine = mp.Machine.cpu(2)
    plan = mp.search(graph(), machine, strategy="random", seed=seed)
    batch = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def trained() -> tuple[list[float], dict[str, torch.Tensor], int]:
        with mp.Trainer(graph(), plan, optimizer=OPTIMIZERS[name]) as trainer:
            rows = len(trainer.schedule)
            return [trainer.step(x=batch) for _ in range(3)], trainer.state_dict(), rows

    fused, values, few = trained()
    monkeypatch.setattr("maniple.operators.lowering.expansion.fused_at_home", lambda given, _: given)
    apart, expected, many = trained()
    assert few < many
    assert fused == apart
    assert all(torch.equal(values[key], expected[key]) for key in expected)


def test_the_rows_of_a_step_are_fewer() -> None:
    """A row for two, as `docs/performance.md` counts them for larger models."""
    machine = mp.Machine.cpu(1)
    plan = mp.search(graph(), machine, strategy="data_parallel")
    table = RegionTable()
    held = weights(graph(), plan, machine, OPTIMIZERS["plain"], table)
    rows = [
        len(Expansion(graph(), plan, machine, held, table, views=views).training_step(OPTIMIZERS["plain"]).launches)
        for views in (False, True)
    ]
    assert rows[0] - rows[1] == 3
