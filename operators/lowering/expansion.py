"""Expansion: a graph and a plan become the launches of a training step, of an evaluation, or of a fetch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from maniple.operators.lowering.arrival.arrival_launch import arrival_launch
from maniple.operators.lowering.arrival.input_parts import InputParts
from maniple.operators.lowering.composite import lower_composites
from maniple.operators.lowering.flow.lived_run import LivedRun
from maniple.operators.lowering.fusion.chained_graph import chained
from maniple.operators.lowering.fusion.fused_launch import fused_at_home, home_users
from maniple.operators.lowering.micro_batch import ALL
from maniple.operators.lowering.operator_body import FetchBinder
from maniple.operators.lowering.operator_launch import (
    assign_launch,
    copy_launch,
    launch_pattern,
    norm_launch,
    rescale_launch,
    state_copies,
    sum_launch,
    update_launch,
)
from maniple.operators.lowering.passed_gradient import passed_gradients
from maniple.operators.lowering.pipeline import pipeline_of
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.lowering.script import evaluation_script, fetch_script, training_script
from maniple.operators.lowering.step_program import Port, Program
from maniple.operators.lowering.step_regions import StepRegions
from maniple.operators.lowering.view_group import step_targets
from maniple.operators.lowering.viewed_launch import TurnedViews, ViewedLaunches, lowered_groups
from maniple.operators.lowering.weight import Weight, weights
from maniple.operators.lowering.working_copy import COPY, PART, WorkingCopies
from maniple.operators.rules.task_placement import PlacedTasks, memory_by_processor, place_tasks
from maniple.operators.training import loss_scale
from maniple.regions.privilege import READ
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.lowering.launch_form import LaunchForm
    from maniple.operators.lowering.operator_launch import LaunchPattern
    from maniple.operators.lowering.passed_gradient import Passed
    from maniple.operators.lowering.pipeline import Pipeline
    from maniple.operators.lowering.script import Action, Script
    from maniple.operators.lowering.view_group import ViewGroup
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


def training_step(
    graph: Graph, plan: Plan, machine: Machine, optimizer: AbstractOptimizer, *, views: bool = True
) -> Program:
    """Expand a training step by itself: regions of its own hold the parameters and buffers.

    Args:
        graph: the graph.
        plan: the plan.
        machine: the machine.
        optimizer: what updates the weights.
        views: whether operators that compute nothing need no task where their results can be used where they lie, and
            updates of one operator's weights are one task.
    """
    table = RegionTable()
    held = weights(graph, plan, machine, optimizer, table)
    return Expansion(graph, plan, machine, held, table, views=views).training_step(optimizer)


def elided_views(graph: Graph, plan: Plan, machine: Machine, optimizer: AbstractOptimizer) -> tuple[str, ...]:
    """The operators that have no task in a training step, for what they give is used where their operand lies."""
    table = RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, optimizer, table), table)
    expansion.training_step(optimizer)
    return expansion.elided


@dataclass
class Expansion:
    """Expands a graph under a plan into launches.

    Args:
        graph: the graph.
        plan: a configuration for every operator and weight of it.
        machine: the machine; every rank of it gets the results.
        held: the regions of the parameters and buffers, by name.
        table: makes the other regions.
        inputs: the ports through which inputs enter, by micro-batch; of one that is not kept apart there is one.
        results: the ports through which results leave.
        clock: the port through which the seed and the number of the step enter, where an operator draws numbers.
        hyper: the port through which the numbers of the updates enter, where they may be others in each step.
        checked: whether an operator that gives a NaN stops the step.
        views: see ``training_step``.
        compiled: whether neighbours that the plan maps alike are chains, which torch compiles.
    """

    graph: Graph
    plan: Plan
    machine: Machine
    held: Mapping[str, Weight]
    table: RegionTable
    inputs: dict[str, dict[int, Port]] = field(default_factory=dict)
    results: dict[str, Port] = field(default_factory=dict)
    clock: Port | None = None
    hyper: Port | None = None
    checked: bool = False
    views: bool = True
    compiled: bool = False

    def __post_init__(self) -> None:
        self._tensors = self.graph.tensors
        self._regions = StepRegions(self.graph, self.held, self.table)
        self._pipeline: Pipeline | None = None
        self._working = WorkingCopies.of(self.graph, self.plan)
        self.run: LivedRun | None = None
        """What outlives runs, where there is no flush."""
        self._memory_of = memory_by_processor(self.machine)
        self._placed: dict[tuple[int, int], PlacedTasks] = {}
        self._patterns: dict[tuple[str, int, int], LaunchPattern] = {}
        self._arriving = InputParts(self.machine, self._regions.parts, self._place)
        self._first: dict[tuple[str, int], int] = {}
        self._launches: list[Launch] = []
        self._forms: dict[int, LaunchForm] = {}
        self._groups: tuple[ViewGroup, ...] = ()
        self._users: dict[str, tuple[int, ...]] = {}
        self._passed: Passed = {}
        self.elided: tuple[str, ...] = ()
        """The operators that have no task, for what they give can be used where their operand lies."""
        self._turned: TurnedViews | None = None

    def training_step(self, optimizer: AbstractOptimizer) -> Program:
        """Expand one step; the loss goes to every rank."""
        return self._walk(self.training_script(optimizer), optimizer)

    def training_script(self, optimizer: AbstractOptimizer) -> Script:
        """Say what one step does; from then on the graph and the plan are those that are lowered."""
        self._lower(training=True)
        script = training_script(self.graph, optimizer, self._pipeline, self._passed, self._working)
        if script.lives is not None:
            self.run = LivedRun(self.graph, self.plan, self.machine, self._regions, script.lives, self.table)
        elif self.views and self._pipeline is not None and not self._pipeline.recomputed:
            self._turned = TurnedViews(self._groups, script, self._regions, self._place)
            self.elided = tuple([self.graph.nodes[node].name for node in sorted(self._turned.nodes)])
        return script

    def launches_of(self, action: Action, script: Script, optimizer: AbstractOptimizer) -> tuple[Launch, ...]:
        """Give the launches of one action of a training step, as the plan is now.

        Args:
            action: of the script.
            script: as `training_script` gave it.
            optimizer: what updates the weights.
        """
        self._expand(action, script, optimizer)
        found, self._launches = tuple(self._launches), []
        self._forms.clear()
        return found

    def replan(self, plan: Plan, held: Mapping[str, Weight]) -> bool:
        """Go on with other configurations and homes, under which the script is the same; whether views are, too.

        Args:
            plan: of the lowered graph.
            held: the weights, of the same regions.
        """
        other = {name for (name, new), (_, old) in zip(plan.operators, self.plan.operators, strict=True) if new != old}
        for node, part in [key for key in self._placed if self.graph.nodes[key[0]].name in other]:
            del self._placed[node, part]
        for key in [key for key in self._patterns if self.graph.nodes[key[1]].name in other]:
            del self._patterns[key]
        self._arriving = InputParts(self.machine, self._regions.parts, self._place)
        self.plan, self.held = plan, held
        return self._turned is None or self._turned.holds()

    def evaluation(self) -> Program:
        """Expand the forward pass of what the outputs need, and bring the outputs whole to every rank."""
        self._lower(training=False)
        return self._walk(evaluation_script(self.graph, self._working), None)

    def fetch_weights(self) -> Program:
        """Expand the fetch of every parameter and buffer, whole, to every rank."""
        return self._walk(fetch_script(self.graph, self._working), None)

    def fetch_states(self) -> Program:
        """Expand the fetch of what the optimizer keeps of every parameter, whole, to every rank.

        State that lives in blocks is gathered in a copy for the time, one after the other: what lasts stays as it is.
        """
        for whole, launches in state_copies(self.held.values(), self.table):
            self._launches += launches
            self._fetch(whole.name.removesuffix(".copy"), whole, in_turn=True)
        return self._program()

    def _lower(self, *, training: bool) -> None:
        """Give values the plan's precision, and replace the operators whose split needs an exchange inside them.

        A training step takes the plan's turns.
        """
        order = self.plan.order(self.graph) if training else None
        graph = apply_semantics(self.graph, dict(self.plan.semantics))
        graph, self.plan = chained(graph, self.plan) if self.compiled else (graph, self.plan)
        self._users = home_users(graph)
        self.graph, self.plan = lower_composites(graph, self.plan, training=training)
        if training:
            passed = passed_gradients(graph).items()
            self._passed = {self.graph.node(graph.nodes[node].name).id: places for node, places in passed}
        self._groups = tuple(lowered_groups(graph, self.graph, step_targets(graph, training=training)))
        self._tensors, self._working = self.graph.tensors, WorkingCopies.of(self.graph, self.plan)
        self._pipeline = pipeline_of(order, self.graph, self.plan) if training else None
        parts = None if self._pipeline is None else self._pipeline.parts
        self._regions = StepRegions(self.graph, self.held, self.table, parts)
        self._patterns, self._arriving = {}, InputParts(self.machine, self._regions.parts, self._place)
        self._turned = None

    def _walk(self, script: Script, optimizer: AbstractOptimizer | None) -> Program:
        """Expand what a script says; of what is trained, an optimizer updates the weights."""
        for action in script.actions:
            self._expand(action, script, optimizer)
        if self.views and not script.in_turn:
            forms = [self._forms.get(place) for place in range(len(self._launches))]
            found = ViewedLaunches(self._launches, forms, self._groups, self._regions)
            users = {self.held[name].value.id: operators for name, operators in self._users.items()}
            self._launches = list(fused_at_home(found.launches, users))
            self.elided = tuple([self.graph.nodes[node].name for group in found.elided for node in group.nodes])
        return self._program()

    def _expand(self, action: Action, script: Script, optimizer: AbstractOptimizer | None) -> None:
        """Add the launches of one action."""
        kind, number, port, part = action
        if self.run is not None and kind in {"fetch", "predict", "update"} and optimizer is not None:
            weight = None if kind == "fetch" else self.held[self._tensors[number].name]
            if weight is None:
                self._launches += self.run.relays(port, number, self.results)
            elif kind == "predict":
                self._launches.append(self.run.predict(weight, number, port, optimizer))
            else:
                self._launches.append(self.run.update(weight, number, optimizer))
        elif kind == "input":
            self._input(self._tensors[number], script.nodes, part)
        elif kind == "clock":
            self._tick([node for node in script.nodes if node.operator.random])
        elif kind == "hyper" and optimizer is not None:
            self._enter(optimizer, script)
        elif kind == "fetch":
            role = COPY if number in self._working.lives else "value"
            self._fetch(port, self._regions.region((role, number)), in_turn=script.in_turn and optimizer is None)
        elif kind in {"cast", "copy", "sum", "norm", "update", "rescale"}:
            self._act_on_weight(action, script, optimizer)
        elif kind == "assign":
            self._assign(number)
        else:
            self._pass(action, script, training=optimizer is not None)

    def _assign(self, number: int) -> None:
        """Give a buffer its next value."""
        given, buffer = self.graph.assignments[number], self.held[self._tensors[number].name]
        value, lag = (self._regions.value(given), 0) if self.run is None else self.run.given(number)
        self._launches.append(replace(assign_launch(buffer, value), lag=lag))

    def _act_on_weight(self, action: Action, script: Script, optimizer: AbstractOptimizer | None) -> None:
        """Expand what is done with a parameter at its home, or with the scale of the loss.

        Args:
            action: of the script.
            script: what is expanded.
            optimizer: of what is trained.
        """
        kind, number, port, part = action
        regions, weight = self._regions, self.held[loss_scale.NAME if kind == "rescale" else self._tensors[number].name]
        turns = self._working.lives.get(number) == "pass"
        if kind in {"cast", "copy"}:
            copy, turns = regions.region((port, number), part), script.in_turn and number in self._working.lives
            name = f"{weight.name}.cast" if kind == "cast" else copy.name
            self._launches.append(copy_launch(weight, copy, name, in_turn=turns))
        elif kind == "sum":
            one, total = regions.region((PART, number), part), regions.gradient(number)
            self._launches.append(sum_launch(weight, one, total, first=bool(port), in_turn=turns))
        elif optimizer is not None and kind == "update":
            whole, gradient = regions.numbers(optimizer), regions.gradient(number)
            made = weight, gradient, optimizer, weight.name, whole, regions.scratchpads
            self._launches.append(update_launch(*made, in_turn=turns))
        elif optimizer is not None and (squares := regions.squares(optimizer)) is not None:
            if kind == "rescale":
                self._launches.append(rescale_launch(weight, squares, optimizer))
            else:
                self._launches.append(norm_launch(weight, regions.gradient(number), squares, in_turn=turns))

    def _program(self) -> Program:
        homes = {region.id: weight.home for weight in self.held.values() for region in weight.regions}
        launches = tuple(self._launches)
        if self.run is None:
            return Program(launches, homes)
        lived, rings = self.run.homes(launches, {name: weight.home for name, weight in self.held.items()})
        return Program(launches, homes | lived, rings)

    def _place(self, node: Node, part: int) -> PlacedTasks:
        if (node.id, part) not in self._placed:
            config, within = self.plan.operator(node.name), self._regions.parts.within(node, part)
            self._placed[node.id, part] = place_tasks(self.graph.bound(node), config, self._memory_of, within)
        return self._placed[node.id, part]

    def _pass(self, action: Action, script: Script, *, training: bool) -> None:
        """Add the launches of a pass of an operator."""
        kind, part, node, made = action.kind, action.part, self.graph.nodes[action.number], len(self._launches)
        for form in script.forms.of(kind, node):
            self._operate(form, part, script, training=training)
        if self.run is not None:
            self._launches += list(self.run.settled(node, kind, part, self._launches[made:]))

    def _operate(self, form: LaunchForm, part: int, script: Script, *, training: bool) -> None:
        node, parts = form.node, self._regions.parts
        if self._turned is not None and node.id in self._turned.nodes:
            return
        begins = part if self.run is None else min(part, 0)
        first = self._first.setdefault((form.part, node.id), begins) == part
        self._forms[len(self._launches)] = form
        key = form.part, node.id, parts.like(node, part)
        # What outlives a run is of other regions for each micro-batch, so that none is the pattern of another.
        pattern = self._patterns.get(key) if self.run is None else None
        if pattern is None:
            pattern = launch_pattern(
                self.graph,
                form,
                self._place(node, part),
                self._regions if self.run is None else self.run.of(node, form.direction, part),
                script.backward.shared,
                part=part,
                training=training,
                checked=self.checked,
                in_turn=script.in_turn and (part != ALL or parts.count == 1),
            )
            pattern = self._patterns[key] = pattern if self._turned is None else self._turned.look(pattern, part)
        launch = pattern.of(part, self._regions, lambda: self._place(node, part).table, first=first)
        lag = 0 if self.run is None else self.run.lag(node, form.direction, part)
        self._launches.append(replace(launch, lag=lag) if lag else launch)

    def _input(self, tensor: TensorInfo, nodes: Sequence[Node], part: int) -> None:
        """Launch the arrival of one input, or of what a micro-batch has of it, which comes in turn with its readers."""
        parts, readers = self._arriving.of(tensor, nodes, part)
        if not parts:
            return
        ports = self.inputs.setdefault(tensor.name, {})
        ref, name = ("value", tensor.id), f"{tensor.name}.input"
        region, lag = (self._regions.region(ref, part), 0) if self.run is None else self.run.arrival(ref, part)
        if part == ALL:
            ports[part] = self._arrival(name, region, parts, lag=lag)
        else:
            start = self._arriving.start(tensor, part)
            ports[part] = self._arrival(f"{name}#{part}", region, parts, readers, start, lag)

    def _tick(self, nodes: Sequence[Node]) -> None:
        """Launch the arrival of the clock wherever a task draws random numbers."""
        region = self._regions.clock if self.run is None else self.run.youngest(("clock", 0))
        parts = self._regions.parts
        placed = [self._place(node, part) for node in nodes for part in parts.ends(node)]
        memories = {self.machine.memory_of(point.processor) for tasks in placed for point in tasks.points}
        if memories:
            self.clock = self._arrival("clock.input", region, dict.fromkeys(memories, region.bounds))

    def _enter(self, optimizer: AbstractOptimizer, script: Script) -> None:
        """Launch the arrival of the numbers of the updates wherever a parameter lives."""
        region = self._regions.hyper(optimizer)
        if self.run is not None and region is not None:
            region = self.run.numbers(optimizer)[0]
        trained = [self.held[self._tensors[number].name] for kind, number, *_ in script.actions if kind == "update"]
        memories = {self.machine.memory_of(point.processor) for weight in trained for point in weight.points}
        if region is not None and memories:
            self.hyper = self._arrival("hyper.input", region, dict.fromkeys(memories, region.bounds))

    def _arrival(
        self,
        name: str,
        region: LogicalRegion,
        parts: Mapping[int, Rect],
        readers: Mapping[int, int] | None = None,
        start: Sequence[int] = (),
        lag: int = 0,
    ) -> Port:
        """Launch the arrival of a value that the program brings; see ``arrival_launch``."""
        launch, port = arrival_launch(self.machine, name, region, parts, readers, start, lag)
        self._launches.append(launch)
        return port

    def _fetch(self, name: str, region: LogicalRegion, *, in_turn: bool = False) -> None:
        """Bring a region whole to every rank and hand it to the port of that name."""
        ranks = {memory.rank: memory.id for memory in reversed(self.machine.memories)}
        port = self.results[name] = Port(tuple(ranks[rank] for rank in sorted(ranks)))
        points = tuple(Point((n,), self.machine.processors_of(memory)[0]) for n, memory in enumerate(port.memories))
        requirement, body = Requirement(region, READ, (region.bounds,) * len(points)), FetchBinder(port)
        self._launches.append(Launch(f"{name}.fetch", points, (requirement,), body, in_turn=in_turn, port="out"))
