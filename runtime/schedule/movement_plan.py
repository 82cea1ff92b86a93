"""Movement plans: the ways in which a group can reduce and spread blocks, hop by hop.

Every member owns a block, perhaps an empty one. To reduce a block its contributions go up a tree to the owner, and
whoever has children in it folds what they sent with its own before it sends; to spread a block it goes down the same
tree. A plan is a tree for each owner, the phase in which each member sends, and the pieces that blocks are cut into,
which follow each other up and down the trees. Trees have one of three shapes, members standing in a row of n, round
which each is followed by the nearest (the tour of `network.py`):

    ======  =====================================================================  ========================
    shape   who a member sends to                                                  phases up
    ======  =====================================================================  ========================
    direct  the owner                                                              1
    ring    the next one                                                           n - 1
    tree    the one in its pair, then in its pair of pairs, ..., that stands as    log2 n, rounded up
            the owner does: the lowest bits of their places are the same
    ======  =====================================================================  ========================

A plan has one shape for all members, or is in levels: one shape within each host and one between hosts, up to the
owner, or in another host to the leader there, which is the member with the owner's number within its host, round the
members there; so owners of one host have leaders of their own. `levels` is direct in both. Two hosts of two (0 and 1, 2
and 3), the block of 0, in levels and as a tree; and a ring of four:

    phase   0       1       2       3       4       5
    levels  1 -> 0  2 -> 0  0 -> 2  0 -> 1
            3 -> 2                  2 -> 3
    tree    1 -> 0  2 -> 0  0 -> 2  0 -> 1
            3 -> 2                  2 -> 3
    ring    1 -> 2  2 -> 3  3 -> 0  0 -> 3  3 -> 2  2 -> 1

With a block for each member a tree is recursive halving and doubling, the nearest first; with one block, the binomial
tree. In all plans 2 (n - 1) blocks move. The parts of a fold are those of its members by ascending memory, a member's
own among them, whatever arrives first.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf

__all__: list[str] = []

FLAT, STAR, RING_SHAPE, TREE_SHAPE = range(-1, 3)
"""Shapes of trees, and what a plan without levels has instead of one within hosts."""
DIRECT, LEVELS, RING, TREE = range(4)
WITHIN = (FLAT, 0, FLAT, FLAT, 0, 0, 1, 1, 1, 2, 2)
"""By plan the shape within hosts."""
BETWEEN = (0, 0, 1, 2, 1, 2, 0, 1, 2, 0, 1)
"""By plan the shape between hosts, or of all members. Trees in both are left out: of hosts of 2, 4, 8, ... members they
are the tree of all, and they were quickest nowhere (`benchmarks/movement_plans.py`)."""
_SHAPES = ("direct", "ring", "tree")
NAMES = (
    "direct",
    "levels",
    "ring",
    "tree",
    *(f"levels({_SHAPES[a]}, {_SHAPES[b]})" for a, b in zip(WITHIN[4:], BETWEEN[4:], strict=True)),
)
"""What plans are called, by number."""
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Rows = tuple[Column, Column, Column, Column, Column, Column]
"""How a group stands: members by their tour, and the place of each in that row; by member its host, hosts by the tour,
and its number within its host; members by host, and where those of each begin."""


@inner
def stand(hosts: Column, tour: Column) -> Rows:
    """How members of these hosts stand, given the place of each in the tour of the machine."""
    last, most = 0, 0
    for member in range(len(hosts)):
        last, most = max(last, tour[member]), max(most, hosts[member])
    at = np.full(last + 1, -1, dtype=np.int64)
    for member in range(len(hosts)):
        at[tour[member]] = member
    row, place = np.empty(len(hosts), dtype=np.int64), np.empty(len(hosts), dtype=np.int64)
    host_of, numbers = np.empty(len(hosts), dtype=np.int64), np.empty(len(hosts), dtype=np.int64)
    found, first = np.full(most + 1, -1, dtype=np.int64), np.zeros(len(hosts) + 1, dtype=np.int64)
    count = different = 0
    for step in range(last + 1):
        member = at[step]
        if member < 0:
            continue
        row[count], place[member] = member, count
        count += 1
        if found[hosts[member]] < 0:
            found[hosts[member]] = different
            different += 1
        host_of[member] = found[hosts[member]]
        numbers[member] = first[host_of[member] + 1]
        first[host_of[member] + 1] += 1
    by_host = np.empty(len(hosts), dtype=np.int64)
    for host in range(different):
        first[host + 1] += first[host]
    for member in range(len(hosts)):
        by_host[first[host_of[member]] + numbers[member]] = member
    first = first[: different + 1].copy()
    return row, place, host_of, numbers, by_host, first


@leaf
def suits(plan: int, first: Column) -> bool:
    """Whether a plan differs from all before it in a group of which members of hosts begin there."""
    hosts, most = len(first) - 1, 0
    for host in range(hosts):
        most = max(most, first[host + 1] - first[host])
    if WITHIN[plan] == FLAT:
        return plan != DIRECT and first[hosts] > 2
    apart = hosts > 2 if BETWEEN[plan] != STAR else hosts > 1
    return apart and (most > 2 if WITHIN[plan] != STAR else most > 1)


@leaf
def depth(members: int) -> int:
    """The phases of a tree of so many."""
    found = 0
    while 1 << found < members:
        found += 1
    return found


@leaf
def phases_within(plan: int, first: Column) -> int:
    """In how many phases a block is reduced within hosts, before it is between them."""
    if WITHIN[plan] == FLAT:
        return 0
    most = 0
    for host in range(len(first) - 1):
        most = max(most, _shape_phases(WITHIN[plan], first[host + 1] - first[host]))
    return most


@leaf
def phases(plan: int, first: Column) -> int:
    """In how many phases a block is reduced."""
    members = first[len(first) - 1] if WITHIN[plan] == FLAT else len(first) - 1
    return phases_within(plan, first) + _shape_phases(BETWEEN[plan], members)


@leaf
def _shape_phases(shape: int, members: int) -> int:
    """In how many phases a tree of a shape reduces."""
    if shape == RING_SHAPE:
        return members - 1
    return depth(members) if shape == TREE_SHAPE else min(1, members - 1)


@leaf
def stands_for(cell: int, height: int, place: int, members: int) -> int:
    """Who of the cell of 2 ** height places from `cell` on stands as a place does, as far as the row has members."""
    for bit in range(height - 1, -1, -1):
        if (place >> bit) & 1 and cell + (1 << bit) < members:
            cell += 1 << bit
    return cell


@leaf
def shape_parent(shape: int, members: int, owner: int, member: int) -> tuple[int, int]:
    """Who a member sends its part of an owner's block to, and in which phase: all told by their place in the row."""
    if shape == STAR:
        return owner, 0
    if shape == RING_SHAPE:
        return (member + 1) % members, members - 1 - (owner - member) % members
    level = 0
    while True:
        cell = member >> (level + 1) << (level + 1)
        found = stands_for(cell, level + 1, owner, members)
        if found != member:
            return found, level
        level += 1


