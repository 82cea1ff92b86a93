"""Recordings: what happens on all ranks while a program says so, collected into one timeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.runtime.execution.measurement import gather_recording
from maniple.runtime.execution.recorder import CAPACITY, Recorder
from maniple.runtime.observe.timeline import Kind

if TYPE_CHECKING:
    from maniple.runtime.execution.rank import RankRuntime
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


def start(runtime: RankRuntime, capacity: int = CAPACITY) -> Recorder:
    """Record what happens at this rank from now on.

    Raises:
        RequestError: something records already.
    """
    if runtime.recorder is not None:
        raise RequestError("this program is recorded already; end that recording first, or run without --record")
    recorder = Recorder(runtime.world.rank, capacity)
    for memory in runtime.memories.values():
        recorder.resize(Kind.ALLOCATED, "held before", memory.kept_bytes())
        memory.recorder = recorder
    runtime.recorder = recorder
    return recorder


def stop(runtime: RankRuntime) -> None:
    """Record no more at this rank."""
    runtime.recorder = None
    for memory in runtime.memories.values():
        memory.recorder = None


def save(runtime: RankRuntime, path: str) -> None:
    """Collect what was recorded, on all ranks, and write it from rank 0.

    Raises:
        RequestError: the file cannot be written.
    """
    if runtime.recorder is not None:
        timeline = gather_recording(runtime.world, runtime.recorder)
        if runtime.world.rank == 0:
            timeline.save(path)


@contextmanager
def record(runtime: RankRuntime, capacity: int) -> Iterator[Recording]:
    """Record what happens inside, on all ranks, each of which does this.

    Args:
        runtime: the rank.
        capacity: how many events a rank keeps; the oldest go first.
    """
    runtime.refuse_inside_a_task("record")
    runtime.drain()
    runtime.world.control.call("record")
    recording = Recording()
    recorder = start(runtime, capacity)
    try:
        yield recording
        runtime.drain()
    finally:
        stop(runtime)
    recording.found = gather_recording(runtime.world, recorder)
