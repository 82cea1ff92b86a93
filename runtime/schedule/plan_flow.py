"""Flows of movement plans: the hops of one phase from one member to another, summed over the blocks that go that way.

A plan of n members has n (n - 1) hops up, as many as members and owners; the flows are far fewer, for what a member
sends in a phase goes to few. Each exchange of one shape among members of some weights, of which a plan is made, has
its flows by itself: a plan in levels is one within each host, where a member weighs what it owns and what those own
that it leads for, and one between hosts for each number that a member can have within its host:

    ======  =========================  =========================================================
    shape   flows up, of m members     from one to another in phase k
    ======  =========================  =========================================================
    direct  m (m - 1)                  what the other owns
    ring    m (m - 1); m - 1 phases    what the one k + 1 places behind owns
            of m where all own alike
    tree    m log2 m                   what those own whose places agree in k + 1 bits
    ======  =========================  =========================================================

What goes down is the same the other way, the last phase first.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf
from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.movement_plan import (
    BETWEEN,
    FLAT,
    RING_SHAPE,
    STAR,
    WITHIN,
    Column,
    Rows,
    Table,
    depth,
    stands_for,
)

__all__: list[str] = []

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

PHASE, SENDER, RECEIVER, ELEMENTS, COPIED, TILES, BLOCKS, BEGINS, TIMES = range(9)
"""Columns of a table of flows: when, from which member to which; elements; bytes touched to read them; elements of the
tiles that they land in; blocks; whether they are the first that come to the receiver of these; and how many phases from
this one on have the same."""
WEIGHTS = 4
"""Columns of what members weigh: elements, bytes touched, elements of tiles, blocks."""


@inner
def flat(shape: int, rows: Rows, weights: Table) -> Table:
    """The flows of a plan of one shape for all members, by ascending phase.

    Args:
        shape: of its trees.
        rows: how the group stands.
        weights: what each member owns, by member; of no block 0.
    """
    row = rows[0]
    found = np.empty((_bound(shape, len(row)), 9), dtype=np.int64)
    begun, alike = np.zeros(len(row), dtype=np.bool_), _are_alike(weights)
    return _by_phase(found[: _exchange(found, 0, shape, row, _picked(weights, row), begun, alike)])


@inner
def within(shape: int, rows: Rows, weights: Table) -> Table:
    """The flows of a plan in levels within hosts, by ascending phase; see `flat`."""
    _, _, _, numbers, by_host, first = rows
    room = most = count = 0
    for host in range(len(first) - 1):
        size = first[host + 1] - first[host]
        most, room = max(most, size), room + _bound(shape, size)
    found, totals = np.empty((room, 9), dtype=np.int64), np.zeros((most, WEIGHTS), dtype=np.int64)
    for member in range(len(weights)):
        for column in range(WEIGHTS):
            totals[numbers[member], column] += weights[member, column]
    for host in range(len(first) - 1):
        members = by_host[first[host] : first[host + 1]]
        local, begun = _led(weights, members, totals), np.zeros(len(members), dtype=np.bool_)
        count = _exchange(found, count, shape, members, local, begun, False)
    return _by_phase(found[:count])


@inner
def between(shape: int, rows: Rows, weights: Table) -> Table:
    """The flows of a plan in levels between hosts, by ascending phase, the first of these being 0; see `flat`."""
    by_host, first = rows[4], rows[5]
    hosts, most, count = len(first) - 1, 0, 0
    alike = _are_alike(weights)
    for host in range(hosts):
        most, alike = max(most, first[host + 1] - first[host]), alike and first[host + 1] - first[host] == first[1]
    found = np.empty((most * _bound(shape, hosts), 9), dtype=np.int64)
    leaders, owned = np.empty(hosts, dtype=np.int64), np.empty((hosts, WEIGHTS), dtype=np.int64)
    begun = np.empty(hosts, dtype=np.bool_)
    for number in range(most):
        for host in range(hosts):
            size = first[host + 1] - first[host]
            leaders[host], begun[host] = by_host[first[host] + number % size], size > 1
            for column in range(WEIGHTS):
                owned[host, column] = weights[leaders[host], column] if number < size else 0
        count = _exchange(found, count, shape, leaders, owned, begun, alike)
    return _by_phase(found[:count])


@leaf
def _are_alike(weights: Table) -> bool:
    """Whether all members own something, and all the same."""
    for member in range(len(weights)):
        if weights[member, WEIGHTS - 1] == 0:
            return False
        for column in range(WEIGHTS):
            if weights[member, column] != weights[0, column]:
                return False
    return True


@inner
def _picked(weights: Table, members: Column) -> Table:
    """The weights of some members, in their order."""
    found = np.empty((len(members), WEIGHTS), dtype=np.int64)
    for place in range(len(members)):
        for column in range(WEIGHTS):
            found[place, column] = weights[members[place], column]
    return found


@inner
def _led(weights: Table, members: Column, totals: Table) -> Table:
    """What members of a host weigh within it: what each owns, and what those of other hosts own that it leads for."""
    found = _picked(weights, members)
    for number in range(len(totals)):
        for column in range(WEIGHTS):
            own = weights[members[number], column] if number < len(members) else 0
            found[number % len(members), column] += totals[number, column] - own
    return found


@leaf
def _bound(shape: int, members: int) -> int:
    """The most flows that an exchange of a shape has."""
    if shape in (STAR, RING_SHAPE):
        return members * max(0, members - 1)
    return depth(members) << depth(members)  # places beyond the last member come to members, too


@inner
def _exchange(
    found: Table,
    count: int,
    shape: int,
    members: Column,
    owned: Table,
    begun: Flags,
    alike: bool,  # noqa: FBT001
) -> int:
    """Add the flows of one exchange; returns how many there are then.

    Args:
        found: is added to.
        count: how many flows there are.
        shape: of its trees.
        members: in the order in which they stand.
        owned: what each owns.
        begun: whether something of every block has come to each before.
        alike: whether all own the same in all exchanges of these phases: then all phases of a ring are one.
    """
    size = len(members)
    if shape == STAR:
        for owner in range(size):
            for sender in range(size):
                if sender != owner and owned[owner, WEIGHTS - 1]:
                    begins = not begun[owner] and sender == (0 if owner else 1)
                    count = _add(found, count, 0, members[sender], members[owner], owned, owner, begins, 1)
        return count
    if shape != RING_SHAPE:
        return _halve(found, count, members, owned, begun)
    for step in range(min(size - 1, 1) if alike else size - 1):
        for owner in range(size):
            sender = (owner + 1 + step) % size
            receiver = (sender + 1) % size
            if owned[owner, WEIGHTS - 1]:
                times = size - 1 if alike else 1
                begins = not begun[receiver]
                count = _add(found, count, step, members[sender], members[receiver], owned, owner, begins, times)
    return count


@leaf
def _add(
    found: Table, count: int, phase: int, sender: int, receiver: int, owned: Table, owner: int,
    begins: bool, times: int,  # noqa: FBT001
) -> int:  # fmt: skip
    """Add a flow of what one owns; returns how many there are then."""
    found[count, PHASE], found[count, SENDER], found[count, RECEIVER] = phase, sender, receiver
    for column in range(WEIGHTS):
        found[count, ELEMENTS + column] = owned[owner, column]
    found[count, BEGINS], found[count, TIMES] = begins, times
    return count + 1


@inner
def _halve(found: Table, count: int, members: Column, owned: Table, begun: Flags) -> int:
    """Add the flows of trees: `sums` are what those own whose places agree in their lowest bits."""
    size, levels = len(members), depth(len(members))
    sums = np.zeros((1 << levels, WEIGHTS), dtype=np.int64)
    for place in range(size):
        for column in range(WEIGHTS):
            sums[place, column] = owned[place, column]
    for level in range(levels - 1, -1, -1):
        half = 1 << level
        for cell in range(0, size - half, 2 * half):
            for place in range(2 * half):
                if sums[place, WEIGHTS - 1]:
                    low, high = stands_for(cell, level, place, size), stands_for(cell + half, level, place, size)
                    sender, receiver = (low, high) if place & half else (high, low)
                    begins = not begun[receiver]
                    for below in range(level):
                        begins &= (receiver >> below ^ 1) << below >= size
                    count = _add(found, count, level, members[sender], members[receiver], sums, place, begins, 1)
        for place in range(half):
            for column in range(WEIGHTS):
                sums[place, column] += sums[place + half, column]
    return count


@inner
def _by_phase(rows: Table) -> Table:
    """Flows by ascending phase."""
    most = 0
    for row in range(len(rows)):
        most = max(most, rows[row, PHASE])
    at = np.zeros(most + 2, dtype=np.int64)
    for row in range(len(rows)):
        at[rows[row, PHASE] + 1] += 1
    for phase in range(most + 1):
        at[phase + 1] += at[phase]
    result = np.empty_like(rows)
    for row in range(len(rows)):
        place = at[rows[row, PHASE]]
        at[rows[row, PHASE]] += 1
        for column in range(rows.shape[1]):
            result[place, column] = rows[row, column]
    return result


@kernel
def table(plan: int, hosts: Column, tour: Column, weights: Table) -> Table:
    """The flows of a plan up its trees, for Python: of members by ascending memory."""
    rows = movement_plan.stand(hosts, tour)
    if WITHIN[plan] == FLAT:
        return flat(BETWEEN[plan], rows, weights)
    first, then = within(WITHIN[plan], rows, weights), between(BETWEEN[plan], rows, weights)
    before = movement_plan.phases_within(plan, rows[5])
    found = np.empty((len(first) + len(then), 9), dtype=np.int64)
    for row in range(len(found)):
        for column in range(9):
            found[row, column] = first[row, column] if row < len(first) else then[row - len(first), column]
        found[row, PHASE] += before if row >= len(first) else 0
    return found
