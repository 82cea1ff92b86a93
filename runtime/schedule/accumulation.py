"""Accumulation: which views tasks add to, and the scratch of those whose bodies cannot.

A task adds to an earlier contribution of its processor where contributions accumulate, and to a value that it may
change where its binder says that it accumulates. A body that can add does; any other writes to scratch, from which the
runtime adds. A processor runs one task at a time, so it has scratch for the largest of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.storage import ADDS
from maniple.runtime.schedule.launch import Accumulating
from maniple.runtime.schedule.schedule import RowKind

if TYPE_CHECKING:
    from maniple.runtime.schedule.launch import Launch, Requirement
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

ALIGNMENT = 64
"""What scratch holds begins at multiples of so many bytes."""


def adding(schedule: Schedule, row: int) -> frozenset[int]:
    """Give the requirements, by number, to whose views a task adds."""
    launch = schedule.launches[int(schedule.launch[row])]
    return changed(launch).union(access.slot for access in schedule.accesses(row) if access.adds)


def changed(launch: Launch) -> frozenset[int]:
    """Give the requirements, by number, to whose views every task of a launch adds: values that its bodies change."""
    if not isinstance(launch.binder, Accumulating):
        return frozenset()
    needs = enumerate(launch.requirements)
    return frozenset(number for number, need in needs if need.privilege.reads and need.privilege.writes)


def joining(launch: Launch) -> frozenset[int]:
    """Give the requirements, by number, to whose views a task of a launch adds that is not the first of its processor.

    Where contributions accumulate, the first micro-batch of a processor writes what all further ones add to.
    """
    needs = enumerate(launch.requirements)
    return changed(launch).union(number for number, need in needs if need.privilege.accumulates)


def operation(requirement: Requirement) -> str:
    """Give the symbol of the operation by which tasks add to what is there; values that they change are sums."""
    op = requirement.privilege.op
    return "+" if op is None else op.symbol


def needs_scratch(launch: Launch, added: frozenset[int]) -> bool:
    """Say whether the bodies of a launch, whose tasks add to some views, cannot do so themselves."""
    sums = all(operation(launch.requirements[number]) == "+" for number in added)
    able = sums and isinstance(launch.binder, Accumulating) and launch.binder.adds_in_place(added)
    return bool(added) and not able


def scratch_bytes(schedule: Schedule) -> dict[int, int]:
    """Give the bytes of scratch that each processor needs for what its tasks add, of those that need any."""
    found: dict[int, int] = {}
    for row in _candidates(schedule):
        launch, added = schedule.launches[int(schedule.launch[row])], adding(schedule, row)
        if needs_scratch(launch, added):
            regions = [requirement.region for requirement in launch.requirements]
            uses = [access for access in schedule.accesses(row) if access.slot in added]
            size = sum(aligned(access.rect.bounds.volume * regions[access.slot].itemsize) for access in uses)
            processor = int(schedule.processor[row])
            found[processor] = max(found.get(processor, 0), size)
    return found


def aligned(size: int) -> int:
    """Give the bytes that something of so many takes in scratch."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _candidates(schedule: Schedule) -> list[int]:
    """The tasks that may add to something."""
    starts, _, _, writes, _ = schedule.access
    rows = np.repeat(np.arange(len(schedule)), np.diff(starts))[writes == ADDS]
    changing = [number for number, launch in enumerate(schedule.launches) if changed(launch)]
    tasks = np.flatnonzero((schedule.kind == RowKind.TASK) & np.isin(schedule.launch, changing))
    found: list[int] = np.union1d(rows, tasks).tolist()
    return found
