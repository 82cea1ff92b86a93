"""Movement plans: the ways in which a group can reduce and spread blocks, hop by hop.

Every member owns a block, perhaps an empty one. To reduce a block its contributions go up a tree to the owner, and
whoever has children in it folds what they sent with its own before it sends; to spread a block it goes down the same
tree. A plan is a tree for each owner, and the phase in which each member sends:

    ========  ==========================================================  ==========================
    plan      who a member sends to                                       phase
    ========  ==========================================================  ==========================
    direct    the owner                                                   0
    levels    in the owner's host the owner; in another one the leader    0; a leader 1
              there, and a leader the owner
    ========  ==========================================================  ==========================

The leader for an owner is the member of the other host with the owner's number within its host, round the members
there, so that owners of one host have leaders of their own. Two hosts of two (0 and 1, 2 and 3), the block of 0:

    phase  0       1       2       3
    up     1 -> 0  2 -> 0  0 -> 2  0 -> 1
           3 -> 2                  2 -> 3

So 2 (n - 1) blocks move in all and 2 (h - 1) between h hosts, where direct moves 2 (n - r) between hosts of r members.
The parts of a fold are those of its members by ascending memory, a member's own among them, whatever arrives first.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf

__all__: list[str] = []

DIRECT, LEVELS = range(2)
NAMES = ("direct", "levels")
"""What plans are called, by number."""
PHASE, SENDER, RECEIVER, OWNER, FOLDS = range(5)
"""Columns of a table of hops: members are told by their place in the group. FOLDS is 0 for a hop that copies."""
FIRST, MORE = 1, 2
"""Of a hop that folds: whether it is the first of the owner's block that comes to its receiver."""

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@leaf
def suits(plan: int, hosts: Column) -> bool:
    """Whether a plan differs from direct in a group whose members have these hosts."""
    if plan != LEVELS:
        return False
    together = apart = False
    for place in range(1, len(hosts)):
        apart |= hosts[place] != hosts[0]
        for before in range(place):
            if hosts[before] == hosts[place]:
                together = True
                break
        if together and apart:
            return True
    return False


@inner
def hops(plan: int, hosts: Column, owns: Column, reduces: bool, spreads: bool) -> Table:  # noqa: FBT001
    """The hops of a plan, by ascending phase, and within one by owner.

    Args:
        plan: its number.
        hosts: the host of each member, members by ascending memory.
        owns: whether each owns a block that is not empty.
        reduces: whether blocks are reduced.
        spreads: whether blocks are spread, once they are reduced.
    """
    members, phases = len(hosts), _phases(plan)
    numbers, first, order = _within(hosts)
    rows = np.empty((2 * members * members, 5), dtype=np.int64)
    counts = np.zeros(2 * phases + 1, dtype=np.int64)
    count = 0
    for owner in range(members):
        if not owns[owner]:
            continue
        for member in range(members):
            if member == owner:
                continue
            parent, phase = _parent(plan, hosts, numbers, first, order, owner, member)
            if reduces:
                rows[count, PHASE], rows[count, SENDER], rows[count, RECEIVER] = phase, member, parent
                rows[count, OWNER], rows[count, FOLDS] = owner, MORE
                counts[phase + 1] += 1
                count += 1
            if spreads:
                phase = (2 if reduces else 1) * phases - 1 - phase
                rows[count, PHASE], rows[count, SENDER], rows[count, RECEIVER] = phase, parent, member
                rows[count, OWNER], rows[count, FOLDS] = owner, 0
                counts[phase + 1] += 1
                count += 1
    for phase in range(2 * phases):
        counts[phase + 1] += counts[phase]
    return _by_phase(rows[:count], counts, members)


@inner
def _by_phase(rows: Table, counts: Column, members: int) -> Table:
    """Hops by ascending phase, given where each phase begins; the first that folds at a member says so."""
    result = np.empty((len(rows), 5), dtype=np.int64)
    for row in range(len(rows)):
        place = counts[rows[row, PHASE]]
        counts[rows[row, PHASE]] += 1
        for column in range(5):
            result[place, column] = rows[row, column]
    begun = np.zeros(members * members, dtype=np.bool_)
    for row in range(len(result)):
        fold = result[row, OWNER] * members + result[row, RECEIVER]
        if result[row, FOLDS] and not begun[fold]:
            begun[fold], result[row, FOLDS] = True, FIRST
    return result


@kernel
def table(plan: int, hosts: Column, owns: Column, reduces: bool, spreads: bool) -> Table:  # noqa: FBT001
    """The hops of a plan, for Python."""
    return hops(plan, hosts, owns, reduces, spreads)


@leaf
def _phases(plan: int) -> int:
    """In how many phases a block is reduced."""
    return 2 if plan == LEVELS else 1


@leaf
def _parent(
    plan: int, hosts: Column, numbers: Column, first: Column, order: Column, owner: int, member: int
) -> tuple[int, int]:
    """Who a member sends its part of an owner's block to, and in which phase."""
    host = hosts[member]
    if plan == DIRECT or host == hosts[owner]:
        return owner, 0
    leader = order[first[host] + numbers[owner] % (first[host + 1] - first[host])]
    return (owner, 1) if leader == member else (leader, 0)


@inner
def _within(hosts: Column) -> tuple[Column, Column, Column]:
    """Of each member its number within its host; and the members by host, and where those of each begin."""
    most = 0
    for place in range(len(hosts)):
        most = max(most, hosts[place])
    numbers, order = np.empty(len(hosts), dtype=np.int64), np.empty(len(hosts), dtype=np.int64)
    first = np.zeros(most + 2, dtype=np.int64)
    for place in range(len(hosts)):
        numbers[place] = first[hosts[place] + 1]
        first[hosts[place] + 1] += 1
    for host in range(most + 1):
        first[host + 1] += first[host]
    for place in range(len(hosts)):
        order[first[hosts[place]] + numbers[place]] = place
    return numbers, first, order
