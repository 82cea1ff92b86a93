"""Tables: rows of cells as text, one below the other, no wider than the terminal that shows them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

GAP = 2
NARROWEST = 8
"""No column is made narrower than this many characters."""


def shown_width() -> int | None:
    """How many characters a line of standard output has; None where it goes to a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def align(rows: Sequence[tuple[str, ...]], width: int | None = None) -> str:
    """Give rows as lines of text.

    Where they are too wide, cells of the widest columns go on below:

        operator    processors
        linear      0-6 9-12
                    20-31

    Args:
        rows: of equally many cells.
        width: the most characters of a line, as far as columns can be so narrow; None for any.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths = widths if width is None else _narrow(widths, width)
    return "\n".join(line for row in rows for line in _lines(row, widths))


def _narrow(widths: list[int], width: int) -> list[int]:
    """The widths of columns, the widest of them narrowed until a line has no more characters than it may."""
    found = list(widths)
    while sum(found) + GAP * (len(found) - 1) > width and max(found) > NARROWEST:
        found[found.index(max(found))] -= 1
    return found


def _lines(row: tuple[str, ...], widths: list[int]) -> list[str]:
    cells = [
        textwrap.wrap(cell, width) or [""] if len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    return [
        (" " * GAP)
        .join((cell[line] if line < len(cell) else "").ljust(width) for cell, width in zip(cells, widths, strict=True))
        .rstrip()
        for line in range(max(map(len, cells)))
    ]