@leaf
def parent(plan: int, rows: Rows, before: int, owner: int, member: int) -> tuple[int, int]:
    """Who a member sends its part of an owner's block to, and in which phase: `before` of these are within hosts."""
    row, place, host_of, numbers, by_host, first = rows
    if WITHIN[plan] == FLAT:
        found, phase = shape_parent(BETWEEN[plan], len(row), place[owner], place[member])
        return row[found], phase
    host, home = host_of[member], host_of[owner]
    start, size = first[host], first[host + 1] - first[host]
    leader = numbers[owner] % size
    if numbers[member] != leader:
        found, phase = shape_parent(WITHIN[plan], size, leader, numbers[member])
        return by_host[start + found], phase
    found, phase = shape_parent(BETWEEN[plan], len(first) - 1, home, host)
    return by_host[first[found] + numbers[owner] % (first[found + 1] - first[found])], before + phase


@leaf
def _shape_children(shape: int, members: int, owner: int, place: int, found: Column) -> int:
    """Who sends its part of an owner's block to a place, as `shape_parent` says; how many are found."""
    count = 0
    if shape == STAR:
        for other in range(members if place == owner else 0):
            if other != owner:
                found[count] = other
                count += 1
    elif shape == RING_SHAPE:
        found[0] = (place - 1) % members
        count = int(found[0] != owner)
    else:
        level = 0
        while 1 << level < members:
            # Who stands for the other half of the cell sends to who stands for this one, or is sent to.
            cell = (place >> level ^ 1) << level
            if cell < members:
                found[count] = stands_for(cell, level, owner, members)
                if found[count] != owner and shape_parent(shape, members, owner, found[count])[0] == place:
                    count += 1
            level += 1
    return count


@leaf
def children(plan: int, rows: Rows, owner: int, member: int, found: Column) -> int:
    """Who sends its part of an owner's block to a member, by ascending member, found without the hops of others.

    Args:
        plan: its number.
        rows: how the group stands.
        owner: of the block.
        member: who is sent to.
        found: room for as many as there are members.

    Returns:
        How many there are.
    """
    row, place, host_of, numbers, by_host, first = rows
    if WITHIN[plan] == FLAT:
        if BETWEEN[plan] == STAR:
            return _shape_children(STAR, len(row), owner, member, found)
        count = _shape_children(BETWEEN[plan], len(row), place[owner], place[member], found)
        for number in range(count):
            found[number] = row[found[number]]
    else:
        host, home = host_of[member], host_of[owner]
        start, size = first[host], first[host + 1] - first[host]
        leader = numbers[owner] % size
        count = _shape_children(WITHIN[plan], size, leader, numbers[member], found)
        for number in range(count):
            found[number] = by_host[start + found[number]]
        if numbers[member] == leader:
            last = count + _shape_children(BETWEEN[plan], len(first) - 1, home, host, found[count:])
            for number in range(count, last):
                other = found[number]
                found[number] = by_host[first[other] + numbers[owner] % (first[other + 1] - first[other])]
            count = last
    for number in range(1, count):
        child, at = found[number], number
        while at > 0 and found[at - 1] > child:
            found[at] = found[at - 1]
            at -= 1
        found[at] = child
    return count


@kernel
def differs(plan: int, hosts: Column, tour: Column) -> bool:
    """Whether a plan suits a group, for Python."""
    return suits(plan, stand(hosts, tour)[5])
