"""The trainer: runs a graph under a plan, step after step, on all ranks of the world."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from maniple.holder import AbstractHolder
from maniple.hyper import Hyper
from maniple.mappers.registry import make_mapper
from maniple.memory_use import MemoryUse, checked_limit
from maniple.operators.graph.batch import BatchForm
from maniple.operators.graph.graph import checked_graph
from maniple.operators.graph.state import check_state, with_ties
from maniple.operators.lowering.weight import (
    STEP,
    check_states,
    drop_weights,
    fill_states,
    kept_values,
    weights,
    write_states,
    write_weights,
)
from maniple.operators.plan.mapper_placement import map_plan
from maniple.operators.plan.plan import Plan
from maniple.operators.plan.version_semantics import optimizer_under
from maniple.operators.training import loss_scale
from maniple.process.digest import digest, digest_tensors
from maniple.process.error import RequestError, RunError
from maniple.process.interruption import hold_interrupts
from maniple.program_loader import ProgramLoader
from maniple.runtime.control.world import World, current
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.run_measurement import gather_bytes
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.session.telling import Telling
from maniple.sample_batch import GivenBatch, SampleBatch
from maniple.step_log import StepLog
from maniple.step_run import LoadedProgram, StepRun, StoppedStep, Watch
from maniple.torch_compilation import checked_compilation
from maniple.trained_module import TrainedModule, begin_values
from maniple.trainer_checkpoint import take_stored
from maniple.trainer_interchange import TrainerInterchange

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.execution.run import Run
    from maniple.runtime.program.mapper import Mapper
    from maniple.runtime.storage.block_file import BlockReader
    from maniple.strategies.interface.plan_frontier import Frontier

__all__: list[str] = []

Batch = Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | SampleBatch

# The inputs of the first step and of every one this far apart are compared between ranks.
DIGEST_EVERY = 100


class Trainer(TrainerInterchange, AbstractHolder):
    """Trains a graph under a plan.

    Every rank makes the same trainer and calls the same methods with the same values. The plan is lowered when the
    trainer is made, so what cannot run is refused before the first step, and how much memory a step needs is known.

    Args:
        graph: the graph; it must have a loss.
        plan: a plan for it, for no more processors than there are; of a frontier, the fastest plan that fits.
        optimizer: how parameters are updated.
        seed: of the parameters' initial values.
        world: the ranks; default those of this launch.
        mapper: asked for the processor of every task and weight; default the one that the launcher was given, if any,
            and else the plan's word.
        memory: the most bytes of each memory; default what the launcher was told, or what the machine has.
        compile: whether torch compiles what chains of operators call; default what the launcher was told.
        in_place: whether the graph's module itself is trained, as by an optimizer of torch, and its values need no
            memory besides: see `trained_module`. Default: it keeps them, and other trainers begin with them, too.

    Raises:
        RequestError: a graph that cannot be trained, or a plan that does not fit it or the world.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan | Frontier,
        *,
        optimizer: AbstractOptimizer,
        seed: int = 0,
        world: World | None = None,
        mapper: Mapper | None = None,
        memory: int | None = None,
        compile: bool | None = None,  # noqa: A002  (torch's word)
        in_place: bool = False,
    ) -> None:
        self._asked, where = None if memory is None else checked_limit(memory), current() if world is None else world
        self._compiled, self._in_place = checked_compilation(compile, where), in_place
        self._begin(graph, plan, optimizer, seed, where, mapper, None)

    def _begin(
        self,
        graph: Graph,
        plan: Plan | Frontier,
        optimizer: AbstractOptimizer,
        seed: int,
        world: World,
        mapper: Mapper | None,
        stored: BlockReader | None,
    ) -> None:
        """Make the trainer, with initial values or those that are stored."""
        self.graph, self._world = checked_graph("Trainer", graph), world
        self.turn = self._world.turn
        if mapper is None and self._world.mapper is not None:
            mapper = make_mapper(self._world.mapper)
        self._mapper, self._optimizer = mapper, optimizer
        self._last: Run | None = None
        self._steps, self._steps_before, self._closed, self._broken = 0, 0, False, ""
        self._stopped: StoppedStep | None = None
        self._watch, self._form = Watch(self._stop), BatchForm.of(graph)
        self._seed, self._log = seed, StepLog()
        begin = partial(self._open, stored)
        begin(plan, self._asked) if isinstance(plan, Plan) else self._first_that_fits(plan, self._asked, begin)

    @in_turn
    def _open(self, stored: BlockReader | None, plan: Plan, limit: int | None) -> None:
        """Lower a step and bind it to this rank, and give every parameter its first values."""
        graph, seed = self.graph, self._seed
        self.machine, self._limit = host_machine(self._world, plan.processors_used()).capped(limit), limit
        plan.validate(graph, self.machine)
        if self._mapper is not None:
            plan = map_plan(plan, graph, self.machine, self._mapper)
        self.plan, names = plan, tuple(tensor.name for tensor in graph.parameters)
        self._optimizer = optimizer_under(plan, self._optimizer, names)
        self._world.control.call(
            f"Trainer({graph.name!r}, plan {plan.strategy!r}, seed {seed})",
            f"{graph.fingerprint()} {plan.to_json()} {self._optimizer}".encode()
            + (b" in place" if self._in_place else b"")
            + digest((graph.state[name] for name in sorted(graph.state)), sampled=True),
        )
        self._runtime = RankRuntime.of(self._world)
        self._runtime.start_processors(self.machine)
        self._memory = MemoryUse(self._runtime)
        number = self._runtime.next_program()
        self._name = "trainer" if number == 1 else f"trainer {number}"
        self._weights = weights(graph, plan, self.machine, self._optimizer, self._runtime.regions)
        self.hyper = Hyper(self._optimizer, self._vary)
        self._loaded: dict[tuple[str, int], LoadedProgram] = {}
        made = graph, plan, self.machine, self._optimizer, self._weights, self._runtime
        self._load = ProgramLoader(*made, self._loaded, compiled=self._compiled)
        step = self._load("step", graph.batch)
        alone = step.flow is None
        self._module = TrainedModule.of(graph, in_place=self._in_place, alone=alone, stored=stored is not None)
        step.replay.keep()
        held, memories = self._weights, self._runtime.memories
        if stored is not None:
            take_stored(self._world, held, memories, stored)
            if self._module is not None:
                self._module.move_in(held, memories)
        else:
            begin_values(self._module, graph, held, memories, seed)
            fill_states(held, memories, self._optimizer)
        self._bytes_before = gather_bytes(self._world, None)
        self._telling = Telling.of(self._world, self._runtime.endings, graph.name, lambda: str(self.report()))

    @in_turn
    def _vary(self) -> None:
        """Lower the step once more, with numbers that enter: until now they were bound into the updates."""
        self._check_open()
        self._call("hyper")
        self._drain()
        self._optimizer = self._load.vary()

    def step(self, *args: torch.Tensor | SampleBatch, **kwargs: torch.Tensor) -> float:
        """Train on one batch and give its mean loss, the same number on every rank.

        Under a plan without a flush it waits until the batch has passed all stages, and the next begins with a ramp:
        `run` is what keeps stages at work.

        Args:
            args: the inputs in the graph's order, or a batch of `mp.data.Loader` ...
            kwargs: ... or by name. At most as many samples as the graph's batch.

        Raises:
            RequestError: a missing or unknown input, a wrong shape or dtype, an empty batch.
            RunError: a task failed, here or on another rank.
        """
        step = self._submit(args, kwargs)
        self._flush()
        return self._collect(step)

    def run(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on batches and give their losses in order, with a later batch already under way.

        A batch is copied before the next one is asked for, so a loader may fill the same tensors again.

        Args:
            batches: each a dictionary of what the module takes by name, or a sequence in the graph's order.
        """
        waiting: deque[StepRun] = deque()
        for batch in batches:
            args = (batch,) if isinstance(batch, Mapping | SampleBatch) else tuple(batch)
            waiting.append(self._submit(args, {}, keep=True))
            if len(waiting) > 1 + waiting[-1].left:
                yield self._collect(waiting.popleft())
        self._flush()
        while waiting:
            yield self._collect(waiting.popleft())

    @in_turn
    def _submit(self, args: Sequence[object], kwargs: Mapping[str, object], *, keep: bool = False) -> StepRun:
        self._check_open()
        self._attend(self._steps)
        given = GivenBatch.of(self._form, args, kwargs)
        numbers = self.hyper.table(self._steps_before + self._steps + 1)
        loaded = self._load("step", given.size)
        if self._load.flow is not loaded.flow:
            self._flush()
            self._load.flow = loaded.flow
        if self._world.size > 1:
            told, whole = given.told(), self._steps % DIGEST_EVERY == 0
            self._call(f"step {self._steps} of {given.size} samples{self.hyper}", told, whole=whole)
        batch = given.fetch(self.graph, loaded, self._runtime.memories, keep=keep)
        with self._watch:
            loaded.replay.prepare()
        if loaded.flow is not None:
            loaded.flow.begin(numbers)
        self._memory.begin()
        with hold_interrupts():
            loaded.feed(batch, self._runtime.memories, self._seed, self._steps, numbers)
            begun_ns = perf_counter_ns()
            self._steps += 1
            self._last = run = loaded.replay.commit()
            step = StepRun(run, loaded, self._steps - 1, begun_ns, size=given.size)
            loaded.unread.append(step)
            if loaded.flow is not None:
                loaded.flow.add(step)
        return step

    def _call(self, text: str, batch: Mapping[str, torch.Tensor] | None = None, *, whole: bool = True) -> None:
        """Tell the other ranks what this one does: at once, whole, or by samples, up to half a second later."""
        if self._world.size > 1:
            # What lies on a device is looked at when all of it is: for that the host waits.
            looked = sorted(name for name in batch or () if whole or not batch[name].is_cuda) if batch else ()
            given = digest_tensors((batch[name] for name in looked), sampled=not whole) if batch else b""
            with self._watch:
                self._world.control.call(f"{self._name}.{text}", given, soon=whole)

    @in_turn
    def _collect(self, step: StepRun) -> float:
        if step.left:
            self._flush()
        with self._watch:
            step.run.wait()
        taken_ns = self._log.add(step, whole=step.loaded is self._loaded.get(("step", self._form.batch)))
        self._world.headway.reach(step.number + 1)
        losses = step.loaded.results["loss"].of(self._runtime.memories)
        while step.loss is None:
            step.loaded.unread.popleft().loss = float(losses.popleft().item())
        if self._metrics is not None:
            self._metrics.tell(step.number, step.loss, step.size, taken_ns / 1e9)
        if isnan(step.loss) and loss_scale.NAME not in self._weights:  # a scaled step that overflows is skipped
            self._broken = f"the loss of step {step.number} is NaN, and the parameters were updated with its gradients"
            raise RunError(f"{self._broken}; run the step under mp.debug() to learn which operator gave the first NaN")
        return step.loss

    @in_turn
    def _outputs(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[dict[str, torch.Tensor], int]:
        self._check_open()
        if not self.graph.outputs:
            raise RequestError(f"graph {self.graph.name!r} has no output to evaluate; name one with output(name, t)")
        names = list(self._load("evaluate", self.graph.batch).inputs)
        given = GivenBatch.of(self._form, args, kwargs, names)
        loaded = self._load("evaluate", given.size)
        self._call(f"evaluate of {given.size} samples", given.told())
        batch = given.fetch(self.graph, loaded, self._runtime.memories, keep=False)
        return self._results(loaded, batch), given.size

    def parameters(self) -> dict[str, torch.Tensor]:
        """Give every parameter whole, in the order of creation, on every rank."""
        found = self._lasting("parameters")
        return {tensor.name: found[tensor.name] for tensor in self.graph.parameters}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Give every parameter and persistent buffer whole, under the names that torch has, on every rank."""
        found = self._lasting("state_dict")
        kept = {tensor.name: found[tensor.name] for tensor in self.graph.lasting if tensor.persistent}
        return with_ties(self.graph, kept)

    @in_turn
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the values of every parameter and persistent buffer; the optimizer's state stays.

        Args:
            state: By name, the same on every rank.

        Raises:
            RequestError: a missing, unknown or misshaped entry.
        """
        self._check_open()
        found = check_state(self.graph, state, strict=True)
        self._call("load_state_dict", found)
        self._drain()
        named = [tensor for tensor in self.graph.lasting if tensor.name in found]
        held, memories = self._weights, self._runtime.memories
        write_weights(held, memories, named, lambda tensor, rect: found[tensor.name][rect.slices((0,) * rect.ndim)])

    @in_turn
    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Give what the optimizer keeps of every parameter, whole, and the number of steps, on every rank.

        Names are those of the parameter and of the state, `linear.weight.exp_avg`; the number of steps is `step`.
        """
        self._check_open()
        self._call("optimizer_state")
        keeps = any(weight.states for weight in self._weights.values())
        self._drain()
        found = self._results(self._load("states", self.graph.batch), {}) if keeps else {}
        return {**found, STEP: torch.tensor(self._steps_before + self._steps)}

    @in_turn
    def load_optimizer_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take what an optimizer of the same kind kept, under any plan; its numbers are `hyper`, and stay.

        Args:
            state: what `optimizer_state` gave, the same on every rank.

        Raises:
            RequestError: a missing or unknown entry, or one of another shape, dtype or kind; nothing is written then.
        """
        self._check_open()
        step, found = check_states(self._weights, state)
        self._call(f"load_optimizer_state at step {step}", found)
        self._drain()
        write_states(self._weights, self._runtime.memories, found)
        self._steps_before = step - self._steps

    @in_turn
    def _lasting(self, call: str) -> dict[str, torch.Tensor]:
        """Give every parameter and buffer whole; also what a step left as it was that failed on the only rank."""
        if self._stopped is not None and self._world.size == 1 and not self._closed:
            kept = kept_values(self.graph, self._weights, self._runtime.memories)
            if not self._stopped.step.written_names():  # also not while they were read
                return kept
        self._check_open()
        loaded = self._load("parameters", self.graph.batch)
        self._call(call)
        return self._results(loaded, {})

    def _results(self, loaded: LoadedProgram, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        with self._watch:
            self._runtime.drain()
        return loaded.compute(batch, self._runtime.memories, self._seed, self._steps)

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the trainer is closed; make another")
        if broken := self._broken or (str(self._stopped) if self._stopped is not None else ""):
            raise RunError(f"this trainer goes no further: {broken}; make another, from a state before that step")
        with self._watch:
            self._runtime.admit(self._name)

    def _stop(self, error: RunError) -> None:
        unread = [step for loaded in self._loaded.values() for step in loaded.unread]
        self._stopped = self._stopped or StoppedStep.first(unread, error)

    @in_turn
    def close(self) -> None:
        """Wait for what is under way and free the trainer's storage; the world stays."""
        if not self._closed and self._runtime.error is None:
            self._runtime.drain()
            self._await_saving()
            self._telling.tell()
            if self._module is not None and not self._broken and self._stopped is None:
                self._module.give(self._world, lambda: self._lasting("close"))
        self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        try:
            if self._module is not None:
                self._module.end(self._world, self._runtime)
        finally:
            self._memory.end()
            self._telling.forget()
            self._runtime.retire([loaded.replay for loaded in self._loaded.values()])
            self._loaded.clear()
            self._last, self._homes = None, None
            drop_weights(self._weights, self._runtime.memories)
