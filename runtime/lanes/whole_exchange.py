"""Whole exchanges: the collectives of a schedule that a fabric makes, and who takes part in each call. Pure.

Of a collective that goes by a flat plan the call takes the place of all its tiles. Of one in levels it takes the place
of those between hosts: members with the same number within their hosts make one call, of the blocks that they stand
for, and within the hosts tiles go as they would. An all-reduce of two hosts of two (0 and 1, 2 and 3): so does 0 with
the blocks of 0 and 2, as 1 and 3 do with theirs:

    within the host   folded here   call of 0 and 2   within the host
    1 -> 0            0 with 1      all_reduce        0 -> 1

A fabric folds in an order of its own, so sums may differ in their last bits from those of the schedule's order; they do
not from run to run, nor between members.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.schedule.movement_plan import BETWEEN, DIRECT, FLAT, NAMES, STAR, WITHIN
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.schedule import RowKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maniple.runtime.schedule.network import Wires
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.transports.fabric import Fabric

__all__: list[str] = []

_HOSTS, _TOUR = 7, 9  # of `network.Wires`


@final
@dataclass(frozen=True, slots=True)
class Whole:
    """A collective that is made by calls of a fabric.

    Args:
        kind: what the call is.
        op: the symbol of what folds; "" where nothing is folded.
        groups: the memories of each call, ascending.
        plan: how the schedule says that it goes.
    """

    kind: str
    op: str
    groups: tuple[tuple[int, ...], ...]
    plan: str = NAMES[DIRECT]

    def group_of(self, memory: int) -> tuple[int, ...]:
        """Give the group that a memory is in."""
        return next(group for group in self.groups if memory in group)

    def text(self, name: str) -> str:
        """Say by what the collective goes, in which order it is folded, and what else it takes."""
        way = f"{self.plan}, between hosts {name}" if len(self.groups) > 1 else name
        return f"{way}, folded in its own order" if self.op else way


def whole_exchanges(schedule: Schedule, fabric: Fabric, near: Collection[int] = ()) -> dict[int, Whole]:
    """Find the collectives that a fabric makes, by row; the same on all ranks, whatever they list of a schedule.

    Every member must be a rank by itself. Of a plan that goes from member to member a rank does not see who owns which
    block, which an all-reduce alone need not know; one in levels needs as many members on each host. A fabric of GPUs
    takes groups of GPUs alone, of ranks that have one each, and one of CPUs takes none with a GPU.

    Args:
        schedule: of all ranks, or what one lists of it.
        fabric: the fabric.
        near: the memories of this host, where such share memory: what stays within a host needs no fabric.
    """
    machine, found = schedule.machine, dict[int, Whole]()
    wires = Network.of(machine).wires
    gpus = {processor.memory for processor in machine.processors if processor.kind == "gpu"}
    on_gpus = fabric.kind == "gpu"
    if on_gpus and len({memory.rank for memory in machine.memories}) < len(machine.memories):
        return {}  # it would not know by which device a rank takes part
    for row in np.flatnonzero(schedule.kind >= RowKind.ALL_REDUCE).tolist():
        members = schedule.memories(row)
        if len({machine.memories[member].rank for member in members}) < len(members):
            continue
        if not gpus.issuperset(members) if on_gpus else not gpus.isdisjoint(members):
            continue
        if near and (set(near).issuperset(members) or len({machine.memories[member].host for member in members}) == 1):
            continue
        kind, op = RowKind(int(schedule.kind[row])), schedule.pieces.op(row)
        if not fabric.carries(kind.name.lower(), op, schedule.regions[int(schedule.region[row])].dtype):
            continue
        plan = schedule.plans.get(row, NAMES[DIRECT])
        number = NAMES.index(re.sub(r", \d+ pieces$", "", plan))
        if kind != RowKind.ALL_REDUCE and BETWEEN[number] != STAR:
            continue
        groups = (members,) if WITHIN[number] == FLAT else _rails(wires, members)
        if groups:
            found[row] = Whole(kind.name.lower(), op, groups, plan)
    return found


def _rails(wires: Wires, members: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Give the members that have one number within their hosts, by number; none where hosts have more than others."""
    hosts: defaultdict[int, list[int]] = defaultdict(list)
    for member in sorted(members, key=lambda member: int(wires[_TOUR][member])):
        hosts[int(wires[_HOSTS][member])].append(member)
    if len({len(host) for host in hosts.values()}) > 1:
        return ()
    return tuple(tuple(sorted(rail)) for rail in zip(*hosts.values(), strict=True))


def said(schedule: Schedule, wholes: Mapping[int, Whole], name: str) -> dict[int, str]:
    """Give the plans of a schedule's collectives, with those that a fabric makes."""
    return {**schedule.plans, **{row: whole.text(name) for row, whole in wholes.items()}}
