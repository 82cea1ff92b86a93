"""Rings: who lies where in which run."""

from __future__ import annotations

from typing import Any, cast

from maniple.runtime.schedule.turns.ring import Ring

TABLE = """
run      0    1    2    3    4
age 0    a    c    b    a    c
age 1    b    a    c    b    a
age 2    c    b    a    c    b
"""


def test_the_table_of_three_places() -> None:
    ring = Ring(0, cast("Any", ("a", "b", "c")))
    rows = [line.split()[2:] for line in TABLE.strip().splitlines()[1:]]
    for age, row in enumerate(rows):
        assert [ring.regions[ring.place(age, run)] for run in range(5)] == row


def test_what_is_written_is_found_where_it_is_older() -> None:
    for count in range(2, 6):
        ring = Ring(0, cast("Any", tuple(range(count))))
        for run in range(2 * count):
            for age in range(count):
                assert ring.place(0, run) == ring.place(age, run + age)
