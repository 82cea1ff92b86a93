"""Machine memory: what a run of a schedule takes in each memory of a machine, by the plans of all its ranks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.runtime.schedule.lane import Layout
from maniple.runtime.schedule.memory.rank_instances import RankInstances

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


def planned_bytes(schedule: Schedule, lasting: Collection[int]) -> tuple[int, ...]:
    """Give the bytes that a run takes in each memory of a machine, as its ranks will plan them.

    Args:
        schedule: what runs.
        lasting: ids of the regions whose valid instances outlive the schedule.
    """
    machine = schedule.machine
    ranks = [frozenset(machine.memories_of(memory.rank)) for memory in machine.memories]
    found: dict[int, int] = {}
    for group in neighbours(machine):
        # All ranks of a group lay out the same steps, so the lifetimes that one of them finds hold for all.
        holds, here = RankInstances(schedule, group, lasting), ranks[min(group)]
        lanes = Layout(schedule, here, () if group == here else group, holds.temporary).lanes()
        found |= holds.needs(holds.plan(lanes.lifetimes))
    return tuple(size for _, size in sorted(found.items()))


def neighbours(machine: Machine) -> list[frozenset[int]]:
    """Give the memories whose ranks write into each other's: all of one host; with devices or more hosts, each rank's.

    Ranks share memory all together or not at all, as the launcher has it (`runtime/cluster/run.py`).
    """
    devices = any(processor.kind == "gpu" for processor in machine.processors)
    hosts = {host.name for host in machine.hosts}  # nodes of one host share memory
    groups: dict[int, set[int]] = {}
    for memory in machine.memories:
        groups.setdefault(memory.rank if devices or len(hosts) > 1 else 0, set()).add(memory.id)
    return [frozenset(group) for group in groups.values()]
