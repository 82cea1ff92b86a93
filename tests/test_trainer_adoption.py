"""Adopting a plan in place: results as if nothing had been, bytes of the closed form, refused whole or done whole."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from continued_training import (
    OPTIMIZERS,
    assert_same,
    batch,
    everything,
    network,
    new,
    on_ranks,
    plan_of,
    train,
    unbroken,
)

import maniple as mp
from maniple import trainer_adoption
from maniple.operators.lowering.home_move import HomeMove, MoveSizes, in_turns
from maniple.operators.lowering.weight import Weight
from maniple.process.error import RequestError, RunError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.execution.replay import Replay
from maniple.runtime.machine.world_machine import host_machine
from maniple.testing import local_worlds, run_on_worlds

WORLDS = [(1, 3), (2, 2), (3, 1), (4, 1)]


def elements(home: Any) -> dict[int, set[tuple[int, ...]]]:
    """The elements that each memory holds, one by one."""
    return {memory: {point for rect in rects for point in rect.points()} for memory, rects in home}


def brute_force(old: dict[str, Weight], new: dict[str, Weight]) -> int:
    """The bytes of the elements, one by one, that a memory's new home has and its old one had not."""
    total = 0
    for name, weight in new.items():
        before, after = elements(old[name].home), elements(weight.home)
        missing = sum(len(points - before.get(memory, set())) for memory, points in after.items())
        total += missing * sum(region.itemsize for region in weight.regions)
    return total


@pytest.mark.parametrize("number", range(20))
def test_run_5_and_adopt_and_run_5_is_run_10(number: int) -> None:
    chance = Random(number)
    optimizer, (ranks, processors) = chance.choice(OPTIMIZERS), chance.choice(WORLDS)
    before, after = chance.sample(range(1000), 2)

    def body(world: World) -> Any:
        with new(world, optimizer, seed=before) as trainer:
            first, held = train(trainer, 0, 5), everything(trainer)
            plan, old = plan_of(world, after), dict(trainer._weights)
            moved = trainer.adopt(plan)
            assert trainer.plan == plan
            expected = brute_force(old, trainer._weights)
            assert moved == {"predicted": expected, "measured": expected}
            assert_same(everything(trainer), held)  # the same bits
            second = train(trainer, 5, 10)
            assert trainer.bytes()["predicted"] == trainer.bytes()["measured"]
            kept = {weight.value.id for weight in trainer._weights.values()}
            for memory in trainer._runtime.memories.values():
                assert not [
                    weight
                    for weight in old.values()
                    if weight.value.id not in kept and memory.lasting_instance(weight.value)
                ], "the old homes are let go"
            return first + second, everything(trainer)

    expected, state = unbroken(optimizer)
    for losses, mine in on_ranks(ranks, body, processors=processors):
        assert losses == pytest.approx(expected, rel=1e-10)
        assert_same(mine, state, 1e-10)


def test_there_and_back_again_and_a_checkpoint_of_it(tmp_path: Path) -> None:
    def body(world: World) -> None:
        with new(world, OPTIMIZERS[2], seed=1) as trainer:
            train(trainer, 0, 2)
            trainer.hyper["lr"] = 0.003
            for seed in (2, 3, 1):
                trainer.adopt(plan_of(world, seed))
                train(trainer, 2, 4)
            assert trainer.adopt(trainer.plan) == {"predicted": 0, "measured": 0}
            trainer.save(tmp_path)
            expected = train(trainer, 4, 6)
            assert trainer.report() is not None
        with mp.Trainer.resume(tmp_path, network(), world=world) as trainer:
            assert trainer.hyper["lr"] == 0.003
            assert train(trainer, 4, 6) == expected

    on_ranks(2, body)


def test_a_plan_is_adopted_while_steps_are_under_way() -> None:
    def body(world: World) -> list[float]:
        losses = []
        with new(world, OPTIMIZERS[2], seed=1) as trainer:
            for loss in trainer.run(batch(step) for step in range(10)):
                losses.append(loss)
                if len(losses) in {2, 5}:
                    trainer.adopt(plan_of(world, len(losses)))
        return losses

    for losses in on_ranks(2, body):
        assert losses == pytest.approx(unbroken(OPTIMIZERS[2])[0], rel=1e-10)


