"""Tables between two marks of a page, which the command that made them puts there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_table(page: Path, begin: str, end: str, table: str) -> None:
    """Put a table in the place of what is between two marks, which are on the page once each.

    Args:
        page: the page.
        begin: the mark before the table, a line of its own.
        end: the mark behind it.
        table: without a line's end behind it.
    """
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
