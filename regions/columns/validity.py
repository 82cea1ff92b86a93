"""Compiled validity of one region: what a use needs moved, by the rules of `regions/validity.py`.

The region is cut into the cells of one grid, by the bounds of everything that uses it; a cell has the memories that
hold it and the contributions that wait as bits, so nothing here grows with memories times memories unless copies do.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import bit_sets, boxes
from maniple.regions.columns.bit_sets import Bits, Column
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH, Boxes
from maniple.regions.columns.history import NONE, Table

READ, READ_WRITE, WRITE_DISCARD, REDUCE, RESULT, GRADIENT, ACCUMULATE = range(7)
"""Privileges, the last a reduction that adds in place; and two that a placement or the whole step decides: RESULT is
written, or reduced where tasks fold into it, GRADIENT is written where a region has one contributor with disjoint
tiles, and else reduced."""
FOLD, COPY, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST = range(1, 7)
# Columns of `tasks`; COLOR is the same for replicas of one point.
MEMORY, PROCESSOR, COLOR = range(3)

Span = tuple[int, int]
Given = tuple[Table, Boxes, Column, Column, Column, Column, Column]
"""tasks and their boxes, cuts of the grid with the start of each axis, the host of each memory, staged elements, the
region's extents with the bytes of an element and of a cache line."""
State = tuple[Bits, Bits, Bits, Column]
"""For each cell: the memories that hold it, the contributions (by task) that wait, the memories that need it now. And
for each memory a number of its contributions that no cell has more of waiting."""


@leaf
def reduces(privilege: int) -> bool:
    """Whether tasks with a privilege contribute to values that they do not see."""
    return privilege in (REDUCE, ACCUMULATE)


@leaf
def mark(given: Given, sets: Bits, table: Boxes, row: int, number: int) -> None:
    """Put a number into the sets of all cells of a box."""
    # Cells are numbered row-major, so those of a box along the last axis are one range. The loops over the others are
    # written out, and the bit is worked out once: this runs for every box of every use.
    starts = given[3]
    word, bit = number >> 5, 1 << (number & 31)
    (a0, a1), (b0, b1), (c0, c1), (d0, d1), (e0, e1) = _span(given, table, row)
    n1, n2 = starts[2] - starts[1] - 1, starts[3] - starts[2] - 1
    n3, n4 = starts[4] - starts[3] - 1, starts[5] - starts[4] - 1
    for a in range(a0, a1):
        for b in range(b0, b1):
            for c in range(c0, c1):
                for d in range(d0, d1):
                    first = (((a * n1 + b) * n2 + c) * n3 + d) * n4
                    for cell in range(first + e0, first + e1):
                        sets[cell, word] |= bit


@leaf
def is_marked(given: Given, sets: Bits, table: Boxes, row: int, number: int) -> bool:
    """Whether a number is in the sets of all cells of a box."""
    starts = given[3]
    word, bit = number >> 5, 1 << (number & 31)
    (a0, a1), (b0, b1), (c0, c1), (d0, d1), (e0, e1) = _span(given, table, row)
    n1, n2 = starts[2] - starts[1] - 1, starts[3] - starts[2] - 1
    n3, n4 = starts[4] - starts[3] - 1, starts[5] - starts[4] - 1
    for a in range(a0, a1):
        for b in range(b0, b1):
            for c in range(c0, c1):
                for d in range(d0, d1):
                    first = (((a * n1 + b) * n2 + c) * n3 + d) * n4
                    for cell in range(first + e0, first + e1):
                        if not sets[cell, word] & bit:
                            return False
    return True


@leaf
def _span(given: Given, table: Boxes, row: int) -> tuple[Span, Span, Span, Span, Span]:
    """The first cell of a box, and one past the last, on each axis."""
    cuts, starts = given[2], given[3]
    return (
        _between(cuts, starts[0], starts[1], table[row, LOW], table[row, HIGH]),
        _between(cuts, starts[1], starts[2], table[row, LOW + 1], table[row, HIGH + 1]),
        _between(cuts, starts[2], starts[3], table[row, LOW + 2], table[row, HIGH + 2]),
        _between(cuts, starts[3], starts[4], table[row, LOW + 3], table[row, HIGH + 3]),
        _between(cuts, starts[4], starts[5], table[row, LOW + 4], table[row, HIGH + 4]),
    )