def test_on_null_devices_with_two_memories_a_rank_it_is_as_on_cpus(tmp_path: Path) -> None:
    """Saved, adopted, and resumed; what leaves a memory within a rank counts too."""

    def body(world: World) -> Any:
        folder = tmp_path / world.device
        with new(world, OPTIMIZERS[2], seed=1) as trainer:
            assert trainer.save(folder, wait=False).wait()
            losses = train(trainer, 0, 2)
            moved = trainer.adopt(plan_of(world, 2))
            losses += list(trainer.run(mp.data.Loader({"x": batch(2)["x"], "y": batch(2)["y"]}, 12, seed=1)))
            assert trainer.save(folder).wait()
            losses += train(trainer, 3, 5)
        with mp.Trainer.resume(folder, network(), plan_of(world, 3), world=world) as trainer:
            again = train(trainer, 3, 5)
        assert again == pytest.approx(losses[3:], rel=1e-10)
        return moved, losses

    found = [run_on_worlds(local_worlds(2, processors=2, device=device), body) for device in ("cpu", "null")]
    assert found[1][0][0]["predicted"] == found[1][0][0]["measured"] > 0
    for (_, on_cpus), (_, on_devices) in zip(*found, strict=True):
        assert on_devices == pytest.approx(on_cpus, rel=1e-10)


def test_a_plan_that_does_not_fit_is_refused_and_the_old_one_goes_on() -> None:
    def whole(world: World) -> list[float]:
        with new(world) as trainer:
            return train(trainer, 0, 4)

    def body(world: World) -> list[float]:
        with new(world) as trainer:
            first = train(trainer, 0, 2)
            before = trainer.total_bytes(), trainer.plan
            with pytest.raises(RequestError, match="processor"):
                trainer.adopt(mp.search(network(), mp.Machine.cpu(6), strategy="data_parallel"))
            assert (trainer.total_bytes(), trainer.plan) == before
            return first + train(trainer, 2, 4)

    assert on_ranks(2, body) == on_ranks(2, whole)


def wide() -> mp.Graph:
    """A layer of 2 MiB, without which all is small."""
    g = mp.Graph("wide")
    x, y = g.input("x", (4, 512), dtype="float64"), g.input("y", (4, 512), dtype="float64")
    g.loss(g.mse_loss(g.linear(x, 512, bias=False), y))
    return g


def in_halves(plan: mp.Plan) -> mp.Plan:
    """The plan with the layer cut by its outputs, each half with the rank that uses it."""
    cut = (("b", 1), ("n", 2), ("k", 1))
    operators = [(name, replace(each, degrees=cut) if name == "linear" else each) for name, each in plan.operators]
    home = replace(plan.weight("linear.weight"), degrees=(2, 1), processors=(0, 1))
    return replace(plan, operators=tuple(operators), weights=(("linear.weight", home),))


def on_second(plan: mp.Plan) -> mp.Plan:
    """The plan of one processor, on the second of the machine."""
    operators = tuple((name, replace(each, processors=(1,))) for name, each in plan.operators)
    return replace(plan, operators=operators, weights=tuple((n, replace(w, processors=(1,))) for n, w in plan.weights))


