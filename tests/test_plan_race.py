"""Races of plans: who is taken by what steps took, and that ranks run steps of all of them and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from statistics import median
from typing import Self

import pytest

import maniple as mp
from maniple import plan_race
from maniple.models import digits_cnn
from maniple.plan_race import ROUNDS, Racer, race, winner
from maniple.plan_rehearsal import PlanRehearsal, draw_batch
from maniple.process.error import RoomError
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.testing import local_worlds, run_on_worlds

BATCH = 8
STEPS_MS = {
    "data_parallel": [47.9, 47.1, 46.9, 47.3, 48.2],
    "soap": [50.9, 49.8, 52.3, 48.0, 51.1],
    "optcnn": [45.2, 47.4, 44.8, 45.9, 46.0],
}
SIMULATED_MS = {"data_parallel": 47.0, "soap": 42.7, "optcnn": 43.1}


def plan_of(strategy: str, seed: int = 0) -> mp.Plan:
    return mp.search(digits_cnn(batch=BATCH), mp.Machine.preset("cpu:2x1"), strategy=strategy, seed=seed)


def racers(**simulated_ms: float) -> list[Racer]:
    given = SIMULATED_MS | simulated_ms
    return [Racer(name, plan_of("data_parallel"), given[name] / 1e3) for name in SIMULATED_MS]


def test_the_table_of_a_race() -> None:
    """Of the two that are simulated to be faster, one is slower on the processors, and the other is taken."""
    told = plan_race.__doc__ or ""
    for name, steps in STEPS_MS.items():
        row = f"{name:15s} {SIMULATED_MS[name]} ms     {' '.join(map(str, steps))}    {median(steps)}"
        assert row in told
    assert winner(racers(), list(STEPS_MS.values())) == 2


@pytest.mark.parametrize(
    ("rival", "taken"),
    [
        ([46.0, 46.0, 46.0, 46.0, 46.0], 1),
        ([46.0, 46.0, 46.0, 50.0, 50.0], 0),  # faster in the middle, but in three rounds of five only
        ([46.0, 46.0, 46.0, 46.0, 99.0], 1),  # once disturbed
        ([47.9, 47.1, 46.9, 47.3, 48.2], 0),  # the same
        ([60.0, 46.0, 46.0, 46.0, 60.0], 0),
        ([], 0),  # had no room
    ],
)
def test_another_plan_than_data_parallelism_must_be_faster_in_two_thirds_of_the_rounds(
    rival: list[float], taken: int
) -> None:
    assert winner(racers()[:2], [STEPS_MS["data_parallel"], rival]) == taken


@pytest.mark.parametrize(("soap_ms", "taken"), [(42.7, 0), (37.0, 0), (36.0, 1)])
def test_without_a_race_a_plan_must_be_simulated_to_be_faster_by_what_simulations_are_off_by(
    soap_ms: float, taken: int
) -> None:
    assert winner(racers(soap=soap_ms), [[], [], []]) == taken


def raced(worlds: list[World], found: list[Racer], left_s: Callable[[], float]) -> list[list[list[float]]]:
    def program(world: World) -> list[list[float]]:
        graph = digits_cnn(batch=BATCH)
        times = race(graph, found, None, world, left_s)
        assert RankRuntime.of(world).kept_bytes() == 0
        # What trains then is not told from what trains without a race.
        trainer = mp.Trainer(graph, found[0].plan, optimizer=mp.SGD(lr=0.1), world=world)
        batch = draw_batch(graph)
        losses = [trainer.step(**batch) for _ in range(2)]
        trainer.close()
        return [*times, losses]

    return run_on_worlds(worlds, program)


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_run_steps_of_all_plans_in_turn_and_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    monkeypatch.setattr(plan_race, "TURN_S", 1e-9)
    found = [Racer(name, plan_of(name), 1e-3) for name in ("data_parallel", "model_parallel")]
    one, other = raced(local_worlds(2, shared=shared), found, lambda: inf)
    assert one == other  # rank 0's times are everybody's
    assert [len(times) for times in one] == [ROUNDS, ROUNDS, 2]
    assert all(taken > 0 for times in one[:2] for taken in times)
    graph = digits_cnn(batch=BATCH)
    alone = mp.Trainer(graph, found[0].plan, optimizer=mp.SGD(lr=0.1))
    batch = draw_batch(graph)
    assert one[2] == pytest.approx([alone.step(**batch) for _ in range(2)], rel=1e-5)
    alone.close()


@pytest.mark.parametrize(("left_s", "rounds"), [(0.0, 0), (6.0, 0), (8.0, 6), (12.0, 9)])
def test_a_race_begins_no_plan_and_no_round_that_it_has_no_time_for(
    monkeypatch: pytest.MonkeyPatch, left_s: float, rounds: int
) -> None:
    """By a clock of its own: making a plan ready takes 2 s and a step 0.25 s, of which a plan made ready takes two."""
    now = [0.0]

    class Slow:
        def __init__(self, *_: object) -> None:
            now[0] += 2.0

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self) -> float:
            now[0] += 0.25
            return 0.25

    monkeypatch.setattr(plan_race, "PlanRehearsal", Slow)
    found = [Racer(name, plan_of("data_parallel"), 0.5) for name in ("data_parallel", "soap")]
    times = race(digits_cnn(batch=BATCH), found, None, World.solo(), lambda: left_s - now[0])
    assert [len(taken) for taken in times] == [rounds, rounds]
    assert now[0] <= left_s


def test_what_torch_compiles_takes_none_of_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own: a plan takes a minute to be made ready, its first step another, and later ones 0.25 s."""
    now = [0.0]

    class Compiled:
        def __init__(self, *_: object) -> None:
            now[0] += 60.0
            self._first = True

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self) -> float:
            took, self._first = 60.0 if self._first else 0.25, False
            now[0] += took
            return took

    monkeypatch.setattr(plan_race, "PlanRehearsal", Compiled)
    found = [Racer(name, plan_of("data_parallel"), 0.5) for name in ("data_parallel", "soap")]

    def rounds(*, compiled: bool) -> list[int]:
        now[0] = 0.0
        times = race(digits_cnn(batch=BATCH), found, None, World.solo(), lambda: 15.0 - now[0], compiled=compiled)
        return [len(taken) for taken in times]

    assert rounds(compiled=False) == [0, 0]
    assert rounds(compiled=True) == [ROUNDS, ROUNDS]


def test_a_plan_that_no_memory_has_room_for_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[PlanRehearsal]()

    class Full(PlanRehearsal):  # type: ignore[misc]  # final: no other has less room
        def __init__(self, *given: object) -> None:
            if len(made) == 1:
                made.append(self)
                raise RoomError("no room")
            super().__init__(*given)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(plan_race, "PlanRehearsal", Full)
    monkeypatch.setattr(plan_race, "ROUNDS", 1)
    monkeypatch.setattr(plan_race, "TURN_S", 1e-9)
    found = [
        Racer(name, plan_of("random", seed), 1e-3) for seed, name in enumerate(("data_parallel", "soap", "optcnn"))
    ]
    solo = World.solo(processors=2, cores=1)
    times = race(digits_cnn(batch=BATCH), found, None, solo, lambda: inf)
    assert [len(taken) for taken in times] == [1, 0, 1]


def test_a_batch_names_rows_that_there_are() -> None:
    graph = mp.Graph("words")
    x, y = graph.input("x", (10,), dtype="int64"), graph.input("y", (10,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.embedding(x, 7, 4), 3), y))
    batch = draw_batch(graph)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {"x": (10,), "y": (10,)}
    assert int(batch["x"].max()) == 6
    assert int(batch["y"].max()) == 0
