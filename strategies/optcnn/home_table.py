"""Home tables: where a weight lives under all choices of the one operator that uses it.

What `operators/plan/weight_home.py` (compiled: `default_home.py`) and `frontier/homes.py` say of one choice, for all:

    home         under a choice
    spread       in place, where one processor uses each of the tiles; else cut over all who use it
    where used   each tile at all who use it, where these are equally many, and more than one
    passing      as spread, and whole only while it is used, wherever there is a home where it is used
    summed       there, too, as spread; gradients of micro-batches add up at home
    gathered     there, too, as passing; gradients of micro-batches add up where they are computed
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.compilation.compiled import inner, kernel
from maniple.regions.columns.boxes import HIGH, LOW, WIDTH
from maniple.strategies.optcnn.default_home import count_lows, distinct, low_of, spread_over
from maniple.strategies.optcnn.use_table import BoxLists

if TYPE_CHECKING:
    from maniple.operators.rules.bounds import Bounds, Column, Table
    from maniple.strategies.optcnn.use_table import Mask

    Used = tuple[Column, Table, Column, Column, Column]
    """Of each choice its first tile; of each tile its bounds (low and high by axis), and the place of the first
    processor that uses it; of each choice how many use each tile; and the processors."""

__all__: list[str] = []

NO_TURN = -1
SPREAD, WHERE_USED, PASSING, SUMMED, GATHERED = range(5)
"""The numbers of the homes."""
HOMES, HOMES_IN_PARTS = 3, 5
"""How many there are, the first ones, for a batch that is not cut, and for micro-batches: where gradients do not add up
the last two are as the first and the third."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class HomeTable:
    """One home of a weight under all choices.

    Args:
        there: by choice, whether it is another one than the first, which stands for it where it is not.
        passing: by choice, whether the weight is whole only while it is used.
        summed: by choice, whether gradients of micro-batches add up at home.
        blocks: by choice, what each task of its update has.
        colors: by box, the number of the block; the same for replicas.
    """

    there: Mask
    passing: Mask
    summed: Mask
    blocks: BoxLists
    colors: Column


def home_tables(shape: tuple[int, ...], used: Used, memory_of: Column, turn: int, kinds: int) -> list[HomeTable]:
    """The homes of a weight, by number; see `homes`.

    Args:
        shape: the weight's.
        used: its tiles and who uses them.
        memory_of: the memory of each processor.
        turn: of a weight that lives whole, when it chooses among those who use it; NO_TURN: it may be cut.
        kinds: how many of the homes it may have, the first ones; the first stands for the others.
    """
    extents = np.asarray(shape, dtype=np.int64)
    spread = _table(extents, used, memory_of, turn, SPREAD)
    if kinds == 1:
        return [spread] * HOMES_IN_PARTS
    used_at = _table(extents, used, memory_of, turn, WHERE_USED)
    there, nowhere = used_at.there, spread.there
    # Of each further home where it is whole only in passes, and where gradients add up.
    ways = {PASSING: (there, there), SUMMED: (nowhere, there), GATHERED: (there, nowhere)}
    others = [
        replace(spread, there=there, passing=passing, summed=summed) if home < kinds else spread
        for home, (passing, summed) in ways.items()
    ]
    return [spread, used_at, *others]


def _table(extents: Column, used: Used, memory_of: Column, turn: int, home: int) -> HomeTable:
    there, starts, rows = _settle(extents, *used, memory_of, turn, home)
    boxes = np.zeros((len(rows), WIDTH), dtype=np.int64)
    boxes[:, HIGH:] = 1
    axes = len(extents)
    boxes[:, 0] = rows[:, 1]
    boxes[:, LOW : LOW + axes] = rows[:, 2 : 2 + axes]
    boxes[:, HIGH : HIGH + axes] = rows[:, 2 + axes :]
    nowhere = np.zeros(len(there), dtype=bool)
    return HomeTable(there, nowhere, nowhere, BoxLists(starts, boxes), rows[:, 0].copy())


def tiles_of(bounds: Bounds) -> Table:
    """Bounds with the low and the high of each axis next to each other."""
    found: Table = bounds.reshape(len(bounds), 2 * bounds.shape[1])
    return found


