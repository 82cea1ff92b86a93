"""Compiled record of storage: the instances of a region, and what each row reads, writes and sends of them.

A search asks what moves and who waits; a schedule that runs needs to be told which instance every row uses, where each
push goes and what a collective folds. Both come out of one analysis: it writes this down only where it is `kept`.

An instance has a *place* in the record of uses (see `history`): that of valid values the number of its memory, that of
a contribution the number of its task behind all memories. A tile on its way to a fold has none: it is written and read
once.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import leaf
from maniple.regions.columns import boxes
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH, Boxes
from maniple.regions.columns.room import next_entry

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Storage = tuple[Boxes, Boxes, Table, Table, Table, Column, Column, Column, Column, Table]
"""instances, spaces, accesses, transfers, pieces, parts, the instance in each place, the place of each instance,
sizes, ends of collectives."""

MAIN, REDUCTION, STAGING = range(3)
"""Kinds of instances; the label of an instance is KINDS * memory + kind."""
KINDS = 3
NONE = -1
# Columns of `accesses` (WRITES and SLOT behind FIRST and LAST), of `transfers`, and of `pieces`. FIRST and LAST are the
# boxes of a space.
NODE, INSTANCE, FIRST, LAST, WRITES, SLOT = range(6)
SOURCE, TARGET = 1, 4
MEMORY, FIRST_PART, LAST_PART = 1, 5, 6
# How many of each table are used; whether a record is kept (1); and whether one of the tables was too small.
INSTANCES, SPACES, ACCESSES, TRANSFERS, PIECES, PARTS, KEPT, FULL, ENDS = range(9)
ADDS = 2
"""What stands under WRITES of a task that adds to what is there, where one that only writes has 1 and others 0."""


def room(entries: int) -> Storage:
    """Room for a record; so many instances, and more of what an instance has several of."""
    one, four = (entries,), (4 * entries,)
    shapes = (
        (entries, WIDTH),
        (4 * entries, WIDTH),
        (4 * entries, 6),
        (4 * entries, 5),
        (entries, 7),
        four,
        one,
        one,
        (9,),
        (4 * entries, 3),
    )
    return tuple(np.zeros(shape, dtype=np.int64) for shape in shapes)  # type: ignore[return-value]


@leaf
def begin(storage: Storage, places: int, keeps: bool) -> None:  # noqa: FBT001
    """Begin a record, for so many places; one that is not kept stays empty."""
    at, sizes = storage[6], storage[8]
    sizes[:] = 0
    if not keeps:
        return
    if places > len(at):
        sizes[FULL] = 1
        return
    sizes[KEPT] = 1
    at[:places] = NONE


@leaf
def space(storage: Storage, table: Boxes) -> int:
    """Keep the boxes of a space; returns the number of the first."""
    spaces, sizes = storage[1], storage[8]
    first = sizes[SPACES]
    for row in range(len(table)):
        boxes.put(spaces, next_entry(sizes, SPACES, len(spaces), FULL), table, row)
    return int(first)


@leaf
def make(storage: Storage, memory: int, kind: int, place: int, table: Boxes) -> int:
    """Make an instance with room for some boxes; its number."""
    instances, at, place_of, sizes = storage[0], storage[6], storage[7], storage[8]
    number = next_entry(sizes, INSTANCES, len(instances), FULL)
    boxes.put(instances, number, table, 0)
    instances[number, 0] = KINDS * memory + kind
    place_of[number] = place
    if place != NONE:
        at[place] = number
    _grow(instances, number, table)
    return number


@leaf
def _grow(instances: Boxes, number: int, table: Boxes) -> None:
    for row in range(len(table)):
        for axis in range(AXES):
            instances[number, LOW + axis] = min(instances[number, LOW + axis], table[row, LOW + axis])
            instances[number, HIGH + axis] = max(instances[number, HIGH + axis], table[row, HIGH + axis])


@leaf
def reserve(storage: Storage, memory: int, table: Boxes) -> int:
    """Give a memory's instance of valid values, made or grown to hold some boxes; none where nothing is kept."""
    if storage[8][KEPT] == 0:
        return NONE
    number = storage[6][memory]
    if number == NONE:
        return make(storage, memory, MAIN, memory, table)
    _grow(storage[0], number, table)
    return int(number)


