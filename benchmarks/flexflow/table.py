"""The table of a figure: rows printed as they come, and kept in a file from which a later command takes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import click

from maniple.runtime.control.world import World

Row = dict[str, object]

json_option = click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where rows are kept, an object a line; those that are there are not made again.",
)


def of_contents(path: str | Path) -> str:
    """Name a file by what is in it, too, so that rows made with another of the same name are told apart."""
    return f"{path} {hashlib.blake2b(Path(path).read_bytes(), digest_size=4).hexdigest()}"


class Table:
    """Rows of a Markdown table, kept by rank 0, which alone knows what is kept and tells the other ranks.

    Args:
        file: where they are kept; None: nowhere.
        world: whose ranks make the rows together; None: this process alone makes them.
    """

    def __init__(self, file: Path | None, world: World | None = None) -> None:
        self._file, self._world = file, world
        self._shown = world is None or world.rank == 0
        lines = file.read_text().splitlines() if self._shown and file is not None and file.exists() else []
        self._kept: list[Row] = [json.loads(line) for line in lines]
        self._columns: tuple[str, ...] = ()

    def add(self, key: Row, make: Callable[[], Row]) -> None:
        """Add a row, made now unless it is kept.

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

    def _told(self, kept: bool) -> bool:  # noqa: FBT001
        """Whether rank 0 has a row."""
        return kept if self._world is None else self._world.control.gather(bytes([kept]))[0] == b"\1"

    def _print(self, row: Row) -> None:
        if tuple(row) != self._columns:
            self._columns = tuple(row)
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
        values = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(values) + " |", flush=True)
