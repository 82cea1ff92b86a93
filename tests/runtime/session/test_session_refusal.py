"""Sessions: every launch that is refused, with what the message says, and nothing started."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from launched import Place, fill, liar, made, summed, wait, where

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.program.mapper import Mapper, TaskMapping
from maniple.runtime.schedule.failure import TaskFailed, UnwrittenRegion
from maniple.runtime.session.session import Session


@mp.task
def both(first: mp.ReadWrite, second: mp.Read) -> None: ...


@mp.task
def pair(x: mp.WriteDiscard, y: mp.Read) -> None:
    x.copy_(y)


def refused(session: Session, launch: Callable[[], object], *parts: str) -> None:
    """It is refused with these words, and nothing was started or forgotten."""
    with pytest.raises(RequestError) as caught:
        launch()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert session.runtime.error is None


def test_interfering_points_are_refused(session: Session) -> None:
    x = session.region((8,), name="x")
    x.fill(0.0)
    overlap = mp.rectangles([((0,), (5,)), ((4,), (8,))])
    refused(session, lambda: session.index_launch(fill, overlap.colors, 1.0, x[overlap]), "fill", "x", "[4:5]")
    refused(session, lambda: session.index_launch(fill, 2, 1.0, x), "fill", "x")
    rows = mp.blocks((2,))
    refused(
        session,
        lambda: session.index_launch(both, rows.colors, x[rows], x[mp.halo(rows, (1,))]),
        "both use x",
        "read-write",
        "launch twice",
    )
    refused(session, lambda: session.launch(both, x, x), "two arguments both use x")
    assert x.read().tolist() == [0.0] * 8


def test_a_read_before_the_first_write_is_refused(session: Session) -> None:
    x = session.region((8,), name="x")
    rows = mp.blocks((2,))
    with pytest.raises(UnwrittenRegion, match=r"summed reads x\[0:8\], which nothing has written; fill or write it"):
        session.launch(summed, x)
    session.launch(fill, 1.0, x[rows][0])
    refused(session, lambda: session.launch(summed, x), "x[4:8]")
    assert session.launch(summed, x[rows][0]).get() == 4.0
    refused(session, x.read, "read", "x[4:8]")


def test_a_launch_refused_for_one_region_leaves_the_others_alone(session: Session) -> None:
    """The first requirement is legal and the second is not: neither may count as done."""
    x, y = session.region((4,), name="x"), session.region((4,), name="y")
    refused(session, lambda: session.launch(pair, x, y), "pair reads y")
    refused(session, x.read, "x[0:4]")
    x.fill(3.0)
    event = threading.Event()
    session.launch(wait, event, x, mapper=Place(lambda _: 1))
    refused(session, lambda: session.launch(pair, x, y), "pair reads y")
    later = session.launch(summed, x, mapper=Place(lambda _: 0))
    assert not later.done
    event.set()
    assert later.get() == 16.0


def test_arguments_that_do_not_fit_are_refused(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(0.0)
    rows = mp.blocks((2,))
    refused(session, lambda: session.launch(fill, 1.0), "takes 2 arguments at launch, got 1", "x: write-discard")
    refused(session, lambda: session.launch(fill, 1.0, x, 3), "takes 2 arguments at launch, got 3")
    refused(session, lambda: session.launch(where, 1), "takes 0 arguments")
    refused(session, lambda: session.launch(fill, x, x), "parameter value has no privilege, but was given a region")
    refused(session, lambda: session.launch(fill, x[rows], x), "parameter value has no privilege")
    refused(
        session, lambda: session.launch(fill, 1.0, 2.0), "parameter x needs a region or region[partition], got float"
    )
    refused(session, lambda: session.index_launch(summed, 3, x[rows]), "parameter x", "no tile for point (2,)")
    refused(
        session, lambda: session.index_launch(summed, (2, 2), x[rows]), "no tile for point (0, 0)", "partition.colors"
    )
    refused(session, lambda: session.launch(summed, x[rows]), "parameter x", "no tile for point ()")


@pytest.mark.parametrize("domain", [0, (0,), (2, 0), mp.Rect((3,), (3,))])
def test_an_empty_domain_is_refused(session: Session, domain: mp.Rect | tuple[int, ...] | int) -> None:
    refused(session, lambda: session.index_launch(where, domain), "where", "launch domain", "is empty")


@pytest.mark.parametrize("shape", [(0,), (-1, 3), (2, 1.5), ("3",)])
def test_extents_below_one_are_refused(session: Session, shape: tuple[int, ...]) -> None:
    refused(session, lambda: session.region(shape, name="x"), "region x", "expected extents >= 1")


def test_an_unknown_dtype_is_refused(session: Session) -> None:
    refused(session, lambda: session.region((2,), "float23"), "unknown type 'float23'", "did you mean 'float")


def test_a_tensor_that_does_not_fit_is_refused(session: Session) -> None:
    x = session.region((4,), name="x")
    refused(session, lambda: x.write(torch.ones(3)), "expected a tensor of shape (4,)", "(3,)")
    refused(session, lambda: x.write(torch.ones(4, dtype=torch.float64)), "torch.float32", "torch.float64")


def test_a_region_of_another_program_is_refused(session: Session) -> None:
    other = made(World.solo(processors=1, cores=1))
    foreign = other.region((4,), name="foreign")
    own = session.region((4,), name="own")
    assert foreign.logical.id == own.logical.id
    own.fill(1.0)
    refused(session, lambda: session.launch(summed, foreign), "foreign", "belongs to another program")
    refused(session, lambda: session.launch(summed, foreign[mp.blocks((2,))][0]), "belongs to another program")
    other.runtime.close()


def test_a_task_that_writes_what_it_declared_as_read_is_found_when_debugging(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(1.0)
    session.launch(liar, x).get()  # not looked for
    with session.debug():
        assert session.launch(summed, x).get() == 8.0
        future = session.launch(liar, x)
    assert not session.debugging
    with pytest.raises(TaskFailed, match="wrote its argument 'x', which it declares as read; declare it ReadWrite"):
        future.get()


class Answers(Mapper):
    """Gives one illegal answer."""

    def __init__(self, callback: str, answer: object) -> None:
        setattr(self, callback, lambda _: answer)


@pytest.mark.parametrize(
    ("callback", "answer", "words"),
    [
        ("shard", [0], "answered 1 ranks for"),
        ("shard", [0, 5], "answered 5 for"),
        ("shard", None, "answered None for"),
        ("select_processor", 9, "answered 9 for"),
        ("select_processor", 1.0, "answered 1.0 for"),
        ("map_task", TaskMapping("gpu"), "answered 'gpu' for"),
        ("order", 0.5, "answered 0.5 for"),
    ],
)
def test_illegal_answers_are_refused_with_the_legal_ones(
    session: Session, callback: str, answer: object, words: str
) -> None:
    refused(
        session,
        lambda: session.index_launch(where, 2, mapper=Answers(callback, answer)),
        f"mapper Answers.{callback} {words}",
        "legal: ",
    )
    assert session.index_launch(where, 2)[1] == [1]


def test_indices_arrays_and_mappers_that_are_none_are_refused_with_the_next_step(session: Session) -> None:
    x = session.region((8,), name="x")
    for chosen in (3, slice(0, 3), ("f", 1)):
        refused(session, lambda chosen=chosen: x[chosen], "x#", repr(chosen), "read() it", "region[mp.blocks(2)][0]")  # type: ignore[misc]
    refused(session, lambda: x.write(np.zeros(8, "float32")), "(8,)", "a numpy.ndarray", "torch.as_tensor")  # type: ignore[arg-type]
    refused(session, lambda: session.launch(fill, 1.0, x, mapper="default"), "got 'default'", "register_mapper")  # type: ignore[arg-type]
    refused(session, lambda: session.launch(fill, 1.0, x, mapper=Place), "make one: Place()")  # type: ignore[arg-type]


def test_points_that_write_the_same_are_told_by_their_colours(session: Session) -> None:
    x = session.region((4, 4), name="x")
    x.fill(0.0)
    tiles = mp.halo(mp.blocks((2, 2)), (1, 1))
    refused(session, lambda: session.index_launch(fill, tiles.colors, 1.0, x[tiles]), "points (0, 0) and (0, 1) of")
