"""Columns and launches are analysed alike: what the compiled rules say of a step, row by row, is what uses come to.

The one analysis of steps is compiled; launches that come one by one are analysed as they come. Random programs of
boxes, on several hosts, are put through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_pushes import listed, told

from maniple.process.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, accumulate, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis import column_analysis
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.fragment import FragmentKey, HostDistance
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse_by_use
from maniple.runtime.schedule.schedule import RowKind

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


@st.composite
def meshes(draw: st.DrawFn) -> tuple[FragmentKey, tuple[int, ...]]:
    """Uses by memories in a mesh: each its own block, or what those of its row or column have, or everything."""
    rows, columns = draw(st.sampled_from(((2, 2), (2, 3), (3, 2))))
    count, ragged = rows * columns, draw(st.integers(0, 1))
    bounds = Rect.of_shape((2 * count + ragged, columns))
    spans = {
        "own": [Rect((2 * each, 0), (2 * each + 2, columns)) for each in range(count)],
        "row": [
            Rect((2 * columns * (each // columns), 0), (2 * columns * (each // columns + 1), columns))
            for each in range(count)
        ],
        "column": [Rect((0, each % columns), (2 * count, each % columns + 1)) for each in range(count)],
        "all": [bounds] * count,
    }
    found: list[tuple[Privilege, tuple[PlacedUse, ...]]] = [(WRITE_DISCARD, (PlacedUse(0, (0,), 0, 0, bounds),))]
    for _ in range(draw(st.integers(1, 5))):
        span = draw(st.sampled_from(sorted(spans)))
        privilege = draw(st.sampled_from((READ, READ, WRITE_DISCARD, reduce("+"))))
        privilege = READ if privilege == WRITE_DISCARD and span != "own" else privilege
        placed = [PlacedUse(each, (each,), each, each, box) for each, box in enumerate(spans[span])]
        found.append((privilege, tuple(placed)))
    last = (READ, tuple(PlacedUse(each, (each,), each, each, box) for each, box in enumerate(spans["row"])))
    whole = (READ, (PlacedUse(0, (0,), 0, 0, bounds),))
    hosts = draw(st.sampled_from((tuple(each // columns for each in range(count)), (0,) * count)))
    return FragmentKey(bounds, (), (*found, last, whole)), hosts


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
    for name, value in told(listed(found, hosts)).items():
        assert value == expected[name], name


@settings(max_examples=30)
@given(meshes())
def test_columns_say_what_groups_come_to(program: tuple[FragmentKey, tuple[int, ...]]) -> None:
    """Groups that move side by side, each by a collective of its own where it is one."""
    key, hosts = program
    found = column_analysis.analyse(key, hosts)
    assert found is not None
    expected = told(analyse_by_use(key, HostDistance(hosts)))
    for name, value in told(listed(found, hosts)).items():
        assert value == expected[name], name


def test_rows_of_a_mesh_gather_side_by_side() -> None:
    """Every memory wrote a block, and each row of four by two reads its own: an all-gather each, and no copy."""
    own = tuple(PlacedUse(each, (each,), each, each, Rect((each,), (each + 1,))) for each in range(8))
    row = tuple(PlacedUse(each, (each,), each, each, Rect((each // 4 * 4,), (each // 4 * 4 + 4,))) for each in range(8))
    for uses, kind in (
        (((WRITE_DISCARD, own), (READ, row)), RowKind.ALL_GATHER),
        (((reduce("+"), row), (READ, row)), RowKind.ALL_REDUCE),
        (((reduce("+"), row), (READ_WRITE, own)), RowKind.REDUCE_SCATTER),
    ):
        found = column_analysis.analyse(FragmentKey(Rect.of_shape((8,)), (), uses), (0,) * 4 + (1,) * 4)
        assert found is not None
        assert found.kinds.tolist() == [kind] * 2
        assert found.serves.tolist() == [1, 1]


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


def test_a_replica_of_a_task_that_adds_contributes_nothing() -> None:
    """It computes once more what its point adds to the contribution that waits there: counted, it would be twice."""
    whole = Rect((0,), (4,))
    replicas = tuple(PlacedUse(number, (0,), 10 + number, 0, whole) for number in range(2))
    write, read = ((privilege, (PlacedUse(0, (0,), 0, 1, whole),)) for privilege in (WRITE_DISCARD, READ))
    key, hosts = FragmentKey(whole, (), (write, *[(accumulate("+"), replicas)] * 2, read)), (0, 0)
    found, expected = column_analysis.analyse(key, hosts), analyse_by_use(key, HostDistance(hosts))
    assert found is not None
    assert told(listed(found, hosts)) == told(expected)
    # What is folded: the value from before, in place, and one contribution, copied to it.
    fold = int(np.flatnonzero(expected.kinds == RowKind.FOLD)[-1])
    assert (expected.accesses[:, columns.NODE] == fold).sum() == 3
