"""Listed hops: what the members of a plan send each other, hop by hop, from whom each of them sends to."""

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.movement_plan import Column, Table

PHASE, SENDER, RECEIVER, OWNER, FOLDS = range(5)
"""Columns of a table of hops: members are told by their place in the group. FOLDS is 0 for a hop that copies."""
FIRST, MORE = 1, 2
"""Of a hop that folds: whether it is the first of the owner's block that comes to its receiver."""


@kernel
def _parents(plan: int, hosts: Column, tour: Column) -> tuple[Table, int]:
    """Of each owner and member whom the member sends to, and when; and in how many phases a block is reduced."""
    rows, count = movement_plan.stand(hosts, tour), 0
    before, found = movement_plan.phases_within(plan, rows[5]), np.empty((len(hosts) * (len(hosts) - 1), 4), np.int64)
    for owner in range(len(hosts)):
        for member in range(len(hosts)):
            if member != owner:
                found[count, 2], found[count, 3] = movement_plan.parent(plan, rows, before, owner, member)
                found[count, 0], found[count, 1] = owner, member
                count += 1
    return found, movement_plan.phases(plan, rows[5])


def table(plan: int, hosts: Column, tour: Column, owns: Column, reduces: bool, spreads: bool) -> Table:
    """The hops of a plan, by ascending phase, and within one by owner.

    Args:
        plan: its number.
        hosts: of members, by ascending memory.
        tour: their places in the tour.
        owns: whether each owns a block that is not empty.
        reduces: whether blocks are reduced.
        spreads: whether blocks are spread, once they are reduced.
    """
    parents, phases = _parents(plan, hosts, tour)
    found = []
    for owner, member, receiver, phase in parents.tolist():
        if owns[owner] and reduces:
            found.append([phase, member, receiver, owner, MORE])
        if owns[owner] and spreads:
            found.append([(2 if reduces else 1) * phases - 1 - phase, receiver, member, owner, 0])
    begun = set[tuple[int, int]]()
    found.sort(key=lambda hop: hop[PHASE])
    for hop in found:
        if hop[FOLDS] and (hop[OWNER], hop[RECEIVER]) not in begun:
            begun.add((hop[OWNER], hop[RECEIVER]))
            hop[FOLDS] = FIRST
    return np.asarray(found, dtype=np.int64).reshape(len(found), 5)
