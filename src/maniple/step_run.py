"""Runs of steps: programs that are ready, their steps under way, and what is left of one that a failure ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, final

import torch

from maniple.operators.lowering.fusion.fused_launch import home_names
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.process.error import RunError
from maniple.process.interruption import hold_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maniple.operators.lowering.step_program import Port, Program
    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.execution.run import Run
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.storage.memory import Memory
    from maniple.weight_flow import WeightFlow

__all__: list[str] = []


@dataclass(frozen=True)
class LoadedProgram:
    """A program ready to run, with the ports through which values enter and leave it, and the losses not yet taken."""

    replay: Replay
    program: Program
    inputs: dict[str, dict[int, Port]]
    results: dict[str, Port]
    clock: Port | None
    hyper: Port | None = None
    unread: deque[StepRun] = field(default_factory=deque)
    flow: WeightFlow | None = None

    @cached_property
    def schedule(self) -> Schedule:
        """Give all rows, with what all ranks push: the replay's own schedule has the part of its host."""
        known = self.replay.schedule
        return known if known.elsewhere is None else lower(self.program, FragmentCache(known.machine))

    def feed(
        self,
        batch: Mapping[str, torch.Tensor],
        memories: Mapping[int, Memory],
        seed: int,
        step: int,
        numbers: torch.Tensor | None = None,
    ) -> None:
        """Queue the inputs that this rank's tasks will take.

        Args:
            batch: values by input.
            memories: those of this rank.
            seed: of the training.
            step: how many were submitted before.
            numbers: of the updates, row by row; nobody changes the tensor any more.
        """
        for name, ports in self.inputs.items():
            for port in ports.values():
                port.put(batch[name], memories)
        if self.hyper is not None and numbers is not None:
            self.hyper.put(numbers, memories)
        if self.clock is not None:
            self.clock.put(torch.tensor([seed if seed < 1 << 63 else seed - (1 << 64), step]), memories)

    def compute(
        self, batch: Mapping[str, torch.Tensor], memories: Mapping[int, Memory], seed: int, step: int
    ) -> dict[str, torch.Tensor]:
        """Run it and take its results, and no others: an interrupted run may have left some.

        Args:
            batch: values by input.
            memories: those of this rank.
            seed: of the training.
            step: how many were submitted before.
        """
        self.replay.prepare()
        with hold_interrupts():
            for port in self.results.values():
                port.clear()
            self.feed(batch, memories, seed, step)
            run = self.replay.commit()
        run.wait()
        return {name: port.of(memories).popleft() for name, port in self.results.items()}


@dataclass(eq=False)
class StepRun:
    """A step under way; others of its program may be asked for their loss before or after it.

    Args:
        run: of its program; the last that was submitted, where it goes on for several.
        loaded: its program.
        number: from 0.
        begun_ns: when it was submitted.
        loss: once it was taken.
        size: samples of its batch.
        left: how many runs must be submitted until it is over.
    """

    run: Run
    loaded: LoadedProgram
    number: int
    begun_ns: int
    loss: float | None = None
    size: int = 0
    left: int = 0

    def written_names(self) -> tuple[str, ...]:
        """Name what the updates of parameters and buffers write that have begun at this rank, by block."""
        replay = self.run.replay
        schedule, (begun, _) = replay.schedule, replay.times[self.run.slot]
        updates = [
            schedule.launches[schedule.launch[row]]
            for row in range(len(schedule))
            if replay.here(row) and schedule.point[row] >= 0 and begun[row] >= self.begun_ns
        ]
        return tuple([name for each in updates for name in home_names(each)])


@dataclass(frozen=True, slots=True)
class StoppedStep:
    """A step that a failure ended; tasks that had begun elsewhere on this rank may still end.

    Args:
        step: which.
        reason: the failure.
    """

    step: StepRun
    reason: str

    @classmethod
    def first(cls, steps: Iterable[StepRun], error: BaseException) -> StoppedStep | None:
        """Give the first of some steps that a failure ended; None where there is none."""
        stopped = min((step for step in steps if step.run.stopped()), key=lambda step: step.number, default=None)
        return None if stopped is None else cls(stopped, str(stopped.run.failure or error))

    def __str__(self) -> str:
        """What messages say."""
        written = sorted(set(self.step.written_names()))
        found = (
            f"after updates of {len(written)} parameters or buffers had begun at this rank, which may be of two steps "
            f"now: {', '.join(written)},"
            if written
            else "before any parameter was updated at this rank"
        )
        return f"step {self.step.number} was stopped {found} ({self.reason})"


@final
class Watch:
    """What is told of a failure in what is done under it, which goes on from there; one for many uses.

    Args:
        tell: told of each.
    """

    def __init__(self, tell: Callable[[RunError], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Tell of a failure."""
        if isinstance(error, RunError):
            self._tell(error)
