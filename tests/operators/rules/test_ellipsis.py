"""Dots in a rule: they broadcast as torch does, or stand for names."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.rules.ellipsis import expand_ellipsis
from maniple.operators.rules.rule import Rule
from maniple.process.error import RequestError

Shape = tuple[int, ...]


@st.composite
def broadcasting(draw: st.DrawFn) -> list[Shape]:
    """Shapes that torch broadcasts: suffixes of one shape, some of their extents replaced by 1."""
    whole = draw(st.lists(st.integers(1, 4), max_size=4))
    shapes: list[Shape] = []
    for _ in range(draw(st.integers(1, 3))):
        kept = draw(st.integers(0, len(whole)))
        suffix = whole[len(whole) - kept :]
        shapes.append(tuple(1 if draw(st.booleans()) else extent for extent in suffix))
    return shapes


@given(shapes=broadcasting())
def test_dots_are_as_torch_broadcasts(shapes: list[Shape]) -> None:
    rule = Rule.parse(f"{', '.join('...' for _ in shapes)} -> ...", shapes=tuple(shapes))
    assert rule.bind(tuple(shapes)).result_shapes == (tuple(torch.broadcast_shapes(*shapes)),)


@given(shapes=broadcasting())
def test_an_operand_is_cut_along_a_factor_only_where_it_has_all_of_it(shapes: list[Shape]) -> None:
    rule = Rule.parse(f"{', '.join('...' for _ in shapes)} -> ...", shapes=tuple(shapes))
    whole = torch.broadcast_shapes(*shapes)
    for pattern, shape in zip(rule.operands, shapes, strict=True):
        for dimension, extent, full in zip(pattern.dimensions, shape, whole[len(whole) - len(shape) :], strict=True):
            assert bool(dimension.terms) == (extent == full)


def test_a_text_without_dots_stays_as_it_is() -> None:
    assert expand_ellipsis("b  k -> b", None, None) == "b  k -> b"


def test_names_stand_for_dots() -> None:
    assert expand_ellipsis("b ..., ... -> b ...", ("y", "x"), None) == "b y x, y x -> b y x"
    assert expand_ellipsis("b ..., ... -> b ...", ("y", "x"), ((2, 3, 4), (4,))) == "b y x, x -> b y x"


@pytest.mark.parametrize(
    ("text", "names", "shapes", "message"),
    [
        ("b ... -> b", None, None, "'...' needs the names of its factors, or the shapes of the operands"),
        ("... -> ...", ("a",), ((2, 3),), "expected 2 names for '...', got 1"),
        ("b c ... -> b", None, ((2,),), "needs at least 2 dimensions, got"),
        ("..., ... -> ...", None, ((2, 3), (2, 4)), "do not broadcast"),
    ],
)
def test_dots_that_stand_for_nothing_known_are_refused(
    text: str, names: tuple[str, ...] | None, shapes: tuple[Shape, ...] | None, message: str
) -> None:
    with pytest.raises(RequestError) as refused:
        expand_ellipsis(text, names, shapes)
    assert message in str(refused.value)
