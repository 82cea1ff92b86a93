"""Decision logs: what is written, that it is read back, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maniple.mappers.decision_log import LoggingMapper, ReplayMapper
from maniple.mappers.load_balancing import LoadBalancingMapper
from maniple.mappers.registry import make_mapper
from maniple.mappers.round_robin import RoundRobinMapper
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.mapper import CopyView, LaunchView, Mapper, TaskMapping, TaskView, TunableView
from maniple.runtime.program.mapping import Mapping, ask_tunable, map_launch, rank_sources

MACHINE = Machine.cpu(2, ranks=2)
CPU = {"cpu": "cpu", "numba": "cpu"}


def launch(points: int) -> LaunchView:
    return LaunchView("axpy", tuple((i,) for i in range(points)), MACHINE)


class Elaborate(Mapper):
    def map_task(self, task: TaskView) -> TaskMapping:
        return TaskMapping("numba", MACHINE.memory_of(task.processor))

    def select_tunable(self, tunable: TunableView) -> bool | float | str:
        return 7


def asked(mapper: Mapper) -> list[object]:
    """All that a mapper answers to a few questions."""
    found: list[object] = [map_launch(mapper, launch(points), CPU) for points in (3, 5, 1)]
    found.append(rank_sources(mapper, CopyView("x", 1, (0, 1), MACHINE)))
    found.append(ask_tunable(mapper, TunableView("tiles", 4, MACHINE)))
    return found


@pytest.mark.parametrize("make", [Mapper, RoundRobinMapper, LoadBalancingMapper, Elaborate])
def test_a_log_read_back_gives_the_same_decisions(make: type[Mapper], tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    wanted = asked(make())
    assert asked(LoggingMapper(path, make())) == wanted
    assert asked(ReplayMapper(path)) == wanted


def test_each_decision_is_a_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    map_launch(make_mapper(f"logging:{path}"), launch(2), CPU)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[2] == {"callback": "shard", "launch": "axpy", "answer": [0, 1]}
    assert lines[3] == {"callback": "select_processor", "launch": "axpy", "point": [0], "answer": 0}
    assert [line["callback"] for line in lines] == [
        *("task_options", "memoize", "shard"),
        *("select_processor", "map_task", "order") * 2,
    ]


def test_an_illegal_answer_is_still_that_of_the_mapper(tmp_path: Path) -> None:
    class Wrong(Mapper):
        def order(self, task: TaskView) -> int:
            return 0.5  # type: ignore[return-value]

    with pytest.raises(RequestError, match=r"order answered 0\.5 for axpy\[0\]; legal: an integer"):
        map_launch(LoggingMapper(tmp_path / "log", Wrong()), launch(1), CPU)


def test_a_log_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    map_launch(LoggingMapper(path), launch(2), CPU)
    replay = make_mapper(f"replay:{path}")
    assert isinstance(map_launch(replay, launch(2), CPU), Mapping)
    with pytest.raises(RequestError, match=r"log: ended after 9 decisions; the program asks .*task_options"):
        map_launch(replay, launch(2), CPU)
    other = LaunchView("other", ((0,), (1,)), MACHINE)
    with pytest.raises(RequestError, match=r'log: line 1: the log answers .*"axpy".*, the program asks .*"other"'):
        map_launch(ReplayMapper(path), other, CPU)
    path.write_text("{}\n")
    with pytest.raises(RequestError, match=r"line 1: expected a decision, got '{}'"):
        map_launch(ReplayMapper(path), launch(2), CPU)


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        ReplayMapper(tmp_path / "none")
    with pytest.raises(RequestError, match="cannot be written"):
        LoggingMapper(tmp_path / "none" / "log")
    with pytest.raises(RequestError, match="mapper 'replay' needs a path; write replay:PATH"):
        make_mapper("replay")
    with pytest.raises(RequestError, match="mapper 'default' takes no argument, got 'x'"):
        make_mapper("default:x")
