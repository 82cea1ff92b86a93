"""Law 1: any legal plan on any processors and ranks gives the results of one processor, as plain torch has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock
from typing import Any

import pytest
import torch
from hypothesis import settings
from thread_ranks import run_on_ranks
from tolerance import TOLERANCE, violations
from trained_networks import NETWORKS, STEPS, Training, judged, trained

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

# (ranks, processors of each)
WORLDS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))
NAMED = ("antichain", "bapipe", "data_parallel", "expert", "model_parallel", "spatial")


def train(
    name: str, dtype: str, strategy: str, seed: int, ranks: int, processors: int, shuffle: int | None = None
) -> list[Training]:
    """What each rank trains, under the plan that each of them would find: it is looked for once for all."""
    network, found, turn = NETWORKS[name], dict[mp.Machine, mp.Plan](), Lock()

    def body(world: World) -> Training:
        machine = host_machine(world)
        with turn:
            if machine not in found:
                found[machine] = mp.search(network.graph(dtype), machine, strategy=strategy, seed=seed)
        return trained(network, dtype, found[machine], world)

    return run_on_ranks(ranks, body, processors=processors, shuffle=shuffle)


def check(name: str, dtype: str, found: list[Training]) -> None:
    """Every rank has the same numbers, near plain torch's; what was to move is what moved."""
    wanted, tolerance, first = judged(name, dtype), TOLERANCE[dtype], found[0]
    for other in found[1:]:
        assert other.losses == first.losses
        assert other.moved == first.moved
        assert all(torch.equal(other.parameters[key], value) for key, value in first.parameters.items())
        assert all(torch.equal(mine, its) for mine, its in zip(other.logits, first.logits, strict=True))
    assert list(first.parameters) == list(wanted.parameters)
    assert all(torch.equal(first.start[key], value) for key, value in wanted.start.items())
    kind = getattr(torch, dtype)
    faults = violations(
        "loss", torch.tensor(first.losses, dtype=kind), torch.tensor(wanted.losses, dtype=kind), tolerance
    )
    for key, value in wanted.parameters.items():
        faults += violations(key, first.parameters[key], value, tolerance)
    for mine, its in zip(first.logits, wanted.logits, strict=True):
        faults += violations("logits", mine, its, tolerance)
    assert faults == []
    assert [predicted for predicted, _ in first.moved] == [measured for _, measured in first.moved]
    assert len(first.moved) == len(first.losses) == STEPS


def each(world: tuple[int, int]) -> str:
    return f"{world[0]}x{world[1]}"


def turns(strategies: Sequence[str], names: Sequence[str], count: int) -> list[Any]:
    """Every strategy for every network, on some of the worlds in turn."""
    return [
        pytest.param(strategy, name, world, id=f"{strategy}-{name}-{each(world)}")
        for i, strategy in enumerate(strategies)
        for j, name in enumerate(names)
        for world in [WORLDS[(i + j + 3 * turn) % len(WORLDS)] for turn in range(count)]
    ]


# One world for each strategy and network, in turn: so every world is seen by some of each. Two of a deep run's four are
# enough for every strategy, and every network, to see each of the worlds.
@pytest.mark.parametrize(
    ("strategy", "name", "world"), turns(NAMED, list(NETWORKS), min(len(WORLDS), settings().max_examples // 50))
)
def test_named_strategies_train_as_torch_does(strategy: str, name: str, world: tuple[int, int]) -> None:
    check(name, "float64", train(name, "float64", strategy, 0, *world))


@pytest.mark.parametrize("seed", range(max(1, settings().max_examples // 100)))
@pytest.mark.parametrize("world", WORLDS, ids=each)
@pytest.mark.parametrize("name", NETWORKS)
def test_random_plans_train_as_torch_does(name: str, world: tuple[int, int], seed: int) -> None:
    own = 100 * seed + 10 * list(NETWORKS).index(name) + WORLDS.index(world)
    check(name, "float64", train(name, "float64", "random", own, *world, shuffle=own))


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("name", "world", "seed"), [("digits", (2, 2), 1), ("mlp13", (1, 3), 2), ("residual", (3, 1), 3)]
)
def test_found_plans_train_as_torch_does(name: str, world: tuple[int, int], seed: int) -> None:
    """What a search returns is cut in ways that no named strategy cuts, uneven ones included."""
    network, (ranks, processors) = NETWORKS[name], world

    machine = mp.Machine.cpu(processors, ranks=ranks)
    plan = mp.search(network.graph("float64"), machine, strategy="soap", proposals=150, seed=seed)

    def body(world: World) -> Training:
        return trained(network, "float64", plan, world)

    check(name, "float64", run_on_ranks(ranks, body, processors=processors, shuffle=seed))


@pytest.mark.parametrize(("strategy", "name", "world"), turns([*NAMED, "random"], ["digits", "mlp13", "residual"], 1))
def test_single_precision_trains_as_torch_does(strategy: str, name: str, world: tuple[int, int]) -> None:
    check(name, "float32", train(name, "float32", strategy, 7, *world))


def test_several_ranks_of_one_node_train_as_torch_does() -> None:
    network = NETWORKS["digits"]

    def body(world: World) -> Training:
        plan = mp.search(network.graph("float64"), host_machine(world), strategy="random", seed=11)
        return trained(network, "float64", plan, world)

    check("digits", "float64", run_on_ranks(4, body, nodes=2))


def test_the_judge_learns() -> None:
    # Had the gradients been zero, every plan would agree with torch.
    for name in NETWORKS:
        found = judged(name, "float64")
        assert all(not torch.equal(found.start[key], value) for key, value in found.parameters.items())
        assert len(set(found.losses)) == STEPS
        assert all(map(math.isfinite, found.losses))


def test_the_tolerance_is_kept() -> None:
    wanted = torch.tensor([1.0, -400.0, 0.0], dtype=torch.float64)
    assert violations("v", wanted + 3.9e-8, wanted, 1e-10) == []
    assert len(violations("v", wanted + torch.tensor([0.0, 0.0, 4.1e-8]), wanted, 1e-10)) == 1
    assert len(violations("v", torch.full_like(wanted, 2e-10), torch.zeros_like(wanted), 1e-10)) == 3
    assert violations("v", torch.full_like(wanted, 0.9e-10), torch.zeros_like(wanted), 1e-10) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_near(value: float) -> None:
    wanted = torch.ones(4)
    broken = wanted.clone()
    broken[2] = value
    assert len(violations("v", broken, wanted, 1e9)) == 1
    assert violations("v", wanted, broken, 1e9) != []
    assert violations("v", broken, broken, 1e9) != []


def test_other_shapes_and_dtypes_are_never_near() -> None:
    assert violations("v", torch.ones(3), torch.ones(1, 3), 1.0) != []
    assert violations("v", torch.ones(3), torch.ones(3, dtype=torch.float64), 1.0) != []
