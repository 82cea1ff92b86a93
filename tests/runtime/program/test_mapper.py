"""Mappers: the defaults, and the checks of every answer."""

from __future__ import annotations

import pytest

from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.mapper import LaunchView, Mapper, TaskMapping, TaskView
from maniple.runtime.program.mapping import Mapping, map_launch

FOUR = Machine.cpu(2, ranks=2)

CPU = {"cpu": "cpu"}


def view(points: int, machine: Machine = FOUR, suggested: tuple[int, ...] | None = None) -> LaunchView:
    return LaunchView("conv", tuple((i,) for i in range(points)), machine, suggested)


@pytest.mark.parametrize(
    ("points", "wanted"),
    [(1, (0,)), (2, (0, 2)), (3, (0, 1, 2)), (4, (0, 1, 2, 3)), (6, (0, 0, 1, 2, 2, 3)), (8, (0, 0, 1, 1, 2, 2, 3, 3))],
)
def test_points_are_spread_in_blocks(points: int, wanted: tuple[int, ...]) -> None:
    assert map_launch(Mapper(), view(points), CPU) == Mapping(wanted, ("cpu",) * points, (0,) * points)


def test_a_plan_is_followed() -> None:
    assert map_launch(Mapper(), view(3, suggested=(3, 0, 3)), CPU).processors == (3, 0, 3)


def test_a_shard_alone_decides_the_rank_and_the_default_a_processor_there() -> None:
    class Last(Mapper):
        def shard(self, launch: LaunchView) -> list[int]:
            return [1] * len(launch.colors)

    assert set(map_launch(Last(), view(4), CPU).processors) == {2, 3}


def test_a_task_knows_its_point_and_its_choices() -> None:
    seen: list[tuple[object, ...]] = []

    class Curious(Mapper):
        def map_task(self, task: TaskView) -> TaskMapping:
            seen.append((task.color, task.rank, task.processors, task.variants))
            return TaskMapping("numba")

    assert map_launch(Curious(), view(2), {"cpu": "cpu", "cuda": "gpu", "numba": "cpu"}).variants == ("numba", "numba")
    assert seen == [((0,), 0, (0, 1), ("cpu", "numba")), ((1,), 1, (2, 3), ("cpu", "numba"))]


class Answers(Mapper):
    def __init__(self, callback: str, answer: object) -> None:
        setattr(self, callback, lambda _: answer)


@pytest.mark.parametrize(
    ("callback", "answer", "message"),
    [
        ("shard", [0], r"Answers\.shard answered 1 ranks for conv; legal: 2, one per point"),
        ("shard", 3, r"Answers\.shard answered 3 for conv; legal: a sequence of 2 ranks"),
        ("shard", [0, 2], r"Answers\.shard answered 2 for conv\[1\]; legal: ranks \[0, 1\]"),
        ("shard", [0, 1.0], r"Answers\.shard answered 1\.0 for conv\[1\]; legal: ranks \[0, 1\]"),
        ("shard", [False, True], r"Answers\.shard answered False for conv\[0\]; legal: ranks \[0, 1\]"),
        ("select_processor", 2, r"Answers\.select_processor answered 2 for conv\[0\]; legal: processors \[0, 1\]"),
        ("select_processor", None, r"Answers\.select_processor answered None for conv\[0\]"),
        ("task_options", None, r"Answers\.task_options answered None for conv; legal: TaskOptions"),
        ("memoize", 1, r"Answers\.memoize answered 1 for conv; legal: True or False"),
        ("map_task", "gpu", r"Answers\.map_task answered 'gpu' for conv\[0\]; legal: TaskMapping\(variant"),
        ("map_task", TaskMapping("gpu"), r"Answers\.map_task answered 'gpu' for conv\[0\]; legal: variants \['cpu'\]"),
        ("map_task", TaskMapping("cpu", 1), r"map_task answered memory 1 for conv\[0\]; legal: memory 0, that of proc"),
        ("map_task", TaskMapping("cpu", None, ((0,),)), r"answered layouts \(\(0,\),\) for conv\[0\]; legal: for each"),
        ("order", 0.5, r"Answers\.order answered 0\.5 for conv\[0\]; legal: an integer"),
        ("order", None, r"Answers\.order answered None for conv\[0\]; legal: an integer"),
    ],
)
def test_illegal_answers_name_the_callback_the_answer_and_the_choices(
    callback: str, answer: object, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        map_launch(Answers(callback, answer), view(2), CPU)
