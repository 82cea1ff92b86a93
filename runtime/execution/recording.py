"""Recordings: what happens on all ranks while a program says so, collected into one timeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.runtime.execution.recorder import CAPACITY, Recorder
from maniple.runtime.execution.run_measurement import gather_recording
from maniple.runtime.observe.timeline import Kind
from maniple.runtime.program.in_turn import in_turn

if TYPE_CHECKING:
    from maniple.runtime.execution.services import Services
    from maniple.runtime.observe.timeline import Timeline

__all__: list[str] = []


class Recording:
    """A recording, under way until its block ends."""

    def __init__(self) -> None:
        self.found: Timeline | None = None

    @property
    def timeline(self) -> Timeline:
        """What happened, on all ranks.

        Raises:
            RequestError: the recording is still under way.
        """
        if self.found is None:
            raise RequestError("the recording is under way; ask for its timeline after the with block")
        return self.found


def start(rank: Services, capacity: int = CAPACITY) -> Recorder:
    """Record what happens at this rank from now on.

    Raises:
        RequestError: something records already.
    """
    if rank.journal.recorder is not None:
        raise RequestError("this program is recorded already; end that recording first, or run without --record")
    recorder = Recorder(rank.world.rank, capacity)
    for memory in rank.resources.memories.values():
        recorder.resize(Kind.ALLOCATED, "held before", memory.kept_bytes())
        memory.recorder = recorder
        if memory.device is not None:
            memory.device.timed = True
    rank.journal.open(recorder)
    return recorder


def stop(rank: Services) -> None:
    """Record no more at this rank."""
    rank.journal.close()
    for memory in rank.resources.memories.values():
        memory.recorder = None
        if memory.device is not None:
            memory.device.timed = False


def save(rank: Services, path: str) -> None:
    """Collect what was recorded, on all ranks, and write it from rank 0.

    Raises:
        RequestError: the file cannot be written.
    """
    recorder = rank.journal.recorder
    if recorder is not None:
        timeline = gather_recording(rank.world, recorder)
        if rank.world.rank == 0:
            timeline.save(path)


@contextmanager
def record(rank: Services, capacity: int) -> Iterator[Recording]:
    """Record what happens inside, on all ranks, each of which does this.

    Args:
        rank: the rank.
        capacity: how many events a rank keeps; the oldest go first.
    """
    recording, recorder = Recording(), _begin(rank, capacity)
    try:
        yield recording
        _wait(rank)
    finally:
        stop(rank)
    recording.found = _gather(rank, recorder)


@in_turn
def _begin(rank: Services, capacity: int) -> Recorder:
    rank.refuse_inside_a_task("record")
    _wait(rank)
    rank.world.control.call("record")
    return start(rank, capacity)


@in_turn
def _wait(rank: Services) -> None:
    rank.under_way.drain()


@in_turn
def _gather(rank: Services, recorder: Recorder) -> Timeline:
    return gather_recording(rank.world, recorder)
