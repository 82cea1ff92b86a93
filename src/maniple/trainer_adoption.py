"""How a trainer goes on under another plan, in place: what it keeps moves to where the new plan keeps it."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from maniple.memory_use import checked_limit
from maniple.operators.lowering.home_move import MoveSizes, find_moves, in_turns, move_program
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.operators.plan.mapper_placement import map_plan
from maniple.operators.plan.plan import Plan
from maniple.operators.training import loss_scale
from maniple.process.error import ManipleError, RequestError
from maniple.program_loader import ProgramLoader
from maniple.runtime.execution.run_measurement import gather_bytes
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.schedule.schedule import InstanceKind
from maniple.step_log import StepLog
from maniple.trainer_checkpoint import TrainerCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.home_move import HomeMove
    from maniple.operators.lowering.weight import Weight
    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.mapper import Mapper
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.step_run import LoadedProgram
    from maniple.strategies.interface.plan_frontier import Frontier

__all__: list[str] = []

Answer = TypeVar("Answer")
Covered = dict[int, dict[int, "Rect"]]
"""By region's id and memory, what the lasting instance covers."""


class TrainerAdoption(TrainerCheckpoint):
    """What a trainer does to go on under another plan; all ranks do the same."""

    _loaded: dict[tuple[str, int], LoadedProgram]
    _mapper: Mapper | None
    _broken: str
    _limit: int | None
    """The most bytes that it may have of each memory; None: what the machine says."""

    @abstractmethod
    def _first_that_fits(
        self, frontier: Frontier, limit: int | None, begin: Callable[[Plan, int | None], Answer]
    ) -> Answer:
        """What the first plan of a frontier gives that fits, the fastest tried first."""

    @in_turn
    def adopt(self, plan: Plan | Frontier, *, memory: int | None = None) -> dict[str, int]:
        """Go on under another plan: parameters, state, rates and the number of the next step stay.

        What lives elsewhere under that plan is moved: to each memory exactly the elements that it does not hold, from
        one that does, as many regions at a time as fit: until all have moved, into what the trainer had before, too.

        Args:
            plan: of the same graph, for processors of this world; of a frontier, the fastest plan that fits.
            memory: from now on the most bytes of each memory; default what it was.

        Returns:
            The bytes that left a memory, `predicted` and `measured`.

        Raises:
            RequestError: the plan does not fit the graph, the world or a memory, or some region's old and new home do
                not fit together. Nothing has moved then, and the trainer goes on under the old plan.
            RunError: the run was stopped meanwhile; the trainer ends.
        """
        limit = self._limit
        if memory is not None:
            self._asked = limit = checked_limit(memory)
        if isinstance(plan, Plan):
            return self._adopt(plan, limit)
        return self._first_that_fits(plan, limit, self._adopt)

    def _adopt(self, plan: Plan, limit: int | None) -> dict[str, int]:
        """Go on under a plan, with at most so many bytes of each memory."""
        self._check_open()
        self._call(f"adopt(plan {plan.strategy!r} of digest {digest_of(plan)}, memory {limit})")
        self._drain()
        named = (*plan.processors_used(), *self.plan.processors_used())
        machine = host_machine(self._world, named).capped(limit)
        plan.validate(self.graph, machine)
        if dict(plan.semantics) != dict(self.plan.semantics):
            raise RequestError(
                f"adopt: expected a plan of the same semantics, {dict(self.plan.semantics) or 'exact'}, got "
                f"{dict(plan.semantics) or 'exact'}; save the parameters, and make a trainer under the other plan"
            )
        if self._mapper is not None:
            plan = map_plan(plan, self.graph, machine, self._mapper)
        old = self._weights
        made = weights(self.graph, plan, machine, self._optimizer, self._runtime.regions)
        new = _settle(old, made, _read_alike(self.graph, self.plan, plan))
        loaded: dict[tuple[str, int], LoadedProgram] = {}
        given = self.graph, plan, machine, self._optimizer, new, self._runtime
        load = ProgramLoader(*given, loaded, compiled=self._compiled)
        try:
            covers = cover(load("step", self.graph.batch).replay.schedule)
            roomy = roomier(machine, self.machine)
            turns = self._turns(old, new, roomy, covers)
        except ManipleError:
            self._runtime.retire([each.replay for each in loaded.values()])
            raise
        self._runtime.retire([each.replay for each in self._loaded.values()])
        self._loaded.clear()
        self._last, self._homes = None, None
        moved = self._move(turns, roomy, covers)
        self.plan, self.machine, self._weights, self._load, self._loaded = plan, machine, new, load, loaded
        self._limit = limit
        self._load("step", self.graph.batch).replay.keep()
        if self._module is not None:
            self._module.move_in(new, self._runtime.memories)
        self._log = StepLog()
        self._memory.expect_others()
        return moved

    def _turns(
        self, old: Mapping[str, Weight], new: Mapping[str, Weight], machine: Machine, covers: Covered
    ) -> list[tuple[HomeMove, ...]]:
        """The moves, in turns that fit."""
        moves = find_moves(old, new)
        covered = cover(self._load("step", self.graph.batch).replay.schedule)
        nowhere: dict[int, Rect] = {}
        sizes = {
            move.old.id: MoveSizes.of(move, covered.get(move.old.id, nowhere), covers.get(move.new.id, nowhere))
            for move in moves
        }
        besides: dict[int, int] = {}
        for weight in old.values():
            for region in weight.regions:
                for memory, rect in covered.get(region.id, nowhere).items() if region.id not in sizes else ():
                    besides[memory] = besides.get(memory, 0) + rect.volume * region.itemsize
        return in_turns(moves, sizes, machine, besides)

    def _move(self, turns: Sequence[tuple[HomeMove, ...]], machine: Machine, covers: Covered) -> dict[str, int]:
        """Move regions, and give the bytes that left a memory."""
        cache, memories, done = FragmentCache(machine), self._runtime.memories, 0
        total = {"predicted": 0, "measured": 0}
        try:
            for turn in turns:
                for move in turn:  # as large as a step needs it, so that it need not grow
                    for number, rect in covers.get(move.new.id, {}).items():
                        if number in memories:
                            memories[number].keep(move.new, rect)
                program = move_program(turn)
                replay = self._runtime.load(lower(program, cache, self._runtime.known(machine)), program.homes)
                with self._watch:
                    run = replay.submit()
                    run.wait()
                    self._runtime.drain()
                total["predicted"] += replay.schedule.total_bytes
                total["measured"] += gather_bytes(self._world, run.number)
                self._runtime.retire([replay])
                for move in turn:
                    for memory in memories.values():
                        memory.drop(move.old)
                done += len(turn)
        except BaseException as error:
            count = sum(map(len, turns))
            self._broken = f"adopting a plan was stopped with {done} of {count} regions moved ({error})"
            raise
        return total


