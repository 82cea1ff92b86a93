"""Expanded programs: the launches of a step whose operators take turns, under a plan that changes.

Where stages take turns with micro-batches, what comes when depends on the plan: which processors share a lane, which
operators are composed of others, what is computed again, which weights are read from working copies. Such a step is
taken from the expansion itself: its launches are those that the runtime would run, action by action of the same script.
A change expands again the actions that it touches; where it changes the script, all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from maniple.operators.lowering.composite import is_composite, lower_composites
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.operator_body import BackwardBinder, ForwardBinder
from maniple.operators.lowering.pipeline import flow_degrees
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.lowering.step_form import PASSES
from maniple.operators.lowering.step_program import Program as StepProgram
from maniple.operators.lowering.weight import Weight, scale_home, weights
from maniple.operators.lowering.working_copy import COPY, WorkingCopies
from maniple.operators.plan.pipeline_plan import stages_of
from maniple.operators.plan.version_semantics import optimizer_under
from maniple.operators.plan.weight_home import default_home, planned_home, turns_of
from maniple.operators.rules.task_placement import memory_by_processor
from maniple.operators.training import loss_scale
from maniple.process.error import RequestError
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH
from maniple.regions.columns.validity import ACCUMULATE, READ, READ_WRITE, REDUCE, WRITE_DISCARD
from maniple.runtime.analysis.placed_use import BOX, COLOR, POINT, PROCESSOR, PlacedUses, Placing
from maniple.runtime.program.region_table import RegionTable
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.simulation.home_boxes import HomeBoxes
from maniple.strategies.simulation.launch_table import LaunchTable, PlacedLaunch
from maniple.strategies.simulation.operator_placement import launch_rows
from maniple.strategies.simulation.plan_free_step import CLOCK, GROWTH, HYPER, MOST_PLACES, SCALE, SKIPPED, SQUARES
from maniple.strategies.simulation.region_cache import Use, boxes_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.flow.lived_run import LivedRun
    from maniple.operators.lowering.script import Script
    from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.columns.boxes import Boxes
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Privilege
    from maniple.runtime.analysis.fragment import Home
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch, Requirement
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.simulation.plan_free_step import RegionKey
    from maniple.strategies.simulation.region_cache import Shapes
    from maniple.strategies.timing.tables import Table

__all__: list[str] = []

Form = tuple["PipelineOrder | None", frozenset[str], frozenset[str], WorkingCopies, frozenset[object]]
"""What determines a script: order, what is composed and computed again, working copies, splits without a flush."""
LAUNCHES = 4
"""An action of a script has so many places, or so many for each stage that a loss goes by; none has more launches."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step as it is expanded.

    Args:
        form: what determines the script.
        expansion: gives its launches.
        script: what it does.
        stages: by action in turn the stage whose turn it is.
        actions: the places in the script of what must be expanded again, by what was changed: an operator of the
            lowered graph, or a weight whose home is another.
        launches: so many places an action has.
    """

    form: Form
    expansion: Expansion
    script: Script
    stages: Mapping[int, int]
    actions: Mapping[tuple[str, str], tuple[int, ...]]
    launches: int


@final
class ExpandedProgram:
    """The launches and the regions of a step.

    Args:
        graph: the graph.
        machine: the machine.
        plan: the plan to begin with.
        costs: what a task takes.
        optimizer: what updates the weights.
        shapes: where equal uses are found again.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        plan: Plan,
        costs: CostModel,
        optimizer: AbstractOptimizer,
        shapes: Shapes,
    ) -> None:
        self.graph, self.machine, self.costs = graph, machine, costs
        self.optimizer = optimizer_under(plan, optimizer, tuple(tensor.name for tensor in graph.parameters))
        self.table, self.shapes = LaunchTable(), shapes
        self._memory_of = memory_by_processor(machine)
        self._regions = RegionTable()
        held = weights(graph, plan, machine, self.optimizer, self._regions)
        self._made = {name: weight.regions for name, weight in held.items()}
        self._known: dict[int, LogicalRegion] = {region.id: region for made in self._made.values() for region in made}
        self._keys = self._lasting_keys()
        self._numbers = {key: region for region, key in self._keys.items()}
        self.homes: dict[str, HomeBoxes] = {}
        self._scale_home = HomeBoxes.of(scale_home(machine))
        self._turns = turns_of(graph, optimizer)
        self._precise = apply_semantics(graph, dict(plan.semantics))
        self._now: dict[str, Any] = {"plan": plan, "held": held, "lived": ({}, ()), "launches": {}}
        self._settle(dict(plan.weights))
        self._expand(plan, {name for name, _ in plan.operators}, set())

    def configure(self, operators: Mapping[str, OperatorPlan], weights: Mapping[str, WeightPlan] | None) -> None:
        """Give operators other configurations.

        Args:
            operators: by name.
            weights: by name, other homes; None: the default homes of the weights that the operators use.

        Raises:
            RequestError: its stages are then none of the pipeline, or wait for each other; nothing is changed.
        """
        try:
            self._configure(operators, weights)
        except RequestError:
            self.table.undo()
            raise

    def _configure(self, operators: Mapping[str, OperatorPlan], weights: Mapping[str, WeightPlan] | None) -> None:
        plan = self._now["plan"]
        plan = replace(plan, operators=tuple((name, operators.get(name, old)) for name, old in plan.operators))
        homes = self._default_homes(plan, operators) if weights is None else dict(weights)
        plan = replace(plan, weights=tuple((name, homes.get(name, old)) for name, old in plan.weights))
        moved = self._settle({name: home for name, home in homes.items() if home != self.homes[name].home.plan})
        self._expand(plan, set(operators), moved)

    def planned(self, plan: Plan) -> Plan:
        """A plan with the configurations as they are now."""
        now = self._now["plan"]
        return replace(plan, operators=now.operators, weights=now.weights)

    def held_of(self, key: RegionKey) -> Boxes | None:
        """Where a region lives that outlives the step, labelled by memory."""
        lived: Mapping[int, Home] = self._now["lived"][0]
        kind, _, number = key
        if (home := lived.get(self._numbers.get(key, -1))) is not None:
            return boxes_of([(memory, rect) for memory, rects in home for rect in rects])
        if kind == "scale":
            return self._scale_home.held
        return self.homes[self.graph.tensors[number].name].held if kind in {"value", "state"} else None

    def run(self) -> StepProgram | None:
        """The launches as the runtime lowers them, where there is no flush: how runs wait for those before."""
        step: _Step = self._now["step"]
        if step.script.lives is None:
            return None
        launches = [launch for _, made in sorted(self._now["launches"].items()) for launch in made]
        homes = {region.id: weight.home for weight in self._now["held"].values() for region in weight.regions}
        lived, rings = self._now["lived"]
        return StepProgram(tuple(launches), homes | lived, rings)

    def layout(self, key: RegionKey) -> tuple[tuple[int, ...], int]:
        """The shape of a region, and the bytes of an element."""
        region = self.region(key)
        return region.bounds.hi, region.itemsize

    def region(self, key: RegionKey) -> LogicalRegion:
        """A region of the runtime's."""
        return self._known[self._numbers[key]]

    def _lasting_keys(self) -> dict[int, RegionKey]:
        """The keys of the regions that outlive steps, by their numbers."""
        found: dict[int, RegionKey] = {}
        for name, (value, *states) in self._made.items():
            if name == loss_scale.NAME:
                found |= dict(zip([value.id, *(state.id for state in states)], (SCALE, GROWTH, SKIPPED), strict=True))
                continue
            tensor = self.graph.tensor(name).id
            found[value.id] = "value", -1, tensor
            found |= {state.id: ("state", number, tensor) for number, state in enumerate(states)}
        return found

    def _default_homes(self, plan: Plan, operators: Collection[str]) -> dict[str, WeightPlan]:
        """The default homes of the weights that some operators use, and of buffers that they only write."""
        lasting = {tensor.id: tensor.name for tensor in self.graph.lasting}
        read = {operand for node in self.graph.nodes for operand in node.operands}
        wanted: set[int] = set()
        for node in self.graph.nodes:
            if node.name in operators:
                wanted |= {operand for operand in node.operands if operand in lasting}
                written = {buffer for buffer, value in self.graph.assignments.items() if value in node.results}
                wanted |= written - read
        names, table = [lasting[tensor] for tensor in sorted(wanted)], dict(plan.operators)
        homes = {name: default_home(self.graph, table, name, self.machine, self._turns.get(name)) for name in names}
        olds = {name: plan.weight(name) for name in homes}
        return {name: replace(home, copy=olds[name].copy, sums=olds[name].sums) for name, home in homes.items()}

    def _settle(self, homes: Mapping[str, WeightPlan]) -> set[str]:
        """Give weights other homes; returns their names."""
        if homes:
            held = dict(self._now["held"])
            for name, home in homes.items():
                tensor = self.graph.tensor(name)
                found = HomeBoxes.of(planned_home(tensor.shape, home, self._memory_of))
                self.table.set(self.homes, name, found)
                held[name] = Weight.at(name, self._made[name], found.home)
                for region in self._made[name]:
                    self.table.touched[self._keys[region.id]] = None
            self.table.set(self._now, "held", held)
        return set(homes)

    def _expand(self, plan: Plan, operators: Collection[str], moved: Collection[str]) -> None:
        """Expand again what a plan changes: operators of other configurations, and weights of other homes."""
        composed = {name for name, config in plan.operators if is_composite(self._precise, plan, name, config)}
        again = {name for name, config in plan.operators if config.recompute}
        copies, split = WorkingCopies.of(self.graph, plan), frozenset[object](flow_degrees(plan).items())
        form = plan.order(self.graph), frozenset(composed), frozenset(again), copies, split
        step: _Step | None = self._now.get("step")
        # Of a composed operator, its primitives have other configurations.
        lowered = lower_composites(self._precise, plan, training=True)[1] if composed else plan
        if step is None or step.form != form or not step.expansion.replan(lowered, self._now["held"]):
            step = self._begin(plan, form)
            for place in list(self.table.launches):
                self.table.put(place, None)
            places: Iterable[int] = range(len(step.script.actions))
        else:
            before = dict(self._now["lowered"].operators)
            other = [name for name, config in lowered.operators if config != before[name]]
            self.table.set(self._now, "lowered", lowered)
            keys = [("operator", name) for name in other] + [("weight", name) for name in sorted(moved)]
            places = sorted({place for key in keys for place in step.actions.get(key, ())})
        self.table.set(self._now, "plan", plan)
        placing, every = Placing(self.machine), dict(self._now["launches"])
        for place in places:
            action = step.script.actions[place]
            launches = every[place] = step.expansion.launches_of(action, step.script, self.optimizer)
            turn = step.stages.get(place, 0), action.kind, max(action.part, 0)
            for number in range(step.launches):
                made = self._placed(launches[number], turn, placing) if number < len(launches) else None
                self.table.put(place * step.launches + number, made)
        if step.expansion.run is not None:
            self._live(step.expansion.run, every)

    def _live(self, run: LivedRun, launches: dict[int, tuple[Launch, ...]]) -> None:
        """Settle what outlives a run without a flush, and where; launches are by the place of their action."""
        held = {name: weight.home for name, weight in self._now["held"].items()}
        homes, rings = run.homes([launch for _, made in sorted(launches.items()) for launch in made], held)
        before: Mapping[int, Home] = self._now["lived"][0]
        for number in {*homes, *before}:
            if homes.get(number) != before.get(number) and number in self._keys:
                self.table.touched[self._keys[number]] = None
        self.table.set(self._now, "launches", launches)
        self.table.set(self._now, "lived", (homes, rings))

    def _begin(self, plan: Plan, form: Form) -> _Step:
        """A step as another script has it."""
        expansion = Expansion(self.graph, plan, self.machine, self._now["held"], self._regions)
        script = expansion.training_script(self.optimizer)
        width = LAUNCHES if script.lives is None else LAUNCHES * script.lives.count
        if len(script.actions) > MOST_PLACES // width:
            raise RequestError(
                f"simulation: expected a step of at most {MOST_PLACES // width} actions, got {len(script.actions)}: "
                "operators times micro-batches; choose fewer micro-batches"
            )
        stages = stages_of(expansion.plan.stages, [node.name for node in script.nodes])
        staged = {node.id: stages[node.name] for node in script.nodes}
        causes = _actions_by_cause(expansion.graph, script)
        step = _Step(form, expansion, script, _stages(script, staged), causes, width)
        self.table.set(self._now, "step", step)
        self.table.set(self._now, "lowered", expansion.plan)
        return step

    def _placed(self, launch: Launch, turn: tuple[int, str, int], placing: Placing) -> PlacedLaunch:
        """A launch with its rows, and its uses as arrays."""
        rows = launch_rows(LaunchTasks.of(launch), self.costs)
        binder, roles = launch.binder, [""] * len(launch.requirements)
        if isinstance(binder, ForwardBinder | BackwardBinder):
            roles = [role for role, _ in binder.slots]
        uses = tuple(
            (self._key(need.region, role), self._use(launch, need, placing))
            for need, role in zip(launch.requirements, roles, strict=True)
        )
        return PlacedLaunch(launch.name, rows, uses, turn if launch.in_turn else None)

    def _use(self, launch: Launch, need: Requirement, placing: Placing) -> Use:
        placed = PlacedUses.of(placing.uses(launch, need))
        if placed is None:
            raise RequestError(f"simulation: {launch.name} uses {need.region.name} otherwise than in boxes")
        table, axes = placed.table, need.region.bounds.ndim
        shape = self.shapes.shape(_access(need.privilege), table[:, POINT], table[:, COLOR], _boxes(table, axes))
        where = np.ascontiguousarray(table[:, PROCESSOR])
        return Use(shape, where, (shape.number, where.tobytes()))

    def _key(self, region: LogicalRegion, role: str) -> RegionKey:
        """What a region is called in the tables: as in steps without turns, where `kind` tells what it is for."""
        if region.id not in self._keys:
            self._keys[region.id] = ("saved", 0, region.id) if role == "saved" else self._new_key(region)
            self._numbers[self._keys[region.id]] = region.id
            self._known[region.id] = region
        return self._keys[region.id]

    def _new_key(self, region: LogicalRegion) -> RegionKey:
        known = {"clock": CLOCK, "hyper": HYPER, "squares": SQUARES}
        owner = region.name.removesuffix(".grad")
        if owner in self._made and owner != region.name:
            return "gradient", -1, self.graph.tensor(owner).id
        owner, copied, _ = region.name.rpartition(f".{COPY}")
        if copied and owner in self._made:
            return "copy", region.id, self.graph.tensor(owner).id
        return known.get(region.name, ("tile", 0, region.id))


