"""Sequences on demand behave as tuples of the same items."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.schedule.on_demand import OnDemand


class Squares(OnDemand[int]):
    """As many squares as are asked for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def item(self, number: int) -> int:
        return number * number


@given(st.integers(0, 9), st.integers(-12, 12), st.slices(9))
def test_items_are_those_of_a_tuple(count: int, number: int, part: slice) -> None:
    squares, expected = Squares(count), tuple(each * each for each in range(count))
    assert tuple(squares) == expected
    assert squares[part] == expected[part]
    if -count <= number < count:
        assert squares[number] == expected[number]
    else:
        with pytest.raises(IndexError, match=f"below {count}"):
            squares[number]
