"""Columns and launches are analysed alike: what the compiled rules say of a step, row by row, is what uses come to.

The one analysis of steps is compiled; launches that come one by one are analysed as they come. Random programs of
boxes, on several hosts, are put through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, accumulate, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis import column_analysis
from maniple.runtime.analysis.fragment import Fragment, FragmentKey, HostDistance
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse_by_use

PRIVILEGES = (READ, READ, READ_WRITE, WRITE_DISCARD, reduce("+"), reduce("+"), accumulate("+"), accumulate("+"))
HOSTS = ((0,), (0, 0), (0, 1), (0, 0, 1, 1), (0, 1, 2), (0, 0, 0, 1, 1, 2))


@st.composite
def tilings(draw: st.DrawFn, bounds: Rect, cut: Sequence[int]) -> tuple[Rect, ...]:
    """Disjoint boxes of a region: a grid of uneven parts of some axes. Where one is cut, some parts may be left out."""
    axes = []
    for axis, extent in enumerate(bounds.hi):
        inner = draw(st.lists(st.integers(1, max(1, extent - 1)), max_size=3)) if axis in cut else []
        axes.append([pair for pair in pairwise(sorted({0, extent, *inner})) if pair[0] < pair[1]])
    boxes = [Rect(tuple(a for a, _ in sides), tuple(b for _, b in sides)) for sides in product(*axes)]
    kept = [len(cut) > 1 or draw(st.booleans()) for _ in boxes]
    return tuple(box for box, keep in zip(boxes, kept, strict=True) if keep) or (bounds,)


@st.composite
def uses(draw: st.DrawFn, bounds: Rect, cut: Sequence[int], memories: int) -> tuple[Privilege, tuple[PlacedUse, ...]]:
    """A launch's use: tiles, tiles with halos, replicas, or everything from everywhere."""
    privilege = draw(st.sampled_from(PRIVILEGES))
    boxes = draw(tilings(bounds, cut))
    form = draw(st.sampled_from(("tiles", "halos", "whole", "replicas")))
    if form == "whole" or (privilege.reduces and form == "halos"):
        boxes = (bounds,) * draw(st.integers(1, memories)) if not privilege.writes else (bounds,)
    if form == "halos" and not privilege.writes and not privilege.reduces:
        wide = draw(st.integers(1, 2))
        boxes = tuple(
            Rect(
                tuple(max(0, a - wide) for a in box.lo),
                tuple(min(b, c + wide) for b, c in zip(bounds.hi, box.hi, strict=True)),
            )
            for box in boxes
        )
    placed: list[PlacedUse] = []
    for number, box in enumerate(boxes):
        copies = draw(st.integers(1, 2)) if form == "replicas" else 1
        for _ in range(copies):
            memory = draw(st.integers(0, memories - 1))
            placed.append(PlacedUse(len(placed), (number,), 10 + len(placed) % 3 + 3 * memory, memory, box))
    return privilege, tuple(placed)


@st.composite
def programs(draw: st.DrawFn, *, several: bool = False) -> tuple[FragmentKey, tuple[int, ...]]:
    """A region's uses, which cut it on one axis, or on several."""
    hosts = draw(st.sampled_from(HOSTS))
    bounds = Rect.of_shape(tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))))
    cut = tuple(range(bounds.ndim)) if several else (draw(st.integers(0, bounds.ndim - 1)),)
    home = ((draw(st.integers(0, len(hosts) - 1)), (bounds,)),) if draw(st.booleans()) else ()
    first = () if home or draw(st.booleans()) else ((WRITE_DISCARD, (PlacedUse(0, (0,), 0, 0, bounds),)),)
    rest = []
    for _ in range(draw(st.integers(1, 7))):  # more often than contributions wait unmerged, of one that reduces
        use = draw(uses(bounds, cut, len(hosts)))
        rest += [use] * (draw(st.sampled_from((1, 1, 1, 17))) if use[0].reduces else 1)
    last = (READ, (PlacedUse(0, (0,), 0, 0, bounds),))
    return FragmentKey(bounds, home, (*first, *rest, last)), hosts


def told(fragment: Fragment) -> dict[str, object]:
    """A fragment with its index spaces in place of their numbers."""
    spaces = fragment.spaces

    def rows(table: np.ndarray[tuple[int, int], np.dtype[np.int64]], space: int) -> list[tuple[object, ...]]:
        return [(*row[:space], spaces[row[space]], *row[space + 1 :]) for row in table.tolist()]

    return {
        "serves": fragment.serves.tolist(),
        "kinds": fragment.kinds.tolist(),
        "processors": fragment.processors.tolist(),
        "elements": fragment.elements.tolist(),
        "ops": fragment.ops,
        "tasks": rows(fragment.tasks, 2),
        "accesses": rows(fragment.accesses, 1),
        "transfers": rows(fragment.transfers, 1),
        "pieces": rows(fragment.pieces, 1),
        "parts": fragment.parts.tolist(),
        "instances": rows(fragment.instances, 2),
        "edges": {tuple(edge) for edge in fragment.edges.tolist()},
        "carried": {tuple(edge) for edge in fragment.carried.tolist()},
        "leaves": fragment.leaves,
    }


@given(programs())
def test_columns_say_what_uses_come_to(program: tuple[FragmentKey, tuple[int, ...]]) -> None:
    key, hosts = program
    found = column_analysis.analyse(key, hosts)
    try:
        expected = told(analyse_by_use(key, HostDistance(hosts)))
    except RequestError:
        assert found is None
        return
    assert found is not None
    for name, value in told(found).items():
        assert value == expected[name], name


@given(programs(several=True))
def test_columns_leave_what_uses_leave(program: tuple[FragmentKey, tuple[int, ...]]) -> None:
    """Of ragged shapes on several axes boxes may be cut otherwise; what is valid where in the end is the same."""
    key, hosts = program
    found = column_analysis.analyse(key, hosts)
    try:
        expected = analyse_by_use(key, HostDistance(hosts))
    except RequestError:
        assert found is None
        return
    assert found is not None
    assert found.leaves == expected.leaves
    assert (len(found.kinds) == 0) == (len(expected.kinds) == 0)
