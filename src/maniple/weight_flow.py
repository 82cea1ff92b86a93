"""Weight flow: the steps of a plan without a flush that are under way together, and the versions of weights they leave.

A step of such a plan is a mini-batch, begun by one run of its program and over with a later one. Of three stages:

    run             0    1    2    3    4    5
    begins          0    1    2    3    .    .
    ends            .    .    0    1    2    3
                    ramp      steady    drain

Versions of weights take turns with storage while steps are under way; before and after the first has the newest.
"""

from __future__ import annotations

import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, final

from maniple.process.interruption import hold_interrupts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from maniple.operators.lowering.flow.lived_run import LivedRun
    from maniple.operators.lowering.weight import Weight
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.execution.run import Run
    from maniple.runtime.lanes.cycle import Cycle
    from maniple.runtime.schedule.turns.ring import Ring
    from maniple.runtime.storage.memory import Memory
    from maniple.step_run import StepRun

__all__: list[str] = []

ALONE = 2
"""After so many steps that had no other behind them it is said that stages wait."""


@final
class WeightFlow:
    """The steps under way of one program.

    Args:
        replay: the program's.
        cycle: of its runs.
        lived: what outlives them.
        weights: the parameters, by name.
        hyper: the regions of the numbers of updates, if they enter.
        memories: of this rank.
    """

    def __init__(
        self,
        replay: Replay,
        cycle: Cycle,
        lived: LivedRun,
        weights: Mapping[str, tuple[Weight, int]],
        hyper: LogicalRegion | None,
        memories: Mapping[int, Memory],
    ) -> None:
        self._replay, self._cycle, self._hyper, self._memories = replay, cycle, hyper, memories
        rings: dict[int, list[Ring]] = {}
        for ring in replay.schedule.rings:
            rings.setdefault(ring.regions[0].id, []).append(ring)
        self._rings = rings
        self._weights = [
            (weight, lived.behind(number)) for weight, number in weights.values() if weight.value.id in rings
        ]
        self._under_way: deque[StepRun] = deque()
        self._last: Run | None = None
        self._given = self._alone = 0

    @property
    def ahead(self) -> int:
        """How many runs after that which begins a step it is over."""
        return self._cycle.longest

    @property
    def is_drained(self) -> bool:
        """Whether no step is under way."""
        return self._cycle.is_drained

    def begin(self, numbers: torch.Tensor | None) -> None:
        """Get ready for a ramp, if nothing is under way: all versions are the newest.

        Args:
            numbers: of the first update.
        """
        if not self._cycle.is_drained:
            return
        for weight, _ in self._weights:
            self._spread(weight, None)
        if numbers is not None and self._hyper is not None:
            for ring in self._rings.get(self._hyper.id, ()):
                for region in ring.regions if ring.memory in self._memories else ():
                    self._memories[ring.memory].assign(region, region.bounds, numbers)

    def add(self, step: StepRun) -> None:
        """Take note of a step that was begun."""
        self._under_way.append(step)
        self._given += 1
        step.left = self._cycle.longest
        self._note(step.run, step)

    def drain(self) -> None:
        """Run on without a new batch until all steps are over, wait, and leave the newest versions in their place.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self._tell_alone()
        while not self._cycle.is_drained:
            self._replay.prepare(gives=False)
            with hold_interrupts():
                run = self._replay.commit()
            self._note(run, None)
        if self._last is not None:
            self._last.finish()
        turn = self._cycle.turn - self._cycle.longest
        for weight, behind in self._weights:
            self._spread(weight, turn + behind)

    def newest(self) -> dict[str, LogicalRegion]:
        """By weight the region that has its newest version as the next run begins; none where all have it."""
        found: dict[str, LogicalRegion] = {}
        if self._cycle.is_drained:
            return found
        for weight, _ in self._weights:
            ring = next(ring for ring in self._rings[weight.value.id] if ring.memory == weight.home[0][0])
            found[weight.name] = ring.regions[ring.place(0, self._cycle.turn)]
        return found

    def _tell_alone(self) -> None:
        """Say, once and on one rank, that a pipeline whose steps come alone is none."""
        self._alone += self._given == 1
        if self._given == 1 and self._alone == ALONE and 0 in self._memories:
            warnings.warn(
                "semantics.weights: stages wait, for each step has passed all of them before the next one came; "
                "trainer.run(batches) keeps them at work, trainer.step(batch) cannot",
                stacklevel=2,
            )
        self._given = 0

    def _note(self, run: Run, begun: StepRun | None) -> None:
        """Take note of a run: the step that it is the last of is over with it."""
        self._last = run
        for step in self._under_way:
            if step is not begun:
                step.left -= 1
                step.run = run
        while self._under_way and not self._under_way[0].left:
            self._under_way.popleft()

    def _spread(self, weight: Weight, turn: int | None) -> None:
        """Copy the newest version of a weight over the others, here.

        Args:
            weight: the weight.
            turn: the run before which it is the newest; None: all lie as before the first.
        """
        homes = dict(weight.home)
        for ring in self._rings[weight.value.id]:
            if ring.memory not in self._memories:
                continue
            memory, place = self._memories[ring.memory], 0 if turn is None else ring.place(0, turn)
            for rect in homes.get(ring.memory, ()):
                source = memory.view(ring.regions[place], rect)
                for region in ring.regions:
                    if region is not ring.regions[place]:
                        memory.write(partial(memory.view(region, rect).copy_, source))
