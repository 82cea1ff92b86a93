"""Drafts: which steps of two rows conflict, against all pairs of steps, and how many spaces are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.index_space import IndexSpace, RectSet, meets
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule import draft
from maniple.runtime.schedule.draft import conflicts, users_of

Touches = list[list[tuple[int, IndexSpace, bool]]]


@st.composite
def spaces(draw: st.DrawFn) -> IndexSpace:
    low = draw(st.integers(0, 30))
    first = Rect((low, 0), (low + draw(st.integers(0, 3)), draw(st.integers(1, 3))))
    if draw(st.integers(0, 4)):
        return first
    return RectSet.of([first, Rect((40, 0), (40 + draw(st.integers(1, 2)), 1))])


STEPS = st.lists(st.lists(st.tuples(st.integers(0, 2), spaces(), st.booleans()), max_size=4), max_size=16)


@given(STEPS, STEPS)
def test_what_waits_is_what_conflicts(earlier: Touches, later: Touches) -> None:
    expected: dict[int, set[int]] = {}
    for then, touched in enumerate(later):
        for number, used in enumerate(earlier):
            for instance, space, writes in used:
                for other, second, rewrites in touched:
                    if instance == other and (writes or rewrites) and meets(space, second):
                        expected.setdefault(then, set()).add(number)
    assert conflicts(users_of(earlier), users_of(later)) == expected


def exchange(members: int) -> Touches:
    """The steps of an all-gather among members that share memory, each with a block of every instance."""
    block = [Rect((member,), (member + 1,)) for member in range(members)]
    pairs = [(a, b) for a in range(members) for b in range(members) if a != b]
    return [[(a, block[a], False), (b, block[a], True)] for a, b in pairs]


def test_the_same_exchange_again_compares_few_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of n members has n blocks: none of them is compared with another, where all pairs were n * n for each."""
    compared = 0

    def counted(first: IndexSpace, second: IndexSpace) -> bool:
        nonlocal compared
        compared += 1
        return meets(first, second)

    monkeypatch.setattr(draft, "meets", counted)
    for members in (9, 18):
        touched = users_of(exchange(members))
        found = conflicts(touched, touched)
        # A push from a to b writes a's block there: what wrote it before; and reads a's own, which nobody writes.
        assert {then: len(needs) for then, needs in found.items()} == dict.fromkeys(range(members * (members - 1)), 1)
    assert compared == 0