@leaf
def _between(cuts: Column, start: int, stop: int, low: int, high: int) -> Span:
    """The numbers of two cuts among those of one axis."""
    # Two cuts are the region's own ends: one cell, in which every box lies. Axes beyond those of the region are such.
    if stop - start <= 2:
        return 0, stop - start - 1
    return place(cuts, start, stop, low) - start, place(cuts, start, stop, high) - start


@leaf
def place(cuts: Column, start: int, stop: int, cut: int) -> int:
    """Where the first number that is not below `cut` stands among ascending ones."""
    while start < stop:
        middle = (start + stop) >> 1
        if cuts[middle] < cut:
            start = middle + 1
        else:
            stop = middle
    return start


@leaf
def insert(cuts: Column, start: int, stop: int, cut: int) -> int:
    """Put a number among ascending ones, unless it is there; one past the last."""
    found = place(cuts, start, stop, cut)
    if found < stop and cuts[found] == cut:
        return stop
    for later in range(stop, found, -1):
        cuts[later] = cuts[later - 1]
    cuts[found] = cut
    return stop + 1


@inner
def labels(state: State) -> tuple[Column, Column]:
    """Number the needed cells by what is needed, held and waiting, alike ones alike; and one cell of each number."""
    hold, waiting, need, _ = state
    count = len(hold)
    labels, cells = np.full(count, NONE), np.empty(count, dtype=np.int64)
    size = 16
    while size < 2 * count:
        size *= 2
    table = np.full(size, NONE)
    found = 0
    for cell in range(count):
        if bit_sets.is_empty(need, cell):
            continue
        # Numbers are given as cells come, not as they lie in the table: the same cells get the same numbers every time.
        place = bit_sets.mix(bit_sets.mix(bit_sets.mix(1, need, cell), hold, cell), waiting, cell) & (size - 1)
        while table[place] != NONE:
            other = cells[table[place]]
            if (
                bit_sets.equal(need, cell, need, other)
                and bit_sets.equal(hold, cell, hold, other)
                and bit_sets.equal(waiting, cell, waiting, other)
            ):
                break
            place = (place + 1) & (size - 1)
        if table[place] == NONE:
            table[place] = found
            cells[found] = cell
            found += 1
        labels[cell] = table[place]
    return labels, cells[:found]


@inner
def pieces(given: Given, labels: Column) -> Boxes:
    """The labelled cells as boxes, as few as joining makes them."""
    cuts, starts = given[2], given[3]
    shape = np.empty(AXES, dtype=np.int64)
    for axis in range(AXES):
        shape[axis] = starts[axis + 1] - starts[axis] - 1
    result = np.empty((16, WIDTH), dtype=np.int64)
    count = 0
    for cell in range(len(labels)):
        if labels[cell] == NONE:
            continue
        # The cell goes on where the one before it in its row ends. The first of a row (number 0 along the last axis)
        # does not: the cell before it is at the other end of the row above. Other axes are joined at the end.
        if cell % shape[AXES - 1] and labels[cell] == labels[cell - 1]:
            result[count - 1, HIGH + AXES - 1] = cuts[starts[AXES - 1] + cell % shape[AXES - 1] + 1]
            continue
        if count == len(result):
            result = boxes.grow(result, count + 1)
        result[count, 0] = labels[cell]
        left = cell
        for axis in range(AXES - 1, -1, -1):
            place = starts[axis] + left % shape[axis]
            left //= shape[axis]
            result[count, LOW + axis], result[count, HIGH + axis] = cuts[place], cuts[place + 1]
        count += 1
    return boxes.merge(result[:count])


