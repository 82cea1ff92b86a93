"""Bodies of user tasks: what they are called with, and what is checked."""

from __future__ import annotations

import pytest
import torch

import maniple as mp
from maniple.process.error import RunError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.program.body import TaskBinder
from maniple.runtime.program.launch_execution import PENDING, Call, Calls, Frames
from maniple.runtime.program.task import Task
from maniple.runtime.schedule.launch import Point, Requirement

POINTS = (Point((0,), 0), Point((1,), 0))
REGION = LogicalRegion(0, "x", Rect((0, 0), (2, 3)), "float32")


@mp.task
def body(number: int, color: mp.Color, x: mp.Read, sums: mp.ReduceMax) -> tuple[int, tuple[int, ...], float]:
    seen = float(sums.max()) if sums.numel() else 0.0
    sums += 0.0
    return number, color, float(x.sum()) + (0.0 if seen == float("-inf") else 100.0)


@mp.task
def writes(x: mp.Read) -> None:
    x[0, 0] = 5.0


@mp.task
def looks(x: mp.Read) -> None:
    assert x.isnan().any()


def bind(task: Task[..., object], *values: object, debug: bool = False) -> tuple[TaskBinder, Call]:
    call = Call(values, 2)
    privileges = [parameter.privilege for parameter in task.parameters if parameter.privilege is not None]
    requirements = tuple(Requirement(REGION, privilege, (REGION.bounds,) * 2) for privilege in privileges)
    frames, bodies = Frames([Calls.of([call])]), (task.variants["cpu"],) * 2
    return TaskBinder(task, POINTS, requirements, bodies, frames, 0, debug), call


def test_arguments_come_in_the_order_of_the_signature_and_contributions_start_from_the_identity() -> None:
    binder, call = bind(body, 7)
    view = torch.full((2, 3), 3.0)
    for _ in range(2):  # bound once, run often; the second run sees the identity again
        binder(1, [torch.ones((2, 3)), view], 1)()
        assert call.results == [PENDING, (7, (1,), 6.0)]
    assert view.tolist() == [[float("-inf")] * 3] * 2


def test_a_point_without_a_view_gets_an_empty_tensor_of_the_same_axes() -> None:
    @mp.task
    def shape(x: mp.Read) -> tuple[int, ...]:
        return tuple(x.shape)

    binder, call = bind(shape)
    binder(0, [None], 1)()
    assert call.results[0] == (0, 0)


def test_a_written_read_argument_is_found_only_when_debugging() -> None:
    view = torch.zeros((2, 3))
    bind(writes)[0](0, [view], 1)()
    assert view[0, 0] == 5.0
    view.zero_()
    binder, call = bind(writes, debug=True)
    with pytest.raises(RunError, match="argument 'x', which it declares as read"):
        binder(0, [view], 1)()
    assert call.results[0] is PENDING  # a future that had a value would hide the failure


def test_a_nan_that_stays_is_no_write() -> None:
    view = torch.full((2, 3), float("nan"))
    bind(looks, debug=True)[0](0, [view], 1)()


def test_runs_that_take_turns_have_values_and_results_of_their_own() -> None:
    @mp.task
    def twice(number: int) -> int:
        return 2 * number

    frames = Frames([Calls(), Calls()])
    run = TaskBinder(twice, POINTS[:1], (), (twice.variants["cpu"],), frames, 0, debug=False)(0, [], 1)
    calls = [Call((number,), 1) for number in range(4)]
    for first, second in (calls[:2], calls[2:]):
        frames.enter(Calls.of([first]))
        frames.enter(Calls.of([second]))
        for turn in range(2):
            frames.now[POINTS[0].processor] = frames.runs[turn]
            run()
    assert [call.results for call in calls] == [[0], [2], [4], [6]]
