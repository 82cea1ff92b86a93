"""Bodies of user tasks: what they are called with, and what is checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import maniple as mp
from maniple.regions.error import RunError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.body import TaskBinder
from maniple.runtime.launch import Requirement
from maniple.runtime.task import Task

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


def bind(
    task: Task[..., object], values: tuple[object, ...], *, debug: bool = False
) -> tuple[TaskBinder, list[object]]:
    outcomes: list[object] = []
    fulfil: Callable[[object], None] = outcomes.append
    return TaskBinder(task, values, ((0,), (1,)), (task.function,) * 2, (fulfil,) * 2, debug), outcomes


def requirement(task: Task[..., object], slot: int) -> Requirement:
    privilege = task.parameters[slot].privilege
    assert privilege is not None
    return Requirement(REGION, privilege, (REGION.bounds,) * 2)


def test_arguments_come_in_the_order_of_the_signature_and_contributions_start_from_the_identity() -> None:
    binder, outcomes = bind(body, (7, body.parameters[1], requirement(body, 2), requirement(body, 3)))
    view = torch.full((2, 3), 3.0)
    for _ in range(2):  # bound once, run often; the second run sees the identity again
        binder(1, [torch.ones((2, 3)), view], 1)()
    assert outcomes == [(7, (1,), 6.0)] * 2
    assert view.tolist() == [[float("-inf")] * 3] * 2


def test_a_point_without_a_view_gets_an_empty_tensor_of_the_same_axes() -> None:
    @mp.task
    def shape(x: mp.Read) -> tuple[int, ...]:
        return tuple(x.shape)

    binder, outcomes = bind(shape, (requirement(shape, 0),))
    binder(0, [None], 1)()
    assert outcomes == [(0, 0)]


def test_a_written_read_argument_is_found_only_when_debugging() -> None:
    view = torch.zeros((2, 3))
    bind(writes, (requirement(writes, 0),))[0](0, [view], 1)()
    assert view[0, 0] == 5.0
    view.zero_()
    binder, outcomes = bind(writes, (requirement(writes, 0),), debug=True)
    with pytest.raises(RunError, match="argument 'x', which it declares as read"):
        binder(0, [view], 1)()
    assert outcomes == []  # a future that had a value would hide the failure


def test_a_nan_that_stays_is_no_write() -> None:
    view = torch.full((2, 3), float("nan"))
    bind(looks, (requirement(looks, 0),), debug=True)[0](0, [view], 1)()