@inner
def contributing(given: Given, waiting: Bits, cell: int) -> Bits:
    """The memories of the contributions that wait for a cell, as a set."""
    tasks, hosts = given[0], given[4]
    found = bit_sets.empty(1, len(hosts))
    for task in bit_sets.members(waiting, cell):
        bit_sets.add(found, 0, tasks[task, MEMORY])
    return found


@leaf
def source(hosts: Column, holders: Column, target: int, rank: int) -> int:
    """The memory that sends to a target: one of the nearest holders, in turn."""
    if len(holders) == 1:
        return int(holders[0])
    # Readers take the holders in turn, each by its place among all readers: no holder sends to everybody.
    near = 0
    for holder in holders:
        near += hosts[holder] == hosts[target]
    if near == 0:
        return int(holders[rank % len(holders)])
    left = rank % near
    for holder in holders:
        if hosts[holder] == hosts[target]:
            if left == 0:
                return int(holder)
            left -= 1
    return NONE


@inner
def owners(state: State, giving: Bits, cell: int) -> Column:
    """The memories that may fold a cell at no extra cost: readers that contribute, or hold the base, or any reader."""
    hold, _, need, _ = state
    readers = bit_sets.members(need, cell)
    # A reader that contributes need not send its contribution; one that holds the base, not the base. Contributions
    # are looked at first, for the base travels with those of its memory for nothing: see `base`.
    for sets, row in ((giving, 0), (hold, cell)):
        chosen = np.empty(len(readers), dtype=np.int64)
        count = 0
        for reader in readers:
            if bit_sets.has(sets, row, reader):
                chosen[count] = reader
                count += 1
        if count:
            return chosen[:count]
    return readers


@inner
def base(given: Given, state: State, giving: Bits, cell: int, owner: int) -> int:
    """The memory whose value from before the reductions a fold begins with, or none."""
    hold, hosts = state[0], given[4]
    if bit_sets.is_empty(hold, cell) or bit_sets.has(hold, cell, owner):
        return NONE if bit_sets.is_empty(hold, cell) else owner
    best, least = NONE, 4
    for holder in bit_sets.members(hold, cell):
        # A holder that contributes sends one tile in any case: the base is folded into it and costs nothing. Among
        # such, and among the others, one of the owner's host; of equals the lowest memory, which comes first.
        rank = 2 * (not bit_sets.has(giving, 0, holder)) + (hosts[holder] != hosts[owner])
        if rank < least:
            best, least = holder, rank
    return best


@inner
def _split(pieces: Boxes, piece: int, parts: int) -> Boxes:
    """A box cut into at most that many parts along its first longest axis, larger ones first."""
    axis = 0
    for other in range(1, AXES):
        if pieces[piece, HIGH + other] - pieces[piece, LOW + other] > pieces[piece, HIGH + axis] - pieces[piece, LOW + axis]:  # fmt: skip  # noqa: E501
            axis = other
    extent = pieces[piece, HIGH + axis] - pieces[piece, LOW + axis]
    parts = min(parts, extent)
    result = np.empty((parts, WIDTH), dtype=np.int64)
    start = pieces[piece, LOW + axis]
    for part in range(parts):
        boxes.put(result, part, pieces, piece)
        stop = start + extent // parts + (part < extent % parts)
        result[part, LOW + axis], result[part, HIGH + axis] = start, stop
        start = stop
    return result


