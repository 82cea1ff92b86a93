"""Bound rules: extents that shapes give, the tiles that are asked for, and shapes that are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.rules.rule import Halo, Rule
from maniple.process.error import RequestError

IMAGES = Rule.parse("b (c d) y~ -> b c d y", {"y": Halo(3, 1, 1)}, sizes={"d": 2})


@given(data=st.data())
def test_some_tiles_are_those_of_the_whole_split(data: st.DataObject) -> None:
    bound = IMAGES.bind(((3, 8, 5),))
    degrees = tuple(data.draw(st.integers(1, 4 if factor.splittable else 1)) for factor in bound.factors)
    tiles = bound.tiles(dict(zip((factor.name for factor in bound.factors), degrees, strict=True)))
    table = bound.table(degrees)
    wanted = data.draw(st.lists(st.integers(0, len(tiles) - 1), max_size=4))
    assert table.tiles(wanted) == [tiles[number] for number in wanted]


def test_shapes_and_sizes_give_every_extent() -> None:
    bound = IMAGES.bind(((3, 8, 5),))
    assert bound.extents() == (("b", 3), ("c", 4), ("d", 2), ("y", 5))
    assert bound.result_shapes == ((3, 4, 2, 5),)
    assert bound.cuts(bound.rule.operands[0]) == ("b", "c", "y")


def test_a_later_factor_of_a_compound_stays_whole() -> None:
    """Parts of ``d`` in ``(c d)`` would be no rectangles; where ``c`` has one element they are."""
    assert IMAGES.bind(((3, 8, 5),)).factor("d").highest_degree == 1
    assert IMAGES.bind(((3, 2, 5),)).factor("d").highest_degree == 2


def test_an_absent_operand_gives_no_rectangles_and_needs_no_shape() -> None:
    bound = Rule.parse("b k, [k] -> b").bind(((4, 3), None))
    assert [tile.operand_rects[1] for tile in bound.tiles({"b": 2})] == [None, None]


def test_an_unknown_factor_names_the_near_one() -> None:
    bound = Rule.parse("batch k -> batch").bind(((4, 3),))
    with pytest.raises(RequestError, match=r"has no factor 'bath'.*batch"):
        bound.tiles({"bath": 2})


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("b k, k -> b", ((4, 3),), "linear: expected 2 operands (b k, k -> b), got 1"),
        ("b k, k -> b", ((4, 3), None), "operand 1 of 'b k, k -> b' is required and absent"),
        ("b k, k -> b", ((4, 3, 1), (3,)), "operand 0 expected 2 dimensions (b k), got shape (4, 3, 1)"),
        ("b k, k -> b", ((4, 3), (5,)), "operand 1, dimension 0 (k): expected k = 3, got 5"),
        ("b k, k -> b", ((0, 3), (3,)), "operand 0, dimension 0 (b): expected an extent >= 1"),
        ("b (c d) -> b c d", ((4, 6),), "nothing gives the extents of c, d"),
        ("b c, b (c d) -> b d", ((4, 4), (4, 6)), "expected c * d to be a multiple of 4, got 6"),
        ("b, [k] -> b k", ((4,), None), "nothing gives the extent of factor 'k'"),
    ],
)
def test_shapes_that_a_rule_cannot_have_are_refused(
    text: str, shapes: tuple[tuple[int, ...] | None, ...], message: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        Rule.parse(text).bind(shapes, "linear")