def _stages(script: Script, staged: Mapping[int, int]) -> dict[int, int]:
    """By place in the script the stage of a pass; of what comes for one, a copy or an input, its; else the last's."""
    found: dict[int, int] = {}
    stage = 0
    for place, (kind, number, *_) in enumerate(script.actions):
        stage = found[place] = staged[number] if kind in PASSES else stage
    for place in reversed(range(len(script.actions))):
        kind = script.actions[place].kind
        stage = found[place] = stage if kind in {"copy", "input"} else found[place]
    return found


def _actions_by_cause(graph: Graph, script: Script) -> dict[tuple[str, str], tuple[int, ...]]:
    """What of a script must be expanded again when an operator is placed otherwise, or a weight lives elsewhere."""
    found: dict[tuple[str, str], list[int]] = {}
    tensors, nodes = graph.tensors, graph.nodes
    readers: dict[int, list[str]] = {}
    for node in script.nodes:
        for operand in node.operands:
            readers.setdefault(-1 if operand is None else operand, []).append(node.name)
    drawing = [node.name for node in script.nodes if node.operator.random]
    trained = [tensors[action.number].name for action in script.actions if action.kind == "update"]
    for place, (kind, number, *_) in enumerate(script.actions):
        causes: list[tuple[str, str]]
        if kind in {"input", "clock"}:
            causes = [("operator", name) for name in (drawing if kind == "clock" else readers.get(number, []))]
        elif kind == "hyper":
            causes = [("weight", name) for name in trained]
        elif kind in {"update", "norm", "assign", "cast", "copy", "sum", "predict"}:
            causes = [("weight", tensors[number].name)]
        else:
            causes = [("operator", nodes[number].name)] if kind not in {"fetch", "rescale"} else []
        for cause in causes:
            found.setdefault(cause, []).append(place)
    return {cause: tuple(places) for cause, places in found.items()}


def _access(privilege: Privilege) -> int:
    """A privilege as the compiled analysis knows it."""
    if privilege.reduces:
        return ACCUMULATE if privilege.accumulates else REDUCE
    if privilege.writes:
        return READ_WRITE if privilege.reads else WRITE_DISCARD
    return READ


def _boxes(table: Table, axes: int) -> Table:
    """The boxes of placed uses, without a label."""
    if axes > AXES:
        raise RequestError(f"simulation: expected regions of at most {AXES} dimensions, got one of {axes}")
    found = np.zeros((len(table), WIDTH), dtype=np.int64)
    found[:, HIGH:] = 1
    found[:, LOW : LOW + axes] = table[:, BOX : BOX + axes]
    found[:, HIGH : HIGH + axes] = table[:, BOX + axes : BOX + 2 * axes]
    return found
