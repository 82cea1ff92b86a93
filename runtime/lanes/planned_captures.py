"""Planned captures: what device lanes will be given of a schedule, and why steps of it stay eager. Pure.

It is what a run makes of the same schedule before a device has refused anything: steps are bound to nothing, and cut as
``segment`` cuts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from maniple.runtime.devices.device import Refused
from maniple.runtime.lanes.segment import Segment, bound_steps, cut_lane
from maniple.runtime.schedule.lane import Layout
from maniple.runtime.schedule.memory.rank_instances import RankInstances

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from maniple.runtime.schedule.lane import Step
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


@final
class PlannedPiece(NamedTuple):
    """What a device is given at once.

    Args:
        processor: its processor.
        segment: the number of the submission of its lane.
        tasks: the labels of what is captured together, or of the one step that is not.
        eager: why it is not captured; "" if it may be.
    """

    processor: int
    segment: int
    tasks: tuple[str, ...]
    eager: str


def planned_pieces(schedule: Schedule, lasting: Collection[int]) -> Iterator[PlannedPiece]:
    """The pieces of all device lanes of a machine, in the order of each.

    Args:
        schedule: what runs.
        lasting: ids of the regions whose valid instances outlive it.
    """
    machine = schedule.machine
    devices = frozenset(processor.id for processor in machine.processors if processor.kind == "gpu")
    if not devices:
        return
    for rank in sorted({memory.rank for memory in machine.memories}):
        here = frozenset(machine.memories_of(rank))
        lanes = Layout(schedule, here, (), RankInstances(schedule, here, lasting).temporary).lanes()
        own = devices.intersection(lanes.steps)
        for processor in sorted(own):
            for number, segment in enumerate(_segments(schedule, lanes.steps[processor], own)):
                for piece in segment.pieces:
                    labels = tuple(schedule.label(step.row) for step in piece.steps)
                    yield PlannedPiece(processor, number, labels, piece.eager)


def _segments(schedule: Schedule, steps: Sequence[Step], devices: Collection[int]) -> list[Segment]:
    bound = bound_steps(
        steps, devices, lambda _: _nothing, lambda counter, value: (_waited, 0, counter, value), schedule
    )
    return [part for part in cut_lane(bound, _refuse) if isinstance(part, Segment)]


def _nothing() -> None:
    """What stands for a body."""


def _waited(where: int, value: int) -> None:
    """What stands for a wait."""


def _refuse(parts: Sequence[Callable[[], object]]) -> Refused:
    return Refused(-1, f"nothing of {len(parts)} steps is captured where none runs")