def test_homes_that_do_not_fit_together_are_refused_before_the_first_byte(tmp_path: Path) -> None:
    """Half of a layer of 2 MiB lives with each of two ranks; under the new plan all of it with the second.

    memory 1    its half 1, that beside all of the old region 1 + 2, the new region 2: 5 MiB, of 4.5
                a step under the new plan: value and gradient, 4 MiB: it would fit
    """
    given = {"x": torch.ones(4, 512, dtype=torch.float64), "y": torch.zeros(4, 512, dtype=torch.float64)}

    def body(world: World) -> tuple[list[float], list[float]]:
        machine = host_machine(world)
        halves = in_halves(mp.search(wide(), machine, strategy="data_parallel"))
        whole = on_second(mp.search(wide(), mp.Machine.cpu(1), strategy="data_parallel"))
        with mp.Trainer(wide(), halves, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            losses = [trainer.step(**given) for _ in range(2)]
            before = trainer.total_bytes()
            with pytest.raises(RequestError, match=r"linear.weight: its old and its new home .* into memory 1: .* 52"):
                trainer.adopt(whole)
            assert (trainer.total_bytes(), trainer.plan) == (before, halves)
            losses += [trainer.step(**given) for _ in range(2)]
        with mp.Trainer(wide(), whole, optimizer=mp.SGD(lr=0.1), world=world) as trainer:  # it runs where it begins
            return losses, [trainer.step(**given) for _ in range(4)]

    machine = run_on_worlds(local_worlds(2), host_machine)[0]
    tight = replace(machine, memories=tuple(replace(each, capacity_bytes=9 << 19) for each in machine.memories))
    tight.save(tmp_path / "tight.toml")
    worlds = [replace(world, machine=str(tmp_path / "tight.toml")) for world in local_worlds(2)]
    for losses, expected in run_on_worlds(worlds, body):
        assert losses == pytest.approx(expected, rel=1e-10)


def move(number: int, rows: int, old: list[tuple[int, int, int]], new_home: list[tuple[int, int, int]]) -> HomeMove:
    """A region of rows of 8 bytes; homes are (memory, first row, one past the last)."""
    regions = [LogicalRegion(number + 100 * side, f"r{number}", Rect((0,), (rows,)), "float64") for side in range(2)]
    homes = [tuple((memory, (Rect((low,), (high,)),)) for memory, low, high in home) for home in (old, new_home)]
    return HomeMove(regions[0], regions[1], Weight("w", regions[1], (), (), (), homes[1]), homes[0])


def sizes_of(moves: list[HomeMove]) -> dict[int, MoveSizes]:
    return {
        each.old.id: MoveSizes.of(
            each,
            {memory: rects[0] for memory, rects in each.left},
            {memory: rects[0] for memory, rects in each.weight.home},
        )
        for each in moves
    }


def machine_of(capacity: int) -> mp.Machine:
    machine = mp.Machine.preset("p100x4")
    return replace(machine, memories=tuple(replace(each, capacity_bytes=capacity) for each in machine.memories))


def test_as_many_regions_move_at_once_as_fit() -> None:
    """Three regions of 80, 80 and 40 bytes go from memory 0 to memory 1.

    capacity    turns            memory 1 holds at most
    1000        all              what arrived and the copies on their way: 400
    330         80 and 80; 40    320; then 160, and 80 more
    160         one by one       160; 80 + 160 > 160: refused
    """
    moves = [
        move(0, 10, [(0, 0, 10)], [(1, 0, 10)]),
        move(1, 10, [(0, 0, 10)], [(1, 0, 10)]),
        move(2, 5, [(0, 0, 5)], [(1, 0, 5)]),
    ]
    sizes = sizes_of(moves)
    assert sizes[0] == MoveSizes({0: 80}, {0: 80, 1: 80}, {1: 80})
    for capacity, turns in [(1000, [3]), (330, [2, 1]), (240, [1, 1, 1])]:
        assert [len(turn) for turn in in_turns(moves, sizes, machine_of(capacity), {})] == turns
    with pytest.raises(RequestError, match=r"r1: its old and its new home do not fit together into memory 1: .* 240"):
        in_turns(moves, sizes, machine_of(230), {})
    with pytest.raises(RequestError, match=r"r0: .* the old plan goes on"):
        in_turns(moves, sizes, machine_of(240), {1: 100})
    assert in_turns([], {}, machine_of(1), {}) == []


def test_an_instance_that_grows_is_counted_twice_meanwhile() -> None:
    grown = move(0, 10, [(0, 0, 6), (1, 6, 10)], [(0, 4, 10)])
    assert sizes_of([grown])[0] == MoveSizes({0: 48, 1: 32}, {0: 80 + 48, 1: 32}, {0: 48})


def test_a_failure_among_moves_ends_the_trainer_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.solo(2, 1)
    with new(world, OPTIMIZERS[2], seed=1) as trainer:
        train(trainer, 0, 1)
        submit, count = Replay.submit, itertools.count()

        def fail(replay: Replay) -> Any:
            if next(count) == 1:
                raise RunError("the cable was cut")
            return submit(replay)

        monkeypatch.setattr(Replay, "submit", fail)
        monkeypatch.setattr(
            trainer_adoption,
            "in_turns",
            lambda moves, *_rest: [(each,) for each in moves],  # one by one
        )
        with pytest.raises(RunError, match="the cable was cut"):
            trainer.adopt(mp.search(network(), mp.Machine.cpu(2), strategy="data_parallel"))
        with pytest.raises(RunError, match=r"adopting a plan was stopped with 1 of \d+ regions moved \(the cable"):
            trainer.step(**batch(1))
