"""A launch that was stated before, but for its values, is found again; any other is stated anew."""

from __future__ import annotations

import pytest
import torch

import maniple as mp
from maniple.runtime.program.handle import Region
from maniple.runtime.program.operation import Statements, state
from maniple.runtime.session.session import Session


@mp.task
def add(a: float, x: mp.ReadWrite, y: mp.Read, b: float = 1.0) -> None:
    y += a * x + b


ROWS = mp.blocks((2, 1))
DOMAIN = mp.Rect.of_shape((2,))


@pytest.fixture
def asked() -> list[Region]:
    return []


def test_a_statement_is_found_with_other_values(session: Session, asked: list[Region]) -> None:
    x, y = session.region((4, 4), name="x"), session.region((4, 4), name="y")
    stated = Statements()

    def again(*values: object) -> str:
        a, *b = values
        return str(stated.state(add, DOMAIN, (a, x[ROWS], y[ROWS], *b), None, asked.append))

    places = f"x#{x.logical.id}[2 tiles], y#{y.logical.id}[2 tiles]"
    told = [again(2.0, 3.0), again(4, True), again(5.0)]
    given = (f"2.0, {places}, 3.0", f"4, {places}, True", f"5.0, {places}, 1.0")
    assert told == [f"{add.name} over 2 points ({shown})" for shown in given]
    assert [region.logical for region in asked] == [x.logical, y.logical] * 2  # the last leaves a value out
    del asked[:]
    found = [stated.state(add, DOMAIN, (a, x[ROWS], y[ROWS], 1.0), None, asked.append) for a in (1.0, 2.0, 3.0)]
    assert [operation.values for operation in found] == [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]
    assert len(asked) == 2
    assert len({operation.key() for operation in found}) == 1
    assert {operation.provenance for operation in found} == {found[0].provenance}


def test_what_is_no_plain_value_is_looked_at_each_time(session: Session, asked: list[Region]) -> None:
    x = session.region((4, 4))
    stated = Statements()
    for args in ((x, x, x, 1.0), (1.0, x, 1.0, 1.0)):
        for _ in range(2):
            with pytest.raises(mp.RequestError, match=r"was given a region|needs a region"):
                stated.state(add, None, args, None, asked.append)
    assert len(asked) == 2 * (3 + 1)
    scale = torch.ones(2)
    for _ in range(2):
        scale = scale + 1
        assert stated.state(add, None, (scale, x, x, 1.0), None, asked.append).values == (scale, 1.0)


def test_equal_statements_have_equal_keys(session: Session) -> None:
    x, y, z = (session.region((4, 4)) for _ in range(3))
    one, same = (state(add, DOMAIN, (a, x[ROWS], y[ROWS], 1.0)) for a in (1.0, 2.0))
    others = [
        state(add, DOMAIN, (1.0, x[ROWS], z[ROWS], 1.0)),
        state(add, DOMAIN, (1.0, x[ROWS], y, 1.0)),
        state(add, None, (1.0, x[ROWS][0, 0], y[ROWS][0, 0], 1.0)),
    ]
    assert one.key() == same.key()
    assert hash(one.key()) == hash(same.key())
    assert one.key() not in {other.key() for other in others}
    assert one.key() != "add"
