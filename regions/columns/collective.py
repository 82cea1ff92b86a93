"""Compiled recognition of collectives: the movements of one use that all members make together, or groups apart.

The kinds are those of `regions/collective.py`, and so are groups. They are recognised from what cells need, hold and
wait for, without listing who sends what to whom: n members would make n (n - 1) copies.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import bit_sets, validity
from maniple.regions.columns.bit_sets import Bits, Column
from maniple.regions.columns.history import NONE
from maniple.regions.columns.validity import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    Given,
    State,
)


@inner
def _one_source(given: Given, state: State, cell: int) -> int:
    """The one memory that all who lack a held cell get it from, or none where they get it from several."""
    hold, _, need, _ = state
    holders = bit_sets.members(hold, cell)
    if len(holders) == 1:
        return int(holders[0])
    found = NONE
    readers = bit_sets.members(need, cell)
    for rank in range(len(readers)):
        if not bit_sets.has(hold, cell, readers[rank]):
            source = validity.source(given[4], holders, readers[rank], rank)
            if found not in (NONE, source):
                return NONE
            found = source
    return found


@inner
def distribution(given: Given, state: State, cells: Column) -> tuple[int, Bits, Column]:
    """Whether the needed cells make an all-gather or a broadcast: the kind (or none), the group, the sources."""
    hold, waiting, need, _ = state
    group = bit_sets.empty(2, len(given[4]))
    sources = np.full(len(cells), NONE)
    moved = distinct = 0
    for label in range(len(cells)):
        cell = cells[label]
        if not bit_sets.is_empty(waiting, cell):
            return NONE, group, sources
        if bit_sets.within(need, cell, hold, cell):
            continue
        sources[label] = _one_source(given, state, cell)
        if sources[label] == NONE:
            return NONE, group, sources
        row = min(moved, 1)
        for word in range(group.shape[1]):
            group[row, word] = need[cell, word] & ~hold[cell, word]
        bit_sets.add(group, row, sources[label])
        if row and not bit_sets.equal(group, 0, group, 1):
            return NONE, group, sources
        distinct += sources[label] not in sources[:label]
        moved += 1
    if moved == 0 or (distinct == 1 and len(bit_sets.members(group, 0)) == 2):
        return NONE, group, sources
    return ALL_GATHER if distinct > 1 else BROADCAST, group, sources


@inner
def reduction(given: Given, state: State, cells: Column) -> tuple[int, Bits]:
    """Whether the needed cells make an all-reduce or a reduce-scatter: the kind (or none) and the group."""
    hold, waiting, need, _ = state
    group = bit_sets.empty(1, len(given[4]))
    all_reduce = reduce_scatter = True
    first, targets = NONE, 0
    for label in range(len(cells)):
        cell = cells[label]
        if bit_sets.is_empty(waiting, cell):
            if bit_sets.within(need, cell, hold, cell):
                continue
            return NONE, group
        contributing = validity.contributing(given, waiting, cell)
        if first == NONE:
            group = contributing
        owners = validity.owners(state, contributing, cell)
        if not bit_sets.equal(group, 0, contributing, 0) or not bit_sets.has(group, 0, owners[0]):
            return NONE, group
        for owner in owners:
            base = validity.base(given, state, contributing, cell, owner)
            if base != NONE and not bit_sets.has(group, 0, base):
                return NONE, group
        all_reduce &= bit_sets.equal(need, cell, group, 0)
        reduce_scatter &= len(bit_sets.members(need, cell)) == 1
        targets += owners[0] != first
        first = owners[0] if first == NONE else first
    if first == NONE or (all_reduce and reduce_scatter):
        return NONE, group
    if reduce_scatter:
        return REDUCE_SCATTER if targets > 1 else NONE, group
    return ALL_REDUCE if all_reduce else NONE, group


@inner
def groups(given: Given, state: State, cells: Column) -> tuple[Column, int]:
    """The number of the group that moves each needed cell, none where nothing moves; and how many groups there are.

    Of a group are memories between which something moves, and those that one cell moves to: ascending by the lowest.
    """
    above, apart = np.arange(len(given[4])), np.empty(len(cells), dtype=np.int64)
    for label in range(len(cells)):
        apart[label] = _gather(given, state, cells[label], above)
    numbers, count = np.full(len(above), NONE), 0
    for memory in apart:
        if memory != NONE:
            numbers[_lowest(above, memory)] = 0
    for memory in range(len(above)):  # the lowest of a group stands for it
        if numbers[memory] != NONE:
            numbers[memory] = count
            count += 1
    for label in range(len(cells)):
        if apart[label] != NONE:
            apart[label] = numbers[_lowest(above, apart[label])]
    return apart, count


@inner
def _gather(given: Given, state: State, cell: int, above: Column) -> int:
    """Make one group of those that move a cell, and give one of them; none where nothing moves."""
    hold, waiting, need, _ = state
    readers, found = bit_sets.members(need, cell), NONE
    if bit_sets.is_empty(waiting, cell):
        holders = bit_sets.members(hold, cell)
        for rank in range(len(readers)):
            if not bit_sets.has(hold, cell, readers[rank]):
                found = readers[rank] if found == NONE else found
                _join(above, found, readers[rank])
                _join(above, found, validity.source(given[4], holders, readers[rank], rank))
        return found
    giving = validity.contributing(given, waiting, cell)
    for reader in readers:
        _join(above, readers[0], reader)
    for memory in bit_sets.members(giving, 0):
        _join(above, readers[0], memory)
    for owner in validity.owners(state, giving, cell):
        base = validity.base(given, state, giving, cell, owner)
        if base != NONE:
            _join(above, readers[0], base)
    return int(readers[0])


@leaf
def _lowest(above: Column, memory: int) -> int:
    """The lowest memory of a group, which every other leads to."""
    while above[memory] != memory:
        above[memory] = above[above[memory]]
        memory = above[memory]
    return int(memory)


@leaf
def _join(above: Column, one: int, other: int) -> None:
    """Make one group of those of two memories."""
    one, other = _lowest(above, one), _lowest(above, other)
    above[max(one, other)] = min(one, other)


@inner
def of_group(labels: Column, cells: Column, apart: Column, group: int) -> tuple[Column, Column]:
    """The labels of all cells, and a cell of each, of what one group moves."""
    numbers, count = np.full(len(cells), NONE), 0
    for label in range(len(cells)):
        if apart[label] == group:
            numbers[label] = count
            count += 1
    own_labels, own_cells = np.full(len(labels), NONE), np.empty(count, dtype=np.int64)
    for label in range(len(cells)):
        if numbers[label] != NONE:
            own_cells[numbers[label]] = cells[label]
    for cell in range(len(labels)):
        if labels[cell] != NONE:
            own_labels[cell] = numbers[labels[cell]]
    return own_labels, own_cells


@inner
def has_group(given: Given, state: State, cells: Column, apart: Column, count: int) -> bool:
    """Whether there are several groups, of which one moves what it does by a collective."""
    for group in range(count if count > 1 else 0):
        _, own = of_group(cells[:0], cells, apart, group)
        if distribution(given, state, own)[0] != NONE or reduction(given, state, own)[0] != NONE:
            return True
    return False
