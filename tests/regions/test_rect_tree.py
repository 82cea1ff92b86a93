"""Rectangle trees against lists: the same entries, found without looking at those that are far away."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.regions.rect_tree import RectTree
from maniple.regions.rectangle import Rect

PROFILE = settings(derandomize=True, deadline=None, max_examples=100)


@st.composite
def boxes(draw: st.DrawFn, ndim: int) -> Rect:
    low = [draw(st.integers(0, 30)) for _ in range(ndim)]
    return Rect(tuple(low), tuple(x + draw(st.integers(1, 6)) for x in low))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, list[Rect]]]:
    ndim = draw(st.integers(0, 3))
    some = st.lists(boxes(ndim), max_size=30)
    return draw(st.lists(st.tuples(st.sampled_from(["add", "add", "take", "over"]), some), max_size=8))


@given(histories())
@PROFILE
def test_a_tree_holds_what_a_list_holds(history: list[tuple[str, list[Rect]]]) -> None:
    tree: RectTree[int] = RectTree()
    known: dict[int, Rect] = {}
    number = 0
    for what, rects in history:
        near = sorted(n for n, rect in known.items() if any(rect.overlaps(other) for other in rects))
        before = tree
        if what == "add":
            added = dict(enumerate(rects, number))
            number += len(rects)
            tree = tree.add([(rect, n) for n, rect in added.items()])
            assert sorted(before) == sorted(known)
            known |= added
        elif what == "take":
            found, tree = tree.take(rects)
            assert sorted(found) == near
            assert sorted(before) == sorted(known)
            known = {n: rect for n, rect in known.items() if n not in near}
        else:
            assert sorted(tree.over(rects)) == near
        assert sorted(tree) == sorted(known)
        assert len(tree) == len(known)


@pytest.mark.parametrize("at_once", [True, False])
def test_it_looks_only_at_what_is_near(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that come all at once, and one by one in order, are found along a short path."""
    compared = 0
    overlaps = Rect.overlaps

    def counted(self: Rect, other: Rect) -> bool:
        nonlocal compared
        compared += 1
        return overlaps(self, other)

    monkeypatch.setattr(Rect, "overlaps", counted)
    for size in (10, 100, 1_000, 10_000):
        tiles = [(Rect((i,), (i + 1,)), i) for i in range(size)]
        tree: RectTree[int] = RectTree()
        for batch in [tiles] if at_once else [[tile] for tile in tiles]:
            tree = tree.add(batch)
        compared = 0
        assert tree.take([Rect((size // 2,), (size // 2 + 1,))])[0] == [size // 2]
        assert compared <= 40 * max(1, math.log(size, 8))
