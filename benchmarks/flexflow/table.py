"""The table of a figure: rows printed as they come, kept in a file from which a later command takes them.

It may be put into a page of the documentation, between marks of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from maniple.runtime.control.world import World

Row = dict[str, object]
PAGES = Path(__file__).resolve().parents[2] / "docs" / "explanation"

json_option = click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where rows are kept, an object a line; those that are there are not made again.",
)
write_option = click.option("--write", is_flag=True, help="Put the table between its marks on its page, too.")


def of_contents(path: str | Path) -> str:
    """Name a file by what is in it, too, so that rows made with another of the same name are told apart."""
    return f"{path} {hashlib.blake2b(Path(path).read_bytes(), digest_size=4).hexdigest()}"


class Table:
    """Rows of a Markdown table, kept by rank 0, which alone knows what is kept and tells the other ranks.

    Args:
        file: where they are kept; None: nowhere.
        world: whose ranks make the rows together; None: this process alone makes them.
        page: the page that the table is put into by `write`, and what its marks call it; None: it is put nowhere.
    """

    def __init__(self, file: Path | None, world: World | None = None, page: tuple[str, str] | None = None) -> None:
        self._file, self._world, self._page = file, world, page
        self._shown = world is None or world.rank == 0
        lines = file.read_text().splitlines() if self._shown and file is not None and file.exists() else []
        self._kept: list[Row] = [json.loads(line) for line in lines]
        self._columns: tuple[str, ...] = ()
        self._rows: list[Row] = []

    def add(self, key: Row, make: Callable[[], Row]) -> Row:
        """Add a row, made now unless it is kept, and give it; nothing where another rank alone keeps it.

        Args:
            key: all that it depends on, every option included; its first columns.
            make: gives the other columns.
        """
        row = next((kept for kept in self._kept if key.items() <= kept.items()), None)
        if not self._told(row is not None):
            row = key | make()
            if self._file is not None and self._shown:
                with self._file.open("a") as kept:
                    kept.write(json.dumps(row) + "\n")
        if self._shown and row is not None:
            self._print(row)
            self._rows.append(row)
        return row or {}

    def write(self) -> None:
        """Put what was added between its marks on the page, if it has one; what all rows share is said once above."""
        if self._page is None or not self._rows:
            return
        page, name = PAGES / f"{self._page[0]}.md", self._page[1]
        begin, end = f"<!-- benchmarks/{name}: begin -->", f"<!-- benchmarks/{name}: end -->"
        before, rest = page.read_text(encoding="utf-8").split(begin)
        _, after = rest.split(end)
        page.write_text(f"{before}{begin}\n{drawn(self._rows)}\n{end}{after}", encoding="utf-8")

    def _told(self, kept: bool) -> bool:  # noqa: FBT001
        """Whether rank 0 has a row."""
        return kept if self._world is None else self._world.control.gather(bytes([kept]))[0] == b"\1"

    def _print(self, row: Row) -> None:
        if tuple(row) != self._columns:
            self._columns = tuple(row)
            print(head(self._columns))
        print(line(row.values()), flush=True)


def drawn(rows: list[Row]) -> str:
    """Rows as Markdown: what is the same in all of several in a line above, and the rest as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    same = [name for name in names if len(rows) > 1 and len({repr(row.get(name)) for row in rows}) == 1]
    told = ", ".join(f"{name} {cell(rows[0][name])}" for name in same)
    others = [name for name in names if name not in same]
    table = [head(others), *(line(row.get(name) for name in others) for row in rows)]
    return "\n".join([*([f"All rows: {told}.", ""] if told else []), *table])


def head(names: Iterable[str]) -> str:
    """The first two lines of a table."""
    shown = list(names)
    return "| " + " | ".join(shown) + " |\n|" + "---|" * len(shown)


def line(values: Iterable[object]) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(cell, values)) + " |"


def cell(value: object) -> str:
    """A value as a table has it: four digits, and nothing where there is none."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return "" if value is None else str(value)
