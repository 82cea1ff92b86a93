"""Loading: a schedule is bound to a rank once all ranks know that the memory of each can hold it."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from maniple.runtime.analysis.capacity import Resident, check_schedule, passing, roomy
from maniple.runtime.execution.replay import Replay
from maniple.runtime.transports import record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maniple.runtime.control.control import Control
    from maniple.runtime.execution.services import Services
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


def load(schedule: Schedule, rank: Services, lasting: Collection[int]) -> Replay:
    """Bind a schedule to a rank that has the processors of its machine.

    Args:
        schedule: what to run; every rank loads the same.
        rank: this rank.
        lasting: ids of the regions whose values outlive it.

    Raises:
        RequestError: some memory cannot hold what it needs.
        RunError: a task failed, here or on another rank.
    """
    replay = Replay(schedule, rank, lasting)
    needs, scratch = (schedule.memory_bytes(), {}) if roomy(schedule) else _check(schedule, rank, replay.needs())
    residents = passing(schedule, needs, lasting)
    replay.take_besides({memory: [resident, *scratch.get(memory, ())] for memory, resident in residents.items()})
    return replay


def _check(
    schedule: Schedule, rank: Services, needs: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, list[Resident]]]:
    """Refuse a schedule on all ranks if a memory of one cannot hold it, the scratch of bodies included.

    Bodies are rehearsed on tensors as large as their instances, so only once those are known to fit.

    Args:
        schedule: the schedule.
        rank: this rank.
        needs: bytes that a run takes in each of its memories.

    Returns:
        The same of all ranks, and what scratch takes besides.

    Raises:
        RequestError: says what wanted to live there.
        RunError: a task failed, here or on another rank.
    """
    control, scratch, processors = rank.world.control, rank.scratch, rank.resources.processors
    told = _by_memory(control, {memory: [need] for memory, need in needs.items()})
    everywhere = {memory: need.integer() for memory, (need,) in told.items()}
    check_schedule(schedule, everywhere, {})
    scratch.rehearse(schedule, processors, rank.await_event)
    residents = scratch.residents(schedule, processors)
    found = _by_memory(control, {memory: list(map(astuple, some)) for memory, some in residents.items()})
    besides = {memory: [Resident.of(one) for one in some] for memory, some in found.items()}
    check_schedule(schedule, everywhere, besides)
    return everywhere, besides


def _by_memory(control: Control, mine: Mapping[int, Sequence[object]]) -> dict[int, tuple[record.Field, ...]]:
    """Put together what every rank says of its own memories, which it plans and measures alone."""
    gathered = control.gather(record.pack(sorted(mine.items())))
    told = (row.items(2) for part in record.parts(gathered, "needs of memories") for row in part.items())
    return {memory.integer(): found.items() for memory, found in told}
