"""What a trainer tells of the steps that it ran: bytes, memory, the timeline, and how right their prediction was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.report import Report, make_report
from maniple.runtime.execution.run_measurement import gather_bytes, gather_timeline
from maniple.runtime.program.in_turn import in_turn

if TYPE_CHECKING:
    import torch

    from maniple.hyper import Hyper
    from maniple.memory_use import MemoryUse
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.program_loader import ProgramLoader
    from maniple.runtime.control.turn import Turn
    from maniple.runtime.control.world import World
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.execution.run import Run
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.observe.timeline import Timeline
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.step_log import StepLog
    from maniple.step_run import Watch

__all__: list[str] = []


class TrainerInspection(ABC):
    """What a trainer tells of its steps; all ranks ask for the same.

    The trainer has what is declared here.
    """

    graph: Graph
    plan: Plan
    machine: Machine
    turn: Turn
    hyper: Hyper
    _optimizer: AbstractOptimizer
    _world: World
    _runtime: RankRuntime
    _memory: MemoryUse
    _load: ProgramLoader
    _log: StepLog
    _last: Run | None
    _watch: Watch
    """What waits for steps; what stops one ends the trainer, which from then on says how far that step came."""
    _bytes_before: int

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse where the trainer goes no further."""

    @abstractmethod
    def _call(self, text: str) -> None:
        """Tell the other ranks what this one does."""

    @in_turn
    def _flush(self) -> None:
        """Have all steps end that are under way without a flush."""
        flow = self._load.flow
        if flow is not None and not flow.is_drained:
            with self._watch:
                flow.drain()

    def _drain(self) -> None:
        self._flush()
        with self._watch:
            self._runtime.drain()

    @property
    def optimizer(self) -> AbstractOptimizer:
        """How parameters are updated; what may change of it from step to step is `hyper`."""
        return self._optimizer

    @property
    @in_turn
    def schedule(self) -> Schedule:
        """The schedule of a step at the graph's own batch size, with all that all ranks do."""
        return self._load("step", self.graph.batch).schedule

    @in_turn
    def torch_optimizer(self) -> torch.optim.Optimizer:
        """Give what torch's learning rate schedulers take: its parameter groups are those of `hyper`."""
        return self.hyper.torch_optimizer()

    @in_turn
    def bytes(self) -> dict[str, int]:
        """Give the bytes that left a memory in the last step: as predicted by its schedule, and as measured.

        Measured is the length of what was written, added up over all ranks by whoever copied: the transports, the
        lanes that write into another rank's memory, and the copies between memories of one rank. None of them knows the
        schedule.

        Raises:
            RequestError: so many runs of other programs came after the step that its count was let go of.
        """
        run = self._require_step()
        self._call("bytes")
        return {"predicted": run.replay.schedule.total_bytes, "measured": gather_bytes(self._world, run.number)}

    @in_turn
    def total_bytes(self) -> int:
        """Give the bytes that left a memory since this trainer was made, over all ranks, as measured."""
        self._check_open()
        self._runtime.drain()
        self._call("total_bytes")
        return gather_bytes(self._world, None) - self._bytes_before

    @in_turn
    def memory(self) -> dict[int, dict[str, int]]:
        """Give the bytes that each rank needs for a step: `predicted`, and from the first step on also `measured`.

        Predicted is known before the first step: all instances, with turns for those that are never alive together, and
        the most that bodies take beside them. Measured is the system's and torch's word, not the runtime's: the most of
        the process since the first step, above what it had before the trainer was made. It is the sum of `host`, the
        resident set without what ranks share, `shared`, the rank's segment, and `devices`, the tensors that torch's
        CUDA allocator gave out. `reserved` is what that allocator took of the devices for them, with what lies in
        pieces and the memory of captured graphs. A rank on devices has its instances there: what is predicted is of
        `devices` alone. Neither counts what libraries keep for a stream, which the capacity of its memories is without.
        """
        self._check_open()
        self._runtime.drain()
        self._call("memory")
        return self._memory.gather(self._load("step", self.graph.batch).replay)

    @in_turn
    def captures(self) -> list[tuple[tuple[str, ...], str, bool]]:
        """Give what the GPUs of this rank are given in a step, in order: tasks captured together, or one alone.

        Of each its tasks, why it is not captured ("" if it may be), and whether it is one launch by now: a step is
        captured when it runs for the second time.
        """
        self._check_open()
        return self._load("step", self.graph.batch).replay.pieces()

    @in_turn
    def timeline(self) -> Timeline:
        """Give the events of the last step on all ranks."""
        run = self._require_step()
        self._call("timeline")
        return gather_timeline(self._world, run)

    @in_turn
    def report(self, costs: str | None = None) -> Report:
        """Say how right the prediction of a step was, by all steps so far: time by its terms, bytes, memory, the bound.

        Rank 0 simulates the plan on this machine; the first simulation of an installation compiles the simulator.

        Args:
            costs: what tasks take, see `search`; by default what the plan was found with.

        Raises:
            RequestError: no whole batch was trained on, or there are no such costs.
        """
        last = self._require_step()
        self._call(f"report({costs!r})")
        made = self.graph, self.machine, self.plan, self._optimizer
        return make_report(self._world, *made, self._log, last, costs, self.memory())

    def _require_step(self) -> Run:
        self._check_open()
        if self._last is None:
            raise RequestError("no step has run yet; call step first")
        self._last.wait()
        return self._last
