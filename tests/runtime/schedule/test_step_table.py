"""Step tables: which steps of two rows conflict, against all pairs of steps, and how many spaces are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.regions.columns import conflict
from maniple.regions.index_space import IndexSpace, RectSet, meets
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.step_table import ComparedUses, StepUses

Touches = list[list[tuple[int, IndexSpace, bool]]]
"""What each step of a row uses: an instance, what of it, and whether it is written."""
PROFILE = settings(derandomize=True, deadline=None, max_examples=150)


@st.composite
def spaces(draw: st.DrawFn) -> IndexSpace:
    low, left = draw(st.integers(0, 12)), draw(st.integers(0, 3))
    first = Rect((low, left), (low + draw(st.integers(0, 3)), left + draw(st.integers(1, 3))))
    if draw(st.integers(0, 4)):
        return first
    return RectSet.of([first, Rect((draw(st.integers(9, 14)), 0), (15 + draw(st.integers(0, 2)), 1))])


STEPS = st.lists(st.lists(st.tuples(st.integers(0, 2), spaces(), st.booleans()), max_size=4), max_size=8)
ROWS = st.lists(STEPS, min_size=1, max_size=3)


def tabulated(rows: Sequence[Touches]) -> tuple[StepUses, list[IndexSpace]]:
    """The uses of rows as columns, a step of a later row having a higher number; and the spaces, each by itself."""
    found, named, step = [], list[IndexSpace](), 0
    for row, steps in enumerate(rows):
        for used in steps:
            for instance, space, writes in used:
                found.append((row, step, instance, len(named), writes))
                named.append(space)
            step += 1
    columns = np.asarray(found, dtype=np.int64).reshape(len(found), 5).T
    return StepUses(len(rows), *columns[:4], columns[4] > 0), named


def expected(rows: Sequence[Touches], names: dict[int, int]) -> set[tuple[int, int, int, int]]:
    """All conflicts of each two rows, of which the instances of the first are renamed: rows, later and earlier step."""
    first = np.cumsum([0, *map(len, rows)]).tolist()
    return {
        (one, other, first[other] + then, first[one] + number)
        for one, other in product(range(len(rows)), repeat=2)
        for number, used in enumerate(rows[one])
        for then, touched in enumerate(rows[other])
        for instance, space, writes in used
        for again, second, rewrites in touched
        if names.get(instance, instance) == again and (writes or rewrites) and meets(space, second)
    }


@PROFILE
@given(ROWS, st.permutations(range(3)))
def test_what_waits_is_what_conflicts(rows: list[Touches], names: list[int]) -> None:
    uses, rects = tabulated(rows)
    pairs = np.asarray([*product(range(len(rows)), repeat=2)])
    for renamed in ({}, dict(enumerate(names))):
        later = ComparedUses.of(uses, rects)
        earlier = ComparedUses.of(uses.renamed(renamed), rects, later)
        found = later.conflicts(earlier, pairs)
        assert found.tolist() == sorted(map(list, set(map(tuple, found.tolist()))))
        told = {(*pairs[pair].tolist(), then, number) for pair, then, number in found.tolist()}
        assert told == expected(rows, renamed)


def test_scalars_and_nothing_are_spaces_too() -> None:
    point, none = Rect((), ()), Rect((3,), (3,))
    for space, count in ((point, 1), (none, 0), (RectSet.empty(), 0)):
        uses, rects = tabulated([[[(0, space, True)]]])
        table = ComparedUses.of(uses, rects)
        assert len(table.conflicts(table, np.zeros((1, 2), dtype=np.int64))) == count


def exchange(members: int) -> Touches:
    """The steps of an all-gather among members that share memory, each with a block of every instance."""
    block = [Rect((0, member), (4, member + 1)) for member in range(members)]
    pairs = [(a, b) for a in range(members) for b in range(members) if a != b]
    return [[(a, block[a], False), (b, block[a], True)] for a, b in pairs]


def test_the_same_exchange_again_compares_few_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of n members has n blocks, of which each is compared with what lies where it does, not with all n."""
    compared, meet = 0, conflict.meet.py_func  # type: ignore[attr-defined]

    def counted(*given: object) -> bool:
        nonlocal compared
        compared += 1
        return bool(meet(*given))

    for name in ("_last", "_walk", "_larger"):
        monkeypatch.setattr(conflict, name, getattr(conflict, name).py_func)
    monkeypatch.setattr(conflict, "meet", counted)
    monkeypatch.setattr(conflict, "conflicts", conflict.conflicts.py_func)  # type: ignore[attr-defined]
    for members in (5, 10):
        uses, rects = tabulated([exchange(members)])
        table = ComparedUses.of(uses, rects)
        found = table.conflicts(table, np.zeros((1, 2), dtype=np.int64))
        # A push from a to b writes a's block there: what wrote it before; and reads a's own, which nobody writes.
        assert found[:, 1].tolist() == found[:, 2].tolist() == list(range(members * (members - 1)))
        assert compared == 0, "spaces of other numbers that lie elsewhere"
        compared = 0