def roomier(machine: Machine, old: Machine) -> Machine:
    """A machine whose memories hold what they hold now or held before, whichever is more."""
    before = {memory.id: memory.capacity_bytes for memory in old.memories}
    memories = tuple(
        replace(memory, capacity_bytes=max(memory.capacity_bytes, before.get(memory.id, 0)))
        for memory in machine.memories
    )
    return replace(machine, memories=memories)


def digest_of(plan: Plan) -> str:
    """A plan as ranks compare it."""
    return blake2b(json.dumps(plan.to_json(), sort_keys=True).encode(), digest_size=8).hexdigest()


def cover(schedule: Schedule) -> Covered:
    """What the instances of a step cover that may outlive it."""
    found: Covered = {}
    for instance in schedule.instances:
        if instance.kind == InstanceKind.MAIN:
            found.setdefault(schedule.regions[instance.region].id, {})[instance.memory] = instance.rect
    return found


def _settle(old: Mapping[str, Weight], new: Mapping[str, Weight], alike: frozenset[str]) -> dict[str, Weight]:
    """The new weights; what lives where it did keeps its regions, its value only if it is read there as it was.

    A value that a memory has read whole lies there whole: where less of it is read from now on it moves into less.

    Args:
        old: the weights.
        new: the same with regions of their own.
        alike: whose values are read as they were.
    """
    found = {}
    for name, weight in new.items():
        before = old[name]
        if before.home == weight.home:
            value = before.value if name in alike else weight.value
            found[name] = replace(weight, value=value, states=before.states)
        else:
            found[name] = weight
    return found


def _read_alike(graph: Graph, old: Plan, new: Plan) -> frozenset[str]:
    """What is trained with and kept that each memory reads as before, for as long."""
    other = {name for name, operator in new.operators if operator != old.operator(name)}
    read = {operand for node in graph.nodes if node.name in other for operand in node.operands}
    lasting = [tensor.name for tensor in graph.lasting if tensor.id not in read]
    return frozenset({loss_scale.NAME, *(name for name in lasting if old.weight(name).copy == new.weight(name).copy)})
