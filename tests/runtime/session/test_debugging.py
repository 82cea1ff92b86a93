"""Debugging: a switch and a block."""

from __future__ import annotations

import pytest
import torch
from launched import liar, made, summed

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.session.session import Session


@mp.task
def rebinds(x: mp.Read, y: mp.WriteDiscard) -> None:
    y = x * 2  # noqa: F841


@mp.task
def meets(color: mp.Color, y: mp.WriteDiscard) -> None:
    """Leave its storage as it is, as only an epoch may while debugging."""


@pytest.fixture
def session() -> Session:
    return made(World.solo(processors=2, cores=1))


def test_it_is_on_from_the_call_until_it_is_switched_off(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(1.0)
    session.debug()
    with pytest.raises(TaskFailed, match="'x', which it declares as read"):
        session.launch(liar, x).get()
    session.debug(on=False)
    x.fill(1.0)
    session.launch(liar, x).get()
    assert not session.runtime.debugging


def test_blocks_nest_and_end_as_they_began(session: Session) -> None:
    with session.debug():
        with session.debug(on=False):
            assert not session.debugging
        assert session.debugging
    assert not session.debugging
    session.debug()
    with session.debug():
        pass
    assert session.debugging


def test_a_task_that_writes_nothing_is_named_with_its_argument_and_region(session: Session) -> None:
    x, y = session.region((4,), name="x"), session.region((4,), name="y")
    x.write(torch.arange(4.0))
    y.fill(5.0)
    session.launch(rebinds, x, y).get()  # not looked for
    assert y.read().tolist() == [5.0] * 4
    with session.debug(), pytest.raises(TaskFailed) as caught:
        session.index_launch(rebinds, 2, x[mp.blocks((2,))], y[mp.blocks((2,))])[1]
    message = str(caught.value)
    assert "rebinds[0]@p0 failed" in message
    assert "left 2 of the 2 elements of its argument 'y' unwritten (y: 0, 1), which it declares as write-dis" in message
    assert "(y: 2, 3)" in message
    with session.debug():
        y.fill(1.0)
        assert session.launch(summed, y).get() == 4.0


def test_tasks_of_an_epoch_do_not_run_twice(session: Session) -> None:
    y = session.region((2,), name="y")
    with session.debug():
        session.index_launch(meets, 2, y[mp.blocks((2,))], must_epoch=True)
        session.fence()
