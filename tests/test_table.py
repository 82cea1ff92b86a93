"""Tables: aligned, and no wider than they may be."""

from __future__ import annotations

import pytest

from maniple import table
from maniple.table import align

ROWS = [("operator", "processors"), ("linear", "0-6 9-12 20-31"), ("a_name_that_is_long", "0")]


def test_cells_are_aligned() -> None:
    assert align(ROWS).splitlines() == [
        "operator             processors",
        "linear               0-6 9-12 20-31",
        "a_name_that_is_long  0",
    ]


@pytest.mark.parametrize("width", [18, 24, 30])
def test_a_narrow_table_goes_on_below_and_loses_no_character(width: int) -> None:
    lines = align(ROWS, width).splitlines()
    assert max(map(len, lines)) <= width
    assert sorted("".join(lines).replace(" ", "")) == sorted("".join(a + b for a, b in ROWS).replace(" ", ""))


def test_no_column_is_narrower_than_it_can_be_read() -> None:
    assert max(map(len, align(ROWS, 1).splitlines())) == 2 * table.NARROWEST + table.GAP


def test_a_file_has_no_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.shown_width() is None
