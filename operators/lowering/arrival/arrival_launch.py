"""The launch by which a value that the program brings enters a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.operator_body import InputBinder
from maniple.operators.lowering.step_program import Port
from maniple.regions.privilege import WRITE_DISCARD
from maniple.runtime.schedule.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


def arrival_launch(
    machine: Machine,
    name: str,
    region: LogicalRegion,
    parts: Mapping[int, Rect],
    readers: Mapping[int, int] | None = None,
    start: Sequence[int] = (),
    lag: int = 0,
) -> tuple[Launch, Port]:
    """Give the launch of a task in each memory that writes its part of a value, and the port through which it enters.

    Args:
        machine: the machine.
        name: of the launch.
        region: what it writes.
        parts: of the value, by memory.
        readers: by memory the processor that brings it, in turn with what it runs; None: the memory's first, when
            it is free.
        start: where the region begins in the value; by default at its start.
        lag: so many runs later it arrives.
    """
    memories = sorted(parts)
    port = Port(tuple(memories), tuple(parts[memory] for memory in memories))
    firsts = {memory: machine.processors_of(memory)[0] for memory in memories}
    points = tuple(Point((), (readers or firsts)[memory], replica) for replica, memory in enumerate(memories))
    rects = tuple(rect.shift([-at for at in start]) for rect in port.rects) if start else port.rects
    requirement, turn = Requirement(region, WRITE_DISCARD, rects), readers is not None
    return Launch(name, points, (requirement,), InputBinder(port), in_turn=turn, lag=lag, port="in"), port
