"""Home tables: where a weight lives under all choices of the one operator that uses it.

What `operators/plan/weight_home.py` and `frontier/homes.py` say of one choice, compiled for all:

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
            _spread_over(shape, mine, users, turn, degrees, owners)
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
                low = _low(shape[axis], degrees[axis], part)
                rows[count, 2 + axis], rows[count, 2 + axes + axis] = low, _low(shape[axis], degrees[axis], part + 1)
            count += 1
    return count


@inner
def _low(extent: int, parts: int, part: int) -> int:
    """Where a part begins, as `split_range` cuts."""
    return part * (extent // parts) + min(part, extent % parts)


@inner
def _same(tiles: Table, one: int, other: int) -> bool:
    equal = True
    for column in range(tiles.shape[1]):
        equal &= tiles[one, column] == tiles[other, column]
    return equal


@inner
def _before(tiles: Table, one: int, other: int) -> bool:
    for column in range(tiles.shape[1]):
        if tiles[one, column] != tiles[other, column]:
            return bool(tiles[one, column] < tiles[other, column])
    return False


@inner
def _distinct(tiles: Table) -> tuple[Column, int]:
    """By tile, the first one that is equal; and how many differ."""
    found, count = np.empty(len(tiles), dtype=np.int64), 0
    for tile in range(len(tiles)):
        found[tile] = tile
        for other in range(tile):
            if found[other] == other and _same(tiles, tile, other):
                found[tile] = other
                break
        count += found[tile] == tile
    return found, count


@inner
def _lows(tiles: Table, firsts: Column, degrees: Column) -> int:
    """Write by axis how many lows differ; gives the product."""
    product = 1
    for axis in range(len(degrees)):
        number = 0
        for tile in range(len(tiles)):
            if firsts[tile] != tile:
                continue
            new = True
            for other in range(tile):
                if tiles[other, 2 * axis] == tiles[tile, 2 * axis]:
                    new = False
                    break
            number += new
        degrees[axis] = number
        product *= number
    return product


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
    firsts, count = _distinct(tiles)
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
    if sizes[0] == 1 or _lows(tiles, firsts, degrees) != count:
        return 0
    order, size = _in_order(tiles, firsts, count), 0
    for place in range(count):
        for replica in range(sizes[0]):
            owners[size] = mine[order[place], replica]
            size += 1
    return size


@inner
def _spread_over(shape: Column, tiles: Table, users: Table, turn: int, degrees: Column, owners: Column) -> None:
    """The first home, see `home_among`."""
    if len(tiles) == 0:
        owners[0] = 0
        return
    if turn < 0 and _in_place(shape, tiles, users, degrees, owners):
        return
    degrees[:] = 1
    everyone = np.unique(users)
    if turn >= 0:
        lap, place = turn // len(everyone), turn % len(everyone)
        owners[0] = everyone[len(everyone) - 1 - place] if lap % 2 == 1 else everyone[place]
        return
    if len(shape) == 0:
        owners[0] = everyone[0]
        return
    axis = _axis_to_cut(shape, tiles, len(everyone))
    count = min(shape[axis], len(everyone))
    degrees[axis] = count
    alike = True
    for tile in range(len(tiles)):
        alike &= tiles[tile, 2 * axis] == tiles[0, 2 * axis] and tiles[tile, 2 * axis + 1] == tiles[0, 2 * axis + 1]
    if alike:
        owners[:count] = everyone[:count]
        return
    _keep_within_tiles(shape, tiles, axis, degrees)
    within = 1
    for other in range(axis + 1, len(shape)):
        within *= degrees[other]
    spans = tiles[:, 2 * axis : 2 * axis + 2]
    _to_the_nearest(shape[axis], degrees[axis], within, spans, users, everyone, owners, count)


@inner
def _keep_within_tiles(shape: Column, tiles: Table, axis: int, degrees: Column) -> None:
    """Cut each tile along a second axis where blocks along the one that the tiles cut lie in two; see `home_among`."""
    lows, second, count = np.ones(len(shape), dtype=np.int64), -1, degrees[axis]
    firsts, _ = _distinct(tiles)
    number = _lows(tiles, firsts, lows)
    for other in range(len(shape)):
        if other != axis and (second < 0 or shape[other] > shape[second]):
            second = other
    if lows[axis] != number or second < 0 or count % number or shape[second] < count // number:
        return
    along = by_tile = True
    for part in range(number):
        along &= _low(shape[axis], count, part * (count // number)) == _low(shape[axis], number, part)
    for tile in range(len(tiles)):
        for end in range(2 * axis, 2 * axis + 2):
            by_tile &= _is_cut_at(shape[axis], number, tiles[tile, end])
    if by_tile and not along:
        degrees[axis], degrees[second] = number, count // number


@inner
def _is_cut_at(extent: int, parts: int, index: int) -> bool:
    """Whether a part begins or ends at an index, as `split_range` cuts into at most as many parts as there are."""
    longer = (extent % parts) * (extent // parts + 1)
    return bool(index % (extent // parts + 1) == 0 if index <= longer else (index - longer) % (extent // parts) == 0)


@inner
def _to_the_nearest(
    extent: int, parts: int, within: int, spans: Table, users: Table, everyone: Column, owners: Column, count: int
) -> None:
    """Give each block, in order, to the processor without one that has the tile with the most of it.

    Args:
        extent: of the axis that tiles cut.
        parts: into how many it is cut.
        within: how many blocks of one part follow each other.
        spans: the tiles along that axis.
        users: who uses each.
        everyone: who uses any.
        owners: of blocks, are written.
        count: how many there are.
    """
    shares = np.zeros((len(everyone), count), dtype=np.int64)
    for tile in range(len(spans)):
        for replica in range(users.shape[1]):
            by = np.searchsorted(everyone, users[tile, replica])
            for block in range(count):
                part = block // within % parts
                low, high = _low(extent, parts, part), _low(extent, parts, part + 1)
                share = min(high, spans[tile, 1]) - max(low, spans[tile, 0])
                shares[by, block] = max(shares[by, block], share)
    for block in range(count):
        owner = 0
        for other in range(1, len(everyone)):
            if shares[other, block] > shares[owner, block]:
                owner = other
        shares[owner, :] = -1
        owners[block] = everyone[owner]


@inner
def _axis_to_cut(shape: Column, tiles: Table, users: int) -> int:
    """The one axis that the tiles cut, if it is long enough; else the largest, the first of equals."""
    cuts, cut, largest = 0, 0, 0
    for axis in range(len(shape)):
        if shape[axis] > shape[largest]:
            largest = axis
        differs = False
        for tile in range(len(tiles)):
            differs |= tiles[tile, 2 * axis] != tiles[0, 2 * axis]
        if differs:
            cuts += 1
            cut = axis
    return cut if cuts == 1 and shape[cut] >= users else largest


@inner
def _in_place(shape: Column, tiles: Table, users: Table, degrees: Column, owners: Column) -> bool:
    """Whether one processor uses each tile, and the tiles are the blocks of a home; writes that."""
    firsts, count = _distinct(tiles)
    for tile in range(len(tiles)):
        for replica in range(users.shape[1]):
            if users[tile, replica] != users[firsts[tile], 0]:
                return False
    if _lows(tiles, firsts, degrees) != count:
        return False
    for tile in range(len(tiles)):
        if firsts[tile] != tile:
            continue
        block = 0
        for axis in range(len(shape)):
            low, high = tiles[tile, 2 * axis], tiles[tile, 2 * axis + 1]
            part = -1
            for number in range(degrees[axis]):
                if _low(shape[axis], degrees[axis], number) == low:
                    if _low(shape[axis], degrees[axis], number + 1) == high:
                        part = number
                    break
            if part < 0:
                return False
            block = block * degrees[axis] + part
        owners[block] = users[tile, 0]
    return True