@kernel
def _settle(
    shape: Column,
    starts: Column,
    tiles: Table,
    firsts: Column,
    counts: Column,
    processors: Column,
    memory_of: Column,
    turn: int,
    home: int,
) -> tuple[Mask, Column, Table]:
    """The blocks of a weight under each choice: number, processor, lows and highs.

    Args:
        shape: the weight's.
        starts: see `Used`, and so on.
        tiles: by tile its bounds.
        firsts: by tile the place of its first processor.
        counts: by choice how many use each tile.
        processors: those that use tiles.
        memory_of: the memory of each processor.
        turn: see `home_tables`.
        home: WHERE_USED: each tile lives at all who use it, where that is a home of its own.
    """
    axes, choices = len(shape), len(starts) - 1
    room = 0
    for choice in range(choices):
        room += max(1, (starts[choice + 1] - starts[choice]) * counts[choice])
    rows = np.empty((room, 2 + 2 * axes), dtype=np.int64)
    there, ends = np.zeros(choices, dtype=np.bool_), np.zeros(choices + 1, dtype=np.int64)
    count = 0
    for choice in range(choices):
        first, last, copies = starts[choice], starts[choice + 1], counts[choice]
        mine = tiles[first:last]
        users = np.empty((last - first, copies), dtype=np.int64)
        for tile in range(last - first):
            for replica in range(copies):
                users[tile, replica] = processors[firsts[first + tile] + replica]
        degrees = np.ones(axes, dtype=np.int64)
        owners = np.empty(max(1, users.size), dtype=np.int64)
        size = 0
        if home == WHERE_USED:
            size = _where_used(mine, users, degrees, owners)
            there[choice] = size > 0
        each = 1
        if size > 0:
            blocks = 1
            for axis in range(axes):
                blocks *= degrees[axis]
            each = size // blocks
        else:
            degrees[:] = 1
            spread_over(shape, mine, users, turn, degrees, owners)
        count = _put_blocks(shape, degrees, owners, each, memory_of, rows, count)
        ends[choice + 1] = count
    return there, ends, rows[:count].copy()


@inner
def _put_blocks(
    shape: Column, degrees: Column, owners: Column, each: int, memory_of: Column, rows: Table, count: int
) -> int:
    """Write the blocks of a home, one in each memory; gives how many rows there are then."""
    axes, blocks = len(shape), 1
    for axis in range(axes):
        blocks *= degrees[axis]
    for block in range(blocks):
        for replica in range(each):
            processor = owners[block * each + replica]
            again = False
            for other in range(replica):
                again |= memory_of[owners[block * each + other]] == memory_of[processor]
            if again:
                continue
            rows[count, 0], rows[count, 1] = block, processor
            left = block
            for axis in range(axes - 1, -1, -1):
                part = left % degrees[axis]
                left //= degrees[axis]
                low = low_of(shape[axis], degrees[axis], part)
                rows[count, 2 + axis], rows[count, 2 + axes + axis] = low, low_of(shape[axis], degrees[axis], part + 1)
            count += 1
    return count


@inner
def _before(tiles: Table, one: int, other: int) -> bool:
    for column in range(tiles.shape[1]):
        if tiles[one, column] != tiles[other, column]:
            return bool(tiles[one, column] < tiles[other, column])
    return False


@inner
def _in_order(tiles: Table, firsts: Column, count: int) -> Column:
    """The tiles that differ, by their bounds."""
    order, size = np.empty(count, dtype=np.int64), 0
    for tile in range(len(tiles)):
        if firsts[tile] != tile:
            continue
        place = size
        while place > 0 and _before(tiles, tile, order[place - 1]):
            order[place] = order[place - 1]
            place -= 1
        order[place] = tile
        size += 1
    return order


@inner
def _where_used(tiles: Table, users: Table, degrees: Column, owners: Column) -> int:
    """The home of each tile at all who use it: how many owners there are; 0 where that is no home of its own."""
    if len(tiles) == 0:
        return 0
    firsts, count = distinct(tiles)
    mine = np.empty((len(tiles), users.size), dtype=np.int64)
    sizes = np.zeros(len(tiles), dtype=np.int64)
    for tile in range(len(tiles)):
        first = firsts[tile]
        for replica in range(users.shape[1]):
            known = False
            for place in range(sizes[first]):
                known |= mine[first, place] == users[tile, replica]
            if not known:
                mine[first, sizes[first]] = users[tile, replica]
                sizes[first] += 1
    for tile in range(len(tiles)):
        if firsts[tile] == tile and sizes[tile] != sizes[0]:
            return 0
    if sizes[0] == 1 or count_lows(tiles, firsts, degrees) != count:
        return 0
    order, size = _in_order(tiles, firsts, count), 0
    for place in range(count):
        for replica in range(sizes[0]):
            owners[size] = mine[order[place], replica]
            size += 1
    return size
