"""Templates: when a lowered sequence may be replayed, and what it leaves of the regions that it met.

Two memories with one processor each; a region of eight elements.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maniple as mp
from maniple.regions import Use
from maniple.regions.index_space import RectSet
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import UnwrittenRead, Validity
from maniple.runtime.analysis.template import Template, close, covers, lower
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.schedule import RowKind

MACHINE = mp.Machine.cpu(1, ranks=2)
SIZE = 8
WHOLE = Rect((0,), (SIZE,))
LEFT, RIGHT = Rect((0,), (4,)), Rect((4,), (SIZE,))
X = LogicalRegion(0, "x", WHOLE, "float32")

HOLDINGS = st.dictionaries(
    st.integers(0, 1),
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(
        lambda ends: Rect((min(ends[0], ends[1] - 1),), (ends[1],))
    ),
)


def held(**rects: Rect) -> Validity:
    """A state by memory, such as ``held(m0=WHOLE)``."""
    return Validity.of_holdings({int(name[1:]): RectSet.of([rect]) for name, rect in rects.items()})


def on(processor: int, privilege: Privilege, rect: Rect = WHOLE) -> Launch:
    return Launch("f", (Point((0,), processor),), (Requirement(X, privilege, (rect,)),))


def lowered(state: Validity, *launches: Launch) -> Template:
    return lower(launches, {X.id: state}, MACHINE, lambda _: lambda one, other: int(one != other))


@given(state=HOLDINGS, needed=HOLDINGS)
def test_a_state_covers_another_where_each_memory_holds_as_much(
    state: dict[int, Rect], needed: dict[int, Rect]
) -> None:
    one, other = (Validity.of_holdings({m: RectSet.of([r]) for m, r in rects.items()}) for rects in (state, needed))
    points = [{(m, point) for m, rect in rects.items() for point in rect.points()} for rects in (state, needed)]
    assert covers(one, other) == (points[1] <= points[0])


def pending() -> Validity:
    """x in memory 0, and a contribution of either memory that waits."""
    uses = [Use(memory, WHOLE, reduce("+"), (1, memory)) for memory in (0, 1)]
    return held(m0=WHOLE).advance(uses)[1]


def test_a_state_in_which_something_is_pending_covers_nothing_but_itself() -> None:
    state = pending()
    assert state.pending
    assert not covers(state, held(m0=LEFT))
    assert covers(state, state)


def test_a_template_applies_where_at_least_what_it_needs_is_valid() -> None:
    template = lowered(held(m0=WHOLE), on(0, READ))
    assert template.applies({X.id: held(m0=WHOLE)})
    assert template.applies({X.id: held(m0=WHOLE, m1=LEFT)})
    assert not template.applies({X.id: held(m0=LEFT, m1=WHOLE)})


def test_a_read_leaves_one_more_copy_and_may_follow_itself() -> None:
    template = lowered(held(m0=WHOLE), on(1, READ))
    assert template.recurrent
    assert template.written == frozenset()
    assert covers(template.after(X.id, held(m0=WHOLE)), held(m0=WHOLE, m1=WHOLE))


def test_a_write_takes_the_value_from_all_other_memories_but_where_it_does_not_touch() -> None:
    template = lowered(held(m0=WHOLE, m1=WHOLE), on(1, READ_WRITE, RIGHT))
    assert template.written == {X.id}
    after = template.after(X.id, held(m0=WHOLE, m1=WHOLE))
    assert after.valid == held(m0=LEFT, m1=WHOLE).valid


def test_what_ends_where_it_began_is_lowered_from_the_smaller_state_so_that_it_may_follow_itself() -> None:
    """Both memories hold x before; memory 1 alone does after. From that state on nothing moves, run after run."""
    template = lowered(held(m0=WHOLE, m1=WHOLE), on(1, READ_WRITE))
    assert template.recurrent
    assert template.entry[X.id].valid == held(m1=WHOLE).valid
    assert [RowKind(int(kind)) for kind in template.schedule.kind] == [RowKind.TASK]


def test_what_moves_a_value_on_does_not_follow_itself() -> None:
    """Memory 0 reads, memory 1 takes the value: the next run finds nothing where this one began."""
    template = lowered(held(m0=WHOLE), on(0, READ), on(1, READ_WRITE))
    assert not template.recurrent
    assert template.applies({X.id: held(m0=WHOLE)})
    assert not template.applies({X.id: held(m1=WHOLE)})


def test_contributions_that_nobody_read_are_folded_at_the_end() -> None:
    template = lowered(held(m0=WHOLE), on(0, reduce("+")), on(1, reduce("+")))
    assert "close" in {launch.name for launch in template.schedule.launches}
    assert not template.exit[X.id].pending
    assert template.written == {X.id}


def test_closing_spreads_the_folds_over_those_who_contributed() -> None:
    assert close(X, held(m0=WHOLE), MACHINE) is None
    closing = close(X, pending(), MACHINE)
    assert closing is not None
    (requirement,) = closing.requirements
    assert requirement.privilege == READ
    assert [point.processor for point in closing.points] == [0, 1]
    assert [rect.volume for rect in requirement.rects] == [SIZE // 2, SIZE // 2]


def test_a_sequence_that_reads_what_nothing_wrote_is_refused() -> None:
    with pytest.raises(UnwrittenRead):
        lowered(held(m0=LEFT), on(0, READ))
    assert lowered(Validity.initial(), on(0, WRITE_DISCARD)).entry[X.id].valid == {}
