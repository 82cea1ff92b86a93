"""Room for compiled records: tables that are made once, larger than what is written to them."""

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import leaf

Column = np.ndarray[tuple[int], np.dtype[np.int64]]


@leaf
def next_entry(sizes: Column, table: int, room: int, full: int) -> int:
    """The next entry of a table; where there is none, the record is full and the last entry is overwritten.

    A record that was full is thrown away as a whole, so what is written over in the last entry does not matter, as long
    as nothing follows a list through it for ever.

    Args:
        sizes: how many entries each table has.
        table: which one.
        room: how many it has room for.
        full: where `sizes` says that a table was too small.
    """
    number = sizes[table]
    if number >= room:
        sizes[full] = 1
        return room - 1
    sizes[table] = number + 1
    return int(number)
