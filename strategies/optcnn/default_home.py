"""Default homes in compiled code: where `operators/plan/weight_home.py` has a weight live, given its tiles and users.

Tiles have the low and the high of each axis next to each other; of each there are its users, equally many.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.process.compilation.compiled import inner

if TYPE_CHECKING:
    from maniple.operators.rules.bounds import Column, Table

__all__: list[str] = []


@inner
def low_of(extent: int, parts: int, part: int) -> int:
    """Where a part begins, as `split_range` cuts."""
    return part * (extent // parts) + min(part, extent % parts)


@inner
def _same(tiles: Table, one: int, other: int) -> bool:
    equal = True
    for column in range(tiles.shape[1]):
        equal &= tiles[one, column] == tiles[other, column]
    return equal


@inner
def distinct(tiles: Table) -> tuple[Column, int]:
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
def count_lows(tiles: Table, firsts: Column, degrees: Column) -> int:
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
def spread_over(shape: Column, tiles: Table, users: Table, turn: int, degrees: Column, owners: Column) -> None:
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
    firsts, _ = distinct(tiles)
    number = count_lows(tiles, firsts, lows)
    for other in range(len(shape)):
        if other != axis and (second < 0 or shape[other] > shape[second]):
            second = other
    if lows[axis] != number or second < 0 or count % number or shape[second] < count // number:
        return
    along = by_tile = True
    for part in range(number):
        along &= low_of(shape[axis], count, part * (count // number)) == low_of(shape[axis], number, part)
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
                low, high = low_of(extent, parts, part), low_of(extent, parts, part + 1)
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
    firsts, count = distinct(tiles)
    for tile in range(len(tiles)):
        for replica in range(users.shape[1]):
            if users[tile, replica] != users[firsts[tile], 0]:
                return False
    if count_lows(tiles, firsts, degrees) != count:
        return False
    for tile in range(len(tiles)):
        if firsts[tile] != tile:
            continue
        block = 0
        for axis in range(len(shape)):
            low, high = tiles[tile, 2 * axis], tiles[tile, 2 * axis + 1]
            part = -1
            for number in range(degrees[axis]):
                if low_of(shape[axis], degrees[axis], number) == low:
                    if low_of(shape[axis], degrees[axis], number + 1) == high:
                        part = number
                    break
            if part < 0:
                return False
            block = block * degrees[axis] + part
        owners[block] = users[tile, 0]
    return True
