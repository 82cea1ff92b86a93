"""The grammar beyond einsum: several results, folds, fixed extents, compounds, windows, dots."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.operators.graph.graph import Graph
from maniple.operators.proving.user_operator import operator
from maniple.operators.rules.rule import Halo, Rule, TransposedHalo
from maniple.operators.rules.window import Window
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect


def test_each_result_folds_over_the_split_factors_that_it_lacks() -> None:
    """b=2, k=2 of ``b k -> b k, b, k`` folds.

    result   lacks   b=2   k=2   b=2 k=2
    b k      none    -     -     -
    b        k       -     max   max
    k        b       +     -     +
    """
    bound = Rule.parse("b k -> b k, b, k", reduce="k:max").bind(((4, 6),))
    splits = ({"b": 2}, {"k": 2}, {"b": 2, "k": 2})
    table = [[bound.folds(result, degrees) for degrees in splits] for result in range(3)]
    assert table == [[None, None, None], [None, "max", "max"], ["+", None, "+"]]
    assert bound.result_shapes == ((4, 6), (4,), (6,))
    assert [factor.reduction for factor in bound.factors] == [False, False]


def test_a_number_is_a_dimension_of_which_every_tile_uses_all() -> None:
    bound = Rule.parse("b 1 n, 3 n -> b n 2").bind(((4, 1, 6), (3, 6)))
    assert bound.result_shapes == ((4, 6, 2),)
    last = bound.tiles({"b": 2, "n": 3})[-1]
    assert last.operand_rects == (Rect((2, 0, 4), (4, 1, 6)), Rect((0, 4), (3, 6)))
    assert bound.cuts(bound.rule.results[0]) == ("b", "n", None)
    with pytest.raises(RequestError, match=re.escape("operand 0, dimension 1 (1): expected extent 1")):
        Rule.parse("b 1 -> b").bind(((4, 2),))


@pytest.mark.parametrize(("c", "cut"), [(3, "c"), (1, "y")])
def test_a_compound_is_cut_by_its_first_factor_of_more_than_one_element(c: int, cut: str) -> None:
    bound = Rule.parse("b c y -> b (c y)").bind(((2, c, 4),))
    assert [f.name for f in bound.factors if f.highest_degree > 1] == ["b", cut]
    assert bound.cuts(bound.rule.results[0]) == ("b", cut)
    tiles = bound.tiles({cut: 2})
    covered = [tile.result_rects[0] for tile in tiles]
    assert sum(rect.volume for rect in covered) == 2 * c * 4
    if cut == "c":
        with pytest.raises(RequestError, match=r"'y' of .* stays whole"):
            bound.tiles({"y": 2})


def test_gathered_factors_cost_nothing() -> None:
    (tile,) = Rule.parse("b s, v? d -> b s d").bind(((2, 3), (100, 4))).tiles({})
    assert tile.volume == 2 * 3 * 4


@pytest.mark.parametrize(
    ("text", "shapes", "expanded"),
    [
        ("..., ... -> ...", ((4, 3), (4, 3)), "d0 d1, d0 d1 -> d0 d1"),
        ("..., ... -> ...", ((4, 3), (3,)), "d0 d1, d1 -> d0 d1"),
        ("..., ... -> ...", ((4, 1), (1, 3)), "d0 1, 1 d1 -> d0 d1"),
        ("..., ... -> ...", ((4, 3), ()), "d0 d1, -> d0 d1"),
        ("... n k, ... k m -> ... n m", ((5, 2, 3), (3, 4)), "d0 n k, k m -> d0 n m"),
        ("b ... k, n k -> b ... n", ((2, 7, 8, 3), (4, 3)), "b d0 d1 k, n k -> b d0 d1 n"),
    ],
)
def test_dots_broadcast_as_torch_does(text: str, shapes: tuple[tuple[int, ...], ...], expanded: str) -> None:
    assert Rule.parse(text, shapes=shapes).text == expanded


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(RequestError, match="do not broadcast"):
        Rule.parse("..., ... -> ...", shapes=((4, 3), (4, 2)))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("b k% -> b", {}, "unknown suffix '%' of factor 'k'"),
        ("b k -> b", {"reduce": "z:sum"}, "expected 'factor:operation'"),
        ("b k -> b", {"reduce": "k:mean"}, "unknown reduction 'mean'"),
        ("b k j -> b", {"reduce": "k:max"}, "fold into result 'b' by different operations"),
        ("b y~, b y~, b y~ -> b y", {"halos": {"y": [Halo(1), Halo(2)]}}, "expected one window"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        Rule.parse(text, **options)  # type: ignore[arg-type]


WINDOWS = st.one_of(
    st.builds(Halo, st.integers(1, 3), st.integers(1, 3), st.integers(-2, 2), st.integers(1, 2), st.integers(-2, 2)),
    st.builds(TransposedHalo, st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(1, 2)),
)


def reads(window: Window, row: int, extent: int) -> set[int]:
    """Brute force: the input rows that an output row reads."""
    taps = [window.dilation * tap for tap in range(window.kernel)]
    if isinstance(window, Halo):
        found = {row * window.stride - window.padding + tap for tap in taps}
    else:
        found = {i for i in range(extent) for tap in taps if i * window.stride - window.padding + tap == row}
    return {i for i in found if 0 <= i < extent}


@given(window=WINDOWS, extra=st.integers(0, 6), parts=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_windows_cover_what_rows_read_and_every_gradient(window: Window, extra: int, parts: int) -> None:
    extent = max(1, window.least_extent) + extra
    if window.output_extent(extent) < 1:
        return
    bound = Rule.parse("y~ -> y", {"y": window}).bind(((extent,),))
    covered: set[int] = set()
    for tile in bound.tiles({"y": min(parts, bound.factor("y").extent)}):
        rect, gradient = tile.operand_rects[0], tile.gradient_rects[0]
        assert rect is not None
        assert gradient is not None
        rows = set(range(rect.lo[0], rect.hi[0]))
        needed = {i for row in range(*tile.range("y")) for i in reads(window, row, extent)}
        assert needed <= rows
        grown = set(range(gradient.lo[0], gradient.hi[0]))
        assert rows <= grown or not rows
        covered |= grown
    assert covered == set(range(extent))


@pytest.mark.parametrize(("low", "high"), [(0, 3), (2, 5), (1, 1)])
def test_a_pad_and_a_concatenation_are_windows(low: int, high: int) -> None:
    """Operand b of a concatenation ``a | b | c`` is read by the rows that it becomes."""
    bound = Rule.parse("y~ -> y", {"y": Halo(1, padding=low, after=high)}).bind(((4,),))
    assert bound.result_shapes == ((low + 4 + high,),)
    whole = torch.arange(4.0)
    parts = []
    for tile in bound.tiles({"y": 3}):
        rect, (below, above) = tile.operand_rects[0], tile.padding[0]
        assert rect is not None
        inner = whole[slice(*rect.lo, *rect.hi)] if not rect.is_empty else whole[:0]
        parts.append(torch.nn.functional.pad(inner, (below, above)))
    assert torch.equal(torch.cat(parts), torch.nn.functional.pad(whole, (low, high)))


def test_a_gradient_through_a_fold_that_is_no_sum_is_refused() -> None:
    largest = operator("b k -> b", reduce="k:max", name="largest")(lambda x: x.amax(1))
    g = Graph("g")
    with pytest.raises(RequestError, match="result 0 folds by max over 'k', and has no gradient across parts"):
        largest(g.input("x", (4, 3)))
