"""Trainings that go onto ZeRO's homes and off them: by a checkpoint on other ranks, and in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continued_training import OPTIMIZERS, assert_same, everything, network, on_ranks, plan_of, train, unbroken

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine

ADAMW = OPTIMIZERS[2]
STAGES: list[tuple[int | None, int | None]] = [(0, 3), (3, 0), (1, 3), (3, 1), (2, 3), (None, 3), (3, None)]
"""Of ZeRO before and after; None: a random plan."""


def staged(world: World, stage: int | None) -> mp.Plan:
    if stage is None:
        return plan_of(world, 4)
    machine = host_machine(world)
    return mp.search(network(), machine, strategy="data_parallel").with_zero(stage, network(), machine)


def new(world: World, stage: int | None) -> mp.Trainer:
    return mp.Trainer(network(), staged(world, stage), optimizer=ADAMW, seed=2**63 + 7, world=world)


def kept(world: World) -> list[int]:
    return [memory.kept_bytes() for _, memory in sorted(RankRuntime.of(world).memories.items())]


@pytest.mark.parametrize(("before", "after"), STAGES)
def test_a_plan_is_adopted_with_other_homes(before: int | None, after: int | None) -> None:
    """Run 5, adopt, run 5 is run 10, and what lasts then is what lasts of a trainer that began so."""

    def begun(world: World) -> list[int]:
        with new(world, after) as trainer:
            everything(trainer)  # which keeps parameters whole that a random plan cuts, as below
            train(trainer, 0, 2)
            return kept(world)

    def body(world: World) -> Any:
        with new(world, before) as trainer:
            first, held = train(trainer, 0, 5), everything(trainer)
            moved = trainer.adopt(staged(world, after))
            assert moved["predicted"] == moved["measured"]
            assert_same(everything(trainer), held)
            second = train(trainer, 5, 10)
            assert trainer.bytes()["predicted"] == trainer.bytes()["measured"]
            return first + second, everything(trainer), kept(world)

    expected, state = unbroken(ADAMW)
    wanted = on_ranks(2, begun)
    for (losses, mine, lasting), lasts in zip(on_ranks(2, body), wanted, strict=True):
        assert losses == pytest.approx(expected, rel=1e-10)
        assert_same(mine, state, 1e-10)
        assert lasting == lasts


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 2), (None, 3), (3, None)])
def test_a_training_is_resumed_with_other_homes_and_ranks(
    tmp_path: Path, before: int | None, after: int | None
) -> None:
    """Each rank reads what lives with it: of p ranks a p-th of values and state."""

    def first(world: World) -> list[float]:
        with new(world, before) as trainer:
            losses = train(trainer, 0, 5)
            assert trainer.save(tmp_path, wait=False).wait()
        return losses

    def second(world: World) -> Any:
        with mp.Trainer.resume(tmp_path, network(), staged(world, after), world=world) as trainer:
            read = trainer.bytes_read
            return train(trainer, 5, 10), everything(trainer), read

    expected, state = unbroken(ADAMW)
    losses = on_ranks(2, first)[0]
    found = on_ranks(3, second)
    whole = sum(value.nbytes for name, value in state.items() if name != "step")
    for later, mine, read in found:
        assert losses + later == pytest.approx(expected, rel=1e-10)
        assert_same(mine, state, 1e-10)
        if after is not None:
            assert read < 0.6 * whole
