"""Factor rules: the grammar, binding to shapes, roles, and tiles against brute force over the iteration space."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.operators.rules.rule import BoundRule, Halo, Rule, Saved, split_range
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

CONV = "b i y~ x~, o i u! v!, [o]@i -> b o y x"


def conv(kernel: int = 3, stride: int = 1, padding: int = 1, dilation: int = 1) -> Rule:
    window = Halo(kernel, stride, padding, dilation)
    return Rule.parse(CONV, {"y": window, "x": window}, parameters=(1, 2))


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        (
            conv(),
            "b sample | o parameter | y attribute | x attribute | i reduction + | u reduction ! + | v reduction ! +",
        ),
        (Rule.parse("b k, n k, [n]@k -> b n", parameters=(1, 2)), "b sample | n parameter | k reduction +"),
        (
            Rule.parse("b s k, n k, [n]@k -> b s n", parameters=(1, 2)),
            "b sample | s attribute | n parameter | k reduction +",
        ),
        (
            Rule.parse("b c y! x! -> b (c y! x!)"),
            "b sample | c attribute | y attribute ! | x attribute !",
        ),
        (Rule.parse("b c!, b -> "), "b sample + | c reduction ! +"),
        (Rule.parse("... -> ...", ellipsis=("b", "c")), "b sample | c attribute"),
    ],
)
def test_factors_and_roles(rule: Rule, table: str) -> None:
    found = [f"{f.name} {f.role}{' !' if f.whole else ''}{' +' if f.reduction else ''}" for f in rule.factors]
    assert " | ".join(found) == table


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("b k, n k", "expected '->'", 8),
        ("b -> b -> b", "found a second", 7),
        ("b @ -> b", "found '@'", 2),
        ("b k!~ -> b", "expected a space", 4),
        ("(b c! -> b", "never closed", 0),
        ("[b -> b", "never closed", 0),
        ("b (c) -> b c", "at least two", 2),
        ("b, [b]x -> b", "expected '@'", 6),
        ("b, [b]@z -> b", "names no factor", 6),
        ("b b -> b", "appears twice", 0),
        ("b -> b z", "in no operand", 7),
        ("b y~ -> b y~", "cannot have a halo", 11),
        ("b y~ -> b", "is in no result", 2),
        ("b y~ -> b y", "no window was given", 2),
        ("b ... -> b ...", "needs the names", 2),
    ],
)
def test_a_bad_rule_shows_its_place(text: str, message: str, column: int) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        Rule.parse(text)
    lines = str(caught.value).splitlines()
    assert lines[1] == f"    {text}"
    assert lines[2] == " " * (4 + column) + "^"


def test_a_window_for_no_halo_and_a_saved_region_of_no_factor_are_refused() -> None:
    with pytest.raises(RequestError, match="no halo factor"):
        Rule.parse("b y -> b y", {"y": Halo(3)})
    with pytest.raises(RequestError, match="names no factor"):
        Rule.parse("b -> b", saved=(Saved("indices", "b z"),))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (4, 5), None), "mlp: operand 1, dimension 1 (k): expected k = 3, got 5 (shape (4, 5))"),
        (((2, 3, 1), (4, 3), None), "mlp: operand 0 expected 2 dimensions (b k), got shape (2, 3, 1)"),
        (((2, 3), (4, 3)), "mlp: expected 3 operands"),
        (((2, 3), None, None), "mlp: operand 1 of 'b k, n k, [n]@k -> b n' is required and absent"),
        (((0, 3), (4, 3), None), "expected an extent >= 1, got shape (0, 3)"),
        (((2, 3), (4, 3), (5,)), "operand 2, dimension 0 (n): expected n = 4, got 5"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...] | None, ...], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        Rule.parse("b k, n k, [n]@k -> b n").bind(shapes, "mlp")


def test_a_window_that_does_not_fit() -> None:
    with pytest.raises(RequestError, match="expected at least 3 rows"):
        conv(kernel=5, padding=1).bind(((1, 1, 2, 8), (1, 1, 5, 5), None))


def test_binding_gives_extents_and_shapes() -> None:
    bound = conv(stride=2).bind(((64, 3, 9, 8), (16, 3, 3, 3), (16,)))
    assert bound.result_shapes[0] == (64, 16, 5, 4)
    assert bound.extents() == (("b", 64), ("o", 16), ("y", 5), ("x", 4), ("i", 3), ("u", 3), ("v", 3))
    assert [factor.highest_degree for factor in bound.factors] == [64, 16, 5, 4, 3, 1, 1]
    cut = Rule.parse("b (c d! e!) -> b c d! e!", sizes={"d": 3, "e": 2}).bind(((4, 12),))
    assert cut.result_shapes[0] == (4, 2, 3, 2)
    saved = Rule.parse("b c!, b -> ", saved=(Saved("logs", "b c!"),)).bind(((5, 3), (5,)))
    assert (saved.result_shapes[0], saved.saved_shapes) == ((), ((5, 3),))


@pytest.mark.parametrize(
    ("degrees", "message"),
    [({"z": 2}, "has no factor 'z'"), ({"b": 0}, "expected an integer >= 1"), ({"u": 2}, "stays whole")],
)
def test_illegal_degrees(degrees: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        conv().bind(((2, 2, 5, 5), (2, 2, 3, 3), (2,))).tiles(degrees)


def test_halo_tiles_of_a_split_height() -> None:
    """Kernel 3, stride 1, padding 1, 8 rows in 2 parts.

    part  output rows  input rows  padding
    0     0:4          0:5         1 above the image, 0 below
    1     4:8          3:8         0, 1
    """
    bound = conv().bind(((2, 3, 8, 8), (4, 3, 3, 3), (4,)))
    rows = []
    for tile in bound.tiles({"y": 2}):
        rect = tile.operand_rects[0]
        assert rect is not None
        rows.append((tile.range("y"), (rect.lo[2], rect.hi[2]), tile.padding[0]))
    assert rows == [((0, 4), (0, 5), (1, 0)), ((4, 8), (3, 8), (0, 1))]


def test_a_bias_joins_at_the_first_part_of_the_contraction() -> None:
    bound = Rule.parse("b k, n k, [n]@k -> b n").bind(((4, 6), (5, 6), (5,)))
    uses = [(tile.index, tile.operand_rects[2]) for tile in bound.tiles({"k": 2, "n": 2})]
    assert uses == [
        ((0, 0, 0), Rect((0,), (3,))),
        ((0, 0, 1), None),
        ((0, 1, 0), Rect((3,), (5,))),
        ((0, 1, 1), None),
    ]
    assert all(tile.operand_rects[2] is None for tile in bound.rule.bind(((4, 6), (5, 6), None)).tiles({}))


@given(st.integers(0, 40), st.integers(1, 12))
def test_split_range(extent: int, parts: int) -> None:
    ranges = split_range(extent, parts)
    sizes = [high - low for low, high in ranges]
    assert len(ranges) == parts
    assert [i for low, high in ranges for i in range(low, high)] == list(range(extent))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def needed(bound: BoundRule, tile_ranges: dict[str, range], halo: Halo) -> tuple[set[int], set[int]]:
    """Brute force: the input rows that some output row and tap read, and how many taps fall outside on each side."""
    height = bound.operand_shapes[0][2]  # type: ignore[index]
    taps = {y * halo.stride - halo.padding + halo.dilation * j for y in tile_ranges["y"] for j in range(halo.kernel)}
    return {tap for tap in taps if 0 <= tap < height}, taps


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_tiles_against_brute_force(data: st.DataObject) -> None:
    halo = Halo(*(data.draw(st.integers(low, high)) for low, high in ((1, 4), (1, 4), (0, 3), (1, 2))))
    height = data.draw(st.integers(max(1, halo.reach - 2 * halo.padding), 12))
    bound = Rule.parse(CONV, {"y": halo, "x": Halo(1)}).bind(((2, 2, height, 1), (3, 2, halo.kernel, 1), (3,)))
    degrees = {f.name: data.draw(st.integers(1, f.extent + 1 if f.splittable else 1)) for f in bound.factors}
    covered: set[int] = set()
    points: list[tuple[int, ...]] = []
    for tile in bound.tiles(degrees):
        points += itertools.product(*(range(*r) for r in tile.ranges))
        if tile.is_empty:
            continue
        rect, gradient = tile.operand_rects[0], tile.gradient_rects[0]
        assert rect is not None
        assert gradient is not None
        inside, taps = needed(bound, {"y": range(*tile.range("y"))}, halo)
        rows = set(range(rect.lo[2], rect.hi[2]))
        assert inside <= rows
        # No row before the first tap or after the last.
        assert rows == {row for row in range(min(taps), max(taps) + 1) if 0 <= row < height}
        below, above = tile.padding[0]
        assert below + len(rows) + above == max(taps) - min(taps) + 1
        assert below == max(0, min(-min(taps), max(taps) - min(taps) + 1))
        assert rows <= set(range(gradient.lo[2], gradient.hi[2])) or not rows
        covered |= set(range(gradient.lo[2], gradient.hi[2]))
        b, o, y, x = (tile.range(name) for name in "boyx")
        assert tile.result_rects[0] == Rect((b[0], o[0], y[0], x[0]), (b[1], o[1], y[1], x[1]))
    assert sorted(points) == list(itertools.product(*(range(factor.extent) for factor in bound.factors)))
    assert covered == set(range(height))


def test_tiles_are_row_major_and_the_same_every_time() -> None:
    bound = Rule.parse("b k, n k, [n]@k -> b n").bind(((4, 6), (5, 6), (5,)))
    indices = [tile.index for tile in bound.tiles({"k": 2, "b": 3})]
    assert indices == list(itertools.product(range(3), range(1), range(2)))
    assert bound.tiles({"b": 3, "k": 2}) == bound.tiles({"k": 2, "b": 3})


def test_planning_does_not_import_torch() -> None:
    modules = "maniple.operators.graph.graph, maniple.operators.training.optimizer"
    code = f"import sys; import {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
