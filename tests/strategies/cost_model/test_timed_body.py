"""Bodies as they are timed: those of a further micro-batch add, as the runtime has them do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.process.error import RequestError
from maniple.runtime.schedule.accumulation import changed, joining, needs_scratch
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurements, frames, task_key
from maniple.strategies.cost_model.timed_body import DRAWN, STRIDE, TimedBody, draw

MACHINE = mp.Machine.cpu(1)
SGD = mp.SGD(lr=0.1)


def gradients(name: str) -> list[Launch]:
    """The launches of the gradients of an operator's weights, of two micro-batches."""
    g = mp.Graph("two layers")
    h = g.layer_norm(g.input("x", (8, 16)), 16)
    g.loss(g.mse_loss(g.linear(h, 4), g.input("y", (8, 4))))
    plan = mp.search(g, MACHINE, strategy="data_parallel").with_pipeline(order="1f1b", micro_batches=2)
    own = [each for each in training_step(g, plan, MACHINE, SGD).launches if each.name.startswith(f"{name}.")]
    return [each for each in own if any("weight.grad" in need.region.name for need in each.requirements)]


@pytest.mark.parametrize(("name", "by_scratch"), [("linear", False), ("layer_norm", True)])
def test_a_further_micro_batch_adds_as_in_a_run(name: str, by_scratch: bool) -> None:
    first, further, *updates = gradients(name)
    assert not joining(first)
    added = joining(further)
    assert added == changed(further)
    assert needs_scratch(further, added) == by_scratch
    boxes = frames(further, [0])
    body = TimedBody(further, 0, 1, boxes)
    mine, theirs = body.views(), body.views()
    before = {number: there(mine[number]).clone() for number in added}
    assert further.binder is not None
    further.binder(0, theirs, 1)()  # writes
    body.bind(mine)()
    for number, start in before.items():
        assert torch.allclose(there(mine[number]), start + there(theirs[number]), rtol=1e-5, atol=1e-6)
    assert body.size() == sum(view.untyped_storage().nbytes() for view in mine if view is not None)
    assert updates


def there(view: torch.Tensor | None) -> torch.Tensor:
    assert view is not None
    return view


def test_writing_and_adding_are_two_tasks() -> None:
    first, further, *_ = gradients("linear")
    keys = [task_key(each, 0, 1, frames(each, [0])) for each in (first, further)]
    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[0] != keys[1]
    assert not any(shape.startswith("+") for shape in keys[0].shapes)
    assert tuple(shape.removeprefix("+") for shape in keys[1].shapes) == keys[0].shapes
    assert keys[1].dtype == "float32"
    costs = Measured(MACHINE, Measurements.here(), passes=1)
    for each in (first, further, first):
        costs.task_ns(each)
    assert len(costs.measurements.tasks) == 2


def test_a_launch_without_a_body_is_refused() -> None:
    first, *_ = gradients("linear")
    with pytest.raises(RequestError, match="there is no body to measure"):
        TimedBody(replace(first, binder=None), 0, 1, frames(first, [0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5), (DRAWN,), (2, DRAWN + 7)])
def test_tensors_hold_the_same_numbers_and_nothing_of_each_other(shape: tuple[int, ...], dtype: str) -> None:
    """Numbers from 0 to 1 that come back after so many; what a body writes is not in the next tensor."""
    first = draw(shape, dtype, 1)
    flat = first.reshape(-1).clone()
    first.fill_(2.0)
    again = draw(shape, dtype, 1).reshape(-1)
    assert torch.equal(again, flat)
    assert (flat >= 0.0).all()
    assert (flat <= 1.0).all()
    assert torch.equal(flat[DRAWN:], flat[: max(0, len(flat) - DRAWN)][: len(flat[DRAWN:])])
    assert len(flat[:DRAWN].unique()) > min(len(flat), DRAWN) // 256
    assert again.untyped_storage().nbytes() == again.numel() * again.element_size()


@pytest.mark.parametrize(("size", "rows"), [(5, 30), (30, 7), (12, 1)])
def test_whole_numbers_name_every_row_in_turn(size: int, rows: int) -> None:
    found = draw((size,), "int64", rows)
    assert found.tolist() == [number * STRIDE % rows for number in range(size)]
