"""Trainers of frontiers: which plan they take, and how they go to another one while they train."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from continued_training import assert_same, everything, on_ranks

import maniple as mp
from maniple.process import inventory
from maniple.process.error import RequestError, RoomError
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.testing import local_worlds, run_on_worlds

pytestmark = pytest.mark.simulator
OPTIMIZER = mp.SGD(lr=0.1, momentum=0.9)
SCRATCH = 1 << 14
"""More than the bodies of these networks take beside instances."""


def network(width: int = 128) -> mp.Graph:
    """Three layers. Of width 128 they are faster on one processor and leaner on two, of 256 both on two."""
    g = mp.Graph(f"layers of {width}")
    x, y = g.input("x", (8, width)), g.input("y", (8, width))
    for _ in range(3):
        x = g.linear(x, width, bias=False)
    g.loss(g.mse_loss(x, y))
    return g


def batch(step: int, width: int = 128) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(step)
    return {name: torch.randn((8, width), generator=chance) for name in ("x", "y")}


def train(trainer: mp.Trainer, first: int, last: int) -> list[float]:
    return list(trainer.run(batch(step) for step in range(first, last)))


@cache
def frontier(width: int = 128) -> mp.Frontier:
    """Of one and of two processors, each a rank of its own."""
    one, two = (
        mp.search(network(width), machine, strategy="pareto", objective="pareto", optimizer=OPTIMIZER)
        for machine in (run_on_worlds(local_worlds(ranks), host_machine)[0] for ranks in (1, 2))
    )
    return one | two


def ends() -> tuple[Any, Any]:
    """The leanest point, which is slow, and the fastest, which holds more."""
    points = sorted(frontier(), key=lambda point: point.peak_memory_bytes)
    assert points[0].step_s > points[-1].step_s
    assert points[-1].peak_memory_bytes > points[0].peak_memory_bytes + 4 * SCRATCH
    return points[0], points[-1]


def new(world: World, plan: mp.Plan | mp.Frontier, memory: int | None = None) -> mp.Trainer:
    return mp.Trainer(network(), plan, optimizer=OPTIMIZER, world=world, memory=memory)


def taken(trainer: mp.Trainer) -> int:
    """What the runtime lays out in the memory that holds most."""
    return max(told["predicted"] for told in trainer.memory().values())


@cache
def unbroken() -> tuple[list[float], dict[str, torch.Tensor]]:
    with new(World.solo(1, 1), frontier().at(1)) as trainer:
        return train(trainer, 0, 6), everything(trainer)


def test_of_a_frontier_the_fastest_plan_is_taken_that_fits() -> None:
    points = ends()

    def body(world: World) -> list[tuple[mp.Plan, int]]:
        told = []
        for point in points:
            with new(world, frontier(), point.peak_memory_bytes + SCRATCH) as trainer:
                told.append((trainer.plan, taken(trainer)))
        return told

    for told in on_ranks(2, body):
        assert [plan for plan, _ in told] == [point.plan for point in points]
        for (_, size), point in zip(told, points, strict=True):
            assert point.peak_memory_bytes <= size <= point.peak_memory_bytes + SCRATCH


def test_what_no_plan_fits_is_refused_with_the_least_that_any_needs() -> None:
    lean, fast = ends()
    least = lean.peak_memory_bytes

    def body(world: World) -> None:
        with pytest.raises(RequestError, match=f"the least that any needs is {least} bytes"):
            new(world, frontier(), least - 1)
        # The instances of a step fit, with nothing left for what bodies take.
        with pytest.raises(RoomError, match=r"of 1 plans whose predicted memory fits, this machine holds none with"):
            new(world, frontier(), least)
        with pytest.raises(RequestError, match="more than 0, got 0"):
            new(world, frontier(), 0)
        with pytest.raises(RoomError, match="does not fit into memory"):  # of one plan there is no other
            new(world, fast.plan, least)

    on_ranks(2, body)


def test_a_frontier_of_another_graph_or_of_more_processors_is_refused() -> None:
    lean, _ = ends()
    assert lean.plan.processors_used() == (0, 1)

    def body(world: World) -> None:
        with pytest.raises(RequestError, match="graph"):
            mp.Trainer(network(64), frontier(), optimizer=OPTIMIZER, world=world)
        with pytest.raises(RequestError, match="runs on processors 0 to 0: the fewest that any needs are 2"):
            new(world, replace(frontier(), points=(lean,)))

    on_ranks(1, body)


def test_a_plan_too_large_with_what_its_bodies_take_leaves_the_next_one() -> None:
    lean, fast = ends()

    def body(world: World) -> mp.Plan:
        with new(world, frontier(), fast.peak_memory_bytes) as trainer:
            assert len(train(trainer, 0, 1)) == 1
            return trainer.plan

    assert on_ranks(2, body) == [lean.plan, lean.plan]


def test_between_points_results_are_as_if_nothing_had_been() -> None:
    lean, fast = ends()
    found = frontier()

    def body(world: World) -> Any:
        with new(world, found) as trainer:
            losses, plans = [], [trainer.plan]
            for loss in trainer.run(batch(step) for step in range(6)):
                losses.append(loss)
                if len(losses) == 2:
                    moved = trainer.adopt(found, memory=lean.peak_memory_bytes + SCRATCH)
                    assert moved["predicted"] == moved["measured"] > 0
                    plans.append(trainer.plan)
                    with pytest.raises(RequestError, match="no plan fits in 4096 bytes"):
                        trainer.adopt(found, memory=4096)
                if len(losses) == 4:
                    trainer.adopt(found, memory=1 << 30)
                    plans.append(trainer.plan)
            return losses, plans, everything(trainer)

    expected, state = unbroken()
    for losses, plans, mine in on_ranks(2, body):
        assert plans == [fast.plan, lean.plan, fast.plan]
        assert losses == pytest.approx(expected, rel=1e-5)
        assert_same(mine, state, 1e-5)


def test_a_containers_new_limit_is_answered_between_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says in memory.max, two ranks have evenly; on the way it falls, and rises."""
    (lean, fast), found, limit = ends(), frontier(), tmp_path / "memory.max"
    monkeypatch.setattr(inventory, "_CGROUP_LIMIT", limit)
    tight = 2 * (lean.peak_memory_bytes + SCRATCH)
    told: list[list[int]] = [[], []]

    def body(world: World) -> Any:
        plans = []
        with new(world, found) as trainer:

            def tell(machine: mp.Machine) -> mp.Frontier:
                told[world.rank].append(machine.memories[0].capacity_bytes)
                return found

            trainer.on_change(tell)
            losses = []
            for step, size in enumerate((1 << 34, tight, tight, 1 << 34)):
                world.control.gather(b"")
                if world.rank == 0:
                    limit.write_text(f"{size}\n")
                world.control.gather(b"")
                losses.append(trainer.step(**batch(step)))
                plans.append(trainer.plan)
        return losses, plans

    limit.write_text(f"{1 << 34}\n")
    for losses, plans in on_ranks(2, body):
        assert plans == [fast.plan, lean.plan, lean.plan, fast.plan]
        assert losses == pytest.approx(unbroken()[0][:4], rel=1e-5)
    assert told == [[tight // 2, 1 << 33]] * 2


def test_processors_that_are_taken_away_leave_a_plan_without_them() -> None:
    found = frontier(256)
    assert found.best().processors_used() == (0, 1)

    def body(world: World) -> Any:
        whole = host_machine(world)
        alone = replace(whole, memories=whole.memories[:1], processors=whole.processors[:1])
        seen = iter([whole, whole, alone, alone, whole])
        losses, used = [], []
        with mp.Trainer(network(256), found, optimizer=OPTIMIZER, world=world) as trainer:
            trainer.on_change(look=lambda: next(seen))
            for step in range(4):
                losses.append(trainer.step(**batch(step, 256)))
                used.append(trainer.plan.processors_used())
        return losses, used

    with mp.Trainer(network(256), found.at(1), optimizer=OPTIMIZER, world=World.solo(1, 1)) as trainer:
        expected = [trainer.step(**batch(step, 256)) for step in range(4)]
    for losses, used in on_ranks(2, body):
        assert used == [(0, 1), (0,), (0,), (0, 1)]
        assert losses == pytest.approx(expected, rel=1e-5)


def test_a_change_that_nothing_fits_is_said_and_the_old_plan_goes_on() -> None:
    found = frontier()

    def body(world: World) -> Any:
        whole = host_machine(world)
        seen = iter([whole, whole.capped(4096), whole.capped(4096)])
        with new(world, found) as trainer:
            before = trainer.plan
            trainer.on_change(look=lambda: next(seen))
            with pytest.raises(RequestError, match="no plan fits in 4096 bytes"):
                trainer.step(**batch(0))
            assert trainer.plan == before
            return train(trainer, 0, 1)

    for losses in on_ranks(2, body):
        assert losses == pytest.approx(unbroken()[0][:1], rel=1e-5)


def test_without_a_frontier_somebody_must_say_how_it_goes_on() -> None:
    with new(World.solo(1, 1), frontier().at(1).best()) as trainer:
        with pytest.raises(RequestError, match="made of one plan, so there is none to go to"):
            trainer.on_change()
        with pytest.raises(RequestError, match="an integer >= 1, got 0"):
            trainer.on_change(lambda machine: None, every=0)
        machines = iter([trainer.machine, trainer.machine.capped(1 << 30)])
        asked = []
        trainer.on_change(asked.append, look=lambda: next(machines), every=2)
        trainer.step(**batch(0))
        trainer.step(**batch(1))
        assert [machine.memories[0].capacity_bytes for machine in asked] == [1 << 30]


def test_a_checkpoint_goes_on_in_another_world_with_what_fits_there(tmp_path: Path) -> None:
    found = frontier()

    def first(world: World) -> list[float]:
        with new(world, found) as trainer:
            losses = train(trainer, 0, 3)
            trainer.save(tmp_path)
            return losses

    (losses, _) = on_ranks(2, first)
    with mp.Trainer.resume(tmp_path, network(), found.at(1), world=World.solo(1, 1), memory=1 << 30) as trainer:
        assert trainer.machine.memories[0].capacity_bytes == 1 << 30
        losses += train(trainer, 3, 6)
    assert losses == pytest.approx(unbroken()[0], rel=1e-5)


SCRIPT = """
import sys
import torch
import maniple as mp

g = mp.Graph("layers of 128")
x, y = g.input("x", (8, 128)), g.input("y", (8, 128))
for _ in range(3):
    x = g.linear(x, 128, bias=False)
g.loss(g.mse_loss(x, y))
chance = torch.Generator().manual_seed(0)
batch = {name: torch.randn((8, 128), generator=chance) for name in ("x", "y")}
found, descent = mp.Frontier.load(sys.argv[1]), mp.SGD(lr=0.1, momentum=0.9)
with mp.Trainer(g, found, optimizer=descent) as trainer:
    print(trainer.plan.processors_used(), f"{trainer.step(**batch):.5f}")
try:
    mp.Trainer(g, found, optimizer=descent, memory=int(sys.argv[2]))
except mp.RequestError as error:
    print(error)
"""


@pytest.mark.ranks
def test_run_has_a_limit_for_the_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`maniple run --memory` in real processes: the lean plan; with half of that nothing."""
    from maniple import cli

    (lean, _), file, script = ends(), tmp_path / "frontier.json", tmp_path / "train.py"
    least, loss = lean.peak_memory_bytes, f"{unbroken()[0][0]:.5f}"
    frontier().save(file)
    script.write_text(SCRIPT, encoding="utf-8")
    asked = ["run", "--ranks-per-node", "2", "--log-dir", str(tmp_path / "logs"), "--memory"]
    for memory, status, told in (
        (str(least + SCRATCH), 0, [f"(0, 1) {loss}", f"the least that any needs is {least} bytes"]),
        ("nothing", 2, ["--memory: expected more than 0 bytes"]),
    ):
        with pytest.raises(SystemExit) as ending:
            cli.main([*asked, memory, str(script), str(file), str(least // 2)])
        shown = capfd.readouterr()
        assert ending.value.code == status, shown.err
        assert all(text in shown.out + shown.err for text in told), shown
