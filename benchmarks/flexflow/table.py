"""The table of a figure: rows printed as they come, and kept in a file from which a later command takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

Row = dict[str, object]

json_option = click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where rows are kept, an object a line; those that are there are not made again.",
)


class Table:
    """Rows of a Markdown table.

    Args:
        file: where they are kept; None: nowhere.
        shown: whether they are printed and kept.
    """

    def __init__(self, file: Path | None, *, shown: bool = True) -> None:
        self._file, self._shown = file, shown
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self._kept: list[Row] = [json.loads(line) for line in lines]
        self._columns: tuple[str, ...] = ()

    def add(self, key: Row, make: Callable[[], Row]) -> None:
        """Add a row, made now unless it is kept.

        Args:
            key: what tells it from others; its first columns.
            make: gives the other columns.
        """
        row = next((kept for kept in self._kept if key.items() <= kept.items()), None)
        if row is None:
            row = key | make()
            if self._file is not None and self._shown:
                with self._file.open("a") as kept:
                    kept.write(json.dumps(row) + "\n")
        if self._shown:
            self._print(row)

    def _print(self, row: Row) -> None:
        if tuple(row) != self._columns:
            self._columns = tuple(row)
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
        values = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(values) + " |", flush=True)
