"""Value tables: the words that compiled bodies read, and digests that tell any two runs apart."""

from __future__ import annotations

import ctypes
import struct

import pytest

from maniple.runtime.program.value_table import WORD, ValueTable

FIRST = [(1, 2.5), (), ("a",), (True,)]


def words(address: int, count: int) -> bytes:
    return ctypes.string_at(address, WORD * count)


def test_numbers_lie_one_after_another_and_other_launches_are_left_out() -> None:
    table = ValueTable(FIRST)
    assert list(table.offsets) == [0, 16, -1, 16]
    packed = table.pack(FIRST)
    assert packed == struct.pack("=qdq", 1, 2.5, 1)
    later = table.pack([(7, 0.5), (), (None,), (False,)])
    assert later is not None
    places = [table.place(packed, 0), table.place(later, 1)]
    assert [words(place, 3) for place in places] == [packed, later]
    assert table.place(packed, 2) == places[0]


@pytest.mark.parametrize("other", [(1.0, 2.5), (True, 2.5), (1, 2), (1 << 64, 2.5), (1,), ("1", 2.5)])
def test_a_run_of_other_types_or_sizes_does_not_fit(other: tuple[object, ...]) -> None:
    assert ValueTable([(1, 2.5)]).pack([other]) is None


def test_digests_differ_wherever_values_or_types_do() -> None:
    runs = [[(1, 2.5)], [(1, -2.5)], [(2, 2.5)], [(1, 0.0)], [(1, -0.0)], [(1.0, 2.5)], [(True, 2.5)], [(1, "2.5")]]
    for first in runs:
        table = ValueTable(first)
        digests = [table.digest(run, table.pack(run)) for run in runs]
        assert len(set(digests)) == len(runs)
    # Ranks whose first runs had other types do not agree by chance.
    assert len({ValueTable(run).digest(run, ValueTable(run).pack(run)) for run in runs}) == len(runs)