@inner
def plan_pieces(
    given: Given,
    state: State,
    cells: Column,
    pieces: Boxes,
    copying: bool,  # noqa: FBT001
) -> tuple[Boxes, Boxes, Table]:
    """What the pieces need: folds (labelled by owner and description), copies (by source and target), descriptions.

    The copies that follow from folds are left out where a collective makes them. A description is (cell, base): what
    is folded. Fold labels are owner * descriptions + description.
    """
    hold, waiting, need, _ = state
    hosts = given[4]
    memories = len(hosts)
    folds, copies = np.empty((8, WIDTH), dtype=np.int64), np.empty((8, WIDTH), dtype=np.int64)
    # By kind of cell and memory of the base, of which there may be none: hence one more, and `start + 1` below.
    described = np.empty((len(cells) * (memories + 1), 2), dtype=np.int64)
    alike = _alike(waiting, cells)
    fold_count = copy_count = 0
    for piece in range(len(pieces)):
        label = pieces[piece, 0]
        cell = cells[label]
        readers = bit_sets.members(need, cell)
        if bit_sets.is_empty(waiting, cell):
            if bit_sets.within(need, cell, hold, cell):
                continue
            holders = bit_sets.members(hold, cell)
            for rank in range(len(readers)):
                if not bit_sets.has(hold, cell, readers[rank]):
                    if copy_count == len(copies):
                        copies = boxes.grow(copies, copy_count + 1)
                    boxes.put(copies, copy_count, pieces, piece)
                    copies[copy_count, 0] = source(hosts, holders, readers[rank], rank) * memories + readers[rank]
                    copy_count += 1
            continue
        giving = contributing(given, waiting, cell)
        chosen = owners(state, giving, cell)
        blocks = _split(pieces, piece, len(chosen))
        for block in range(len(blocks)):
            owner, start = chosen[block], base(given, state, giving, cell, chosen[block])
            # Kinds of cells for which the same waits are folded alike, whoever needs or holds them, so their boxes may
            # be joined: they get one number. Any of these cells says what is folded.
            description = alike[label] * (memories + 1) + start + 1
            described[description, 0], described[description, 1] = cell, start
            if fold_count == len(folds):
                folds = boxes.grow(folds, fold_count + 1)
            boxes.put(folds, fold_count, blocks, block)
            folds[fold_count, 0] = owner * len(described) + description
            fold_count += 1
            for reader in readers:
                if copying and reader != owner:
                    if copy_count == len(copies):
                        copies = boxes.grow(copies, copy_count + 1)
                    boxes.put(copies, copy_count, blocks, block)
                    copies[copy_count, 0] = owner * memories + reader
                    copy_count += 1
    return boxes.merge(folds[:fold_count]), boxes.merge(copies[:copy_count]), described


@inner
def _alike(waiting: Bits, cells: Column) -> Column:
    """For each kind of cell the first kind for which the same contributions wait."""
    first = np.arange(len(cells))
    for label in range(len(cells)):
        if not bit_sets.is_empty(waiting, cells[label]):
            for other in range(label):
                if bit_sets.equal(waiting, cells[other], waiting, cells[label]):
                    first[label] = other
                    break
    return first


@inner
def parts(given: Given, state: State, cell: int, start: int) -> tuple[Column, Table]:
    """What a fold of a cell adds up: the contributions by memory, and (memory, first, last, whether the base is there).

    The base is at memory `start`, or there is none.
    """
    tasks, memories = given[0], len(given[4])
    found = bit_sets.members(state[1], cell)
    counts = np.zeros(memories + 1, dtype=np.int64)
    for task in found:
        counts[tasks[task, MEMORY] + 1] += 1
    groups = np.empty((memories, 4), dtype=np.int64)
    count = 0
    for memory in range(memories):
        # Until here `counts` has numbers one place further on; from here on it has where each memory's begin.
        if counts[memory + 1] or memory == start:
            groups[count, 0], groups[count, 1] = memory, counts[memory]
            groups[count, 2], groups[count, 3] = counts[memory] + counts[memory + 1], memory == start
            count += 1
        counts[memory + 1] += counts[memory]
    listed = np.empty(len(found), dtype=np.int64)
    # By memory and then in program order, in which `found` is: the order of every fold, whoever does it. Each takes the
    # next place of its memory, so afterwards `counts` has where each ends; `groups` remembers both.
    for task in found:
        memory = tasks[task, MEMORY]
        listed[counts[memory]] = task
        counts[memory] += 1
    return listed, groups[:count]
