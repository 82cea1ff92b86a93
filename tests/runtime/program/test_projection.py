"""Projections, and the launch operations that use them."""

from __future__ import annotations

import pytest
import torch
from launched import fill, on_ranks, summed

import maniple as mp
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect
from maniple.runtime.program.projection import Shift, UserProjection
from maniple.runtime.session.session import Session

FOUR = Rect.of_shape((4,))
ROWS = mp.blocks((4,))


def test_the_table_of_shifts() -> None:
    rows = [line.split() for line in (Shift.__doc__ or "").splitlines()]
    for start, periodic in (("shift(-1)", False), ("the", True)):
        row = next(row for row in rows if row[:1] == [start])
        shown = [Shift((-1,), periodic).color((i,), FOUR) for i in range(4)]
        assert row[-4:] == ["none" if color is None else str(color[0]) for color in shown]


def test_what_a_projection_must_answer() -> None:
    assert UserProjection(lambda point: point[0] + 1).color((0,), FOUR) == (1,)
    with pytest.raises(RequestError, match="the projection answered 'x' for point"):
        UserProjection(lambda _: "x").color((0,), FOUR)  # type: ignore[arg-type,return-value]
    with pytest.raises(RequestError, match="give one number per axis"):
        Shift((1, 1), periodic=False).color((0,), FOUR)


@pytest.mark.parametrize("size", [1, 2])
def test_points_use_the_tiles_that_they_are_projected_to(size: int) -> None:
    def body(session: Session) -> object:
        x = session.region((8,))
        x.write(torch.arange(8.0))
        tiles = x[ROWS]
        uses = (tiles.shift(1), tiles.shift(-1, periodic=True), tiles.project(lambda p: 3 - p[0]))
        return [list(session.index_launch(summed, 4, argument).values()) for argument in uses]

    wanted = [[5.0, 9.0, 13.0, 0.0], [13.0, 1.0, 5.0, 9.0], [13.0, 9.0, 5.0, 1.0]]
    assert on_ranks(size, body) == [wanted] * size


def test_a_projection_to_no_tile_or_to_one_tile_of_two_writers_is_refused(session: Session) -> None:
    x = session.region((8,), name="x")
    x.fill(0.0)
    with pytest.raises(RequestError, match=r"parameter x: no tile for point \(0,\), which is projected to \(9,\)"):
        session.index_launch(summed, 4, x[ROWS].project(lambda _: 9))
    with pytest.raises(RequestError, match=r"fill.*x"):
        session.index_launch(fill, 4, 1.0, x[ROWS].project(lambda _: 0))


def test_a_trace_takes_projections_made_anew(session: Session) -> None:
    x = session.region((8,))
    x.write(torch.arange(8.0))
    for number in range(3):
        with session.trace("look"):
            seen = session.index_launch(summed, 4, x[ROWS].project(lambda p: 3 - p[0]))
        assert seen[0] == 13.0, number
    with pytest.raises(RequestError, match="launch 1 differs"), session.trace("look"):
        session.index_launch(summed, 4, x[ROWS].project(lambda p: p[0]))


def test_fills_and_copies_tile_by_tile(session: Session) -> None:
    x, y = session.region((8,)), session.region((8,))
    x.fill(1.0)
    session.fill(x[mp.blocks((2,))], 3.0)
    session.copy(x, y)
    assert y.read().tolist() == [3.0] * 8
    x.write(torch.arange(8.0))
    session.copy(x[ROWS].shift(1, periodic=True), y[ROWS])
    assert y.read().tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0, 1.0]
    with pytest.raises(RequestError, match="partition both regions or none"):
        session.copy(x[ROWS], y)
    with pytest.raises(RequestError, match="differ in shape"):
        session.copy(x, session.region((7,)))
    with pytest.raises(RequestError, match="a number that uint8 can hold, got nan"):
        session.fill(session.region((2,), "uint8"), float("nan"))


def test_futures_are_arguments_and_fold(session: Session) -> None:
    @mp.task
    def twice(value: float) -> float:
        return 2 * value

    first = session.launch(twice, 4.0)
    assert session.launch(twice, first).get() == 16.0
    values = session.index_launch(twice, 3, 1.5)
    assert [values.reduce(op) for op in ("+", "*", "min", "max")] == [9.0, 27.0, 3.0, 3.0]
    with pytest.raises(RequestError, match="unknown reduction '-'"):
        values.reduce("-")
    with pytest.raises(RequestError, match=r"was given a future map; pass one of its values, or its reduce"):
        session.launch(twice, values)