@leaf
def held(storage: Storage, place: int) -> int:
    """The instance in a place; none where nothing is kept."""
    return int(storage[6][place]) if storage[8][KEPT] else NONE


@leaf
def share(storage: Storage, place: int, other: int) -> None:
    """Let a place have the instance of another, whose own it stays, if anything is kept."""
    if storage[8][KEPT]:
        storage[6][other] = storage[6][place]


@leaf
def stage(storage: Storage, memory: int, table: Boxes) -> int:
    """Make an instance for a tile on its way to a fold; none where nothing is kept."""
    return make(storage, memory, STAGING, NONE, table) if storage[8][KEPT] else NONE


@leaf
def access(storage: Storage, node: int, instance: int, first: int, last: int, writes: bool, slot: int) -> None:  # noqa: FBT001
    """Let a row use a space of an instance."""
    accesses, sizes = storage[2], storage[8]
    number = next_entry(sizes, ACCESSES, len(accesses), FULL)
    accesses[number, NODE], accesses[number, INSTANCE] = node, instance
    accesses[number, FIRST], accesses[number, LAST] = first, last
    accesses[number, WRITES], accesses[number, SLOT] = writes, slot


@leaf
def transfer(storage: Storage, node: int, source: int, target: int, first: int, last: int) -> None:
    """Let a row push a space of an instance to another."""
    transfers, sizes = storage[3], storage[8]
    number = next_entry(sizes, TRANSFERS, len(transfers), FULL)
    transfers[number, NODE], transfers[number, SOURCE], transfers[number, TARGET] = node, source, target
    transfers[number, FIRST], transfers[number, LAST] = first, last


@leaf
def end(storage: Storage, node: int, memory: int, main: int) -> None:
    """Let a memory take part in a collective, where what comes goes to an instance of valid values, or none does."""
    ends, sizes = storage[9], storage[8]
    number = next_entry(sizes, ENDS, len(ends), FULL)
    ends[number, NODE], ends[number, 1], ends[number, 2] = node, memory, main


@leaf
def add_part(storage: Storage, instance: int) -> None:
    """Keep one more instance whose contents are added up."""
    parts, sizes = storage[5], storage[8]
    parts[next_entry(sizes, PARTS, len(parts), FULL)] = instance


@leaf
def piece(
    storage: Storage, node: int, memory: int, first: int, last: int, target: int, first_part: int, last_part: int
) -> None:
    """Let a collective fold a space of some parts into an instance."""
    pieces, sizes = storage[4], storage[8]
    number = next_entry(sizes, PIECES, len(pieces), FULL)
    pieces[number, NODE], pieces[number, MEMORY], pieces[number, TARGET] = node, memory, target
    pieces[number, FIRST], pieces[number, LAST] = first, last
    pieces[number, FIRST_PART], pieces[number, LAST_PART] = first_part, last_part


@leaf
def copy(storage: Storage, node: int, source: int, target: int, table: Boxes) -> None:
    """Let a row copy some boxes of an instance to another."""
    if storage[8][KEPT] == 0:
        return
    first = space(storage, table)
    last = first + len(table)
    access(storage, node, source, first, last, False, 1)
    access(storage, node, target, first, last, True, 0)
    transfer(storage, node, source, target, first, last)


@leaf
def fold(storage: Storage, node: int, target: int, sources: Column, count: int, table: Boxes) -> None:
    """Let a row fold some boxes of the first sources into an instance."""
    if storage[8][KEPT] == 0:
        return
    first = space(storage, table)
    last = first + len(table)
    access(storage, node, target, first, last, True, 0)
    for number in range(count):
        access(storage, node, sources[number], first, last, False, number + 1)
