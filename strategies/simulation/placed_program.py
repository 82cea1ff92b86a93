"""Programs: the launches of a training step and the regions that they use, under a plan that changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import numpy as np

from maniple.operators.lowering.fusion.fused_launch import alike
from maniple.operators.lowering.weight import scale_home
from maniple.operators.plan.weight_home import home_among, planned_home, turns_of, users_of
from maniple.operators.rules.task_placement import memory_by_processor
from maniple.process.error import RequestError
from maniple.regions.columns.boxes import hulls
from maniple.regions.columns.validity import READ, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.strategies.simulation.at_home.home_launch import HomeLaunches, Passing
from maniple.strategies.simulation.bare_launch import bare_launch, numbered, replicas
from maniple.strategies.simulation.home_boxes import HomeBoxes
from maniple.strategies.simulation.launch_table import REQUIREMENT_BITS, LaunchTable, PlacedLaunch
from maniple.strategies.simulation.operator_placement import operator_placement
from maniple.strategies.simulation.operator_split import split_operator
from maniple.strategies.simulation.plan_free_step import CLOCK, HYPER
from maniple.strategies.simulation.region_cache import boxes_of
from maniple.strategies.simulation.simulated_views import SimulatedViews

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.operators.rules.rule import Shape
    from maniple.regions.columns.boxes import Boxes
    from maniple.regions.logical_region import LogicalRegion
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.simulation.operator_placement import OperatorPlacement
    from maniple.strategies.simulation.operator_split import OperatorSplit
    from maniple.strategies.simulation.plan_free_step import PlanFreeStep, RegionKey
    from maniple.strategies.simulation.region_cache import Shapes

__all__: list[str] = []

Arguments = TypeVarTuple("Arguments")
Made = TypeVar("Made")
KEPT = 20_000
"""So many splits, placements or homes are kept to be found again, and then forgotten together."""


class Program:
    """The launches and the regions of a step.

    Args:
        plan_free: what the plan does not change.
        plan: the plan to begin with.
        costs: what a task takes.
        shapes: where equal uses are found again.
    """

    def __init__(self, plan_free: PlanFreeStep, plan: Plan, costs: CostModel, shapes: Shapes) -> None:
        self.plan_free, self.costs, self.shapes = plan_free, costs, shapes
        machine = plan_free.machine
        self._memory_of = memory_by_processor(machine)
        self._turns = turns_of(plan_free.graph, plan_free.optimizer)
        self._ports = np.asarray([machine.processors_of(memory.id)[0] for memory in machine.memories], dtype=np.int64)
        self.table = LaunchTable()
        """Its launches."""
        self.operators: dict[int, OperatorPlan] = {}
        self.homes: dict[int, HomeBoxes] = {}
        self.forms: dict[int, OperatorForm] = {}
        self.views = SimulatedViews(plan_free, self.shapes)
        self._homes = HomeLaunches(plan_free, self.forms, self.shapes, costs)
        self._slots: dict[int, dict[int, Any]] = {}
        self._updates: dict[int, int] = {}
        self._kept: dict[Any, Any] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for node in plan_free.nodes:
            for place, operand in enumerate(node.operands):
                if operand is not None:
                    self._readers.setdefault(operand, []).append((node.id, place))
        self._written: dict[int, list[int]] = {}
        """By operator the buffers that nothing reads whose next values it computes."""
        for buffer, value in plan_free.assignments.items():
            if buffer not in self._readers and value in plan_free.producer:
                self._written.setdefault(plan_free.producer[value], []).append(buffer)
        self._fetched = plan_free.places["fetch", plan_free.loss]
        self._first = min(place for (kind, _), place in plan_free.places.items() if kind == "forward")
        self.change(
            {plan_free.number[name]: config for name, config in plan.operators},
            {plan_free.graph.tensor(name).id: home for name, home in plan.weights},
        )
        self._fetch()
        self.scale_home: HomeBoxes | None = None
        """Where the scale of the loss lives, if it is scaled; no change of a plan changes that."""
        if plan_free.scaled:
            self.scale_home = HomeBoxes.of(scale_home(machine))
            self.table.put(plan_free.places["rescale", 0], self._homes.rescale(self.scale_home))

    def change(self, operators: Mapping[int, OperatorPlan], weights: Mapping[int, WeightPlan] | None) -> None:
        """Give operators other configurations.

        Args:
            operators: by number.
            weights: by tensor, other homes; None: the default homes of the weights that the operators use.
        """
        plan_free = self.plan_free
        reads: dict[int, None] = {}
        draws = False
        for number, config in operators.items():
            self.table.set(self.operators, number, config)
            reads.update((operand, None) for operand in plan_free.nodes[number].operands if operand is not None)
            draws |= plan_free.nodes[number].operator.random
        needed = [number for number in operators if number in plan_free.needed]
        moved = dict.fromkeys(tensor for number in needed for tensor in self._place(number, operators[number]))
        for place, launch in self.views.seen(self.table, needed):
            self.table.put(place, launch)
        if weights is None:
            lasting = [tensor for tensor in reads if plan_free.tensors[tensor].lasting]
            lasting += [buffer for number in operators for buffer in self._written.get(number, ())]
            for tensor in lasting:
                moved |= self._settle_in(tensor, self._default_home(tensor))
        else:
            for tensor, home in weights.items():
                if home.copy != "kept":
                    name = plan_free.tensors[tensor].name
                    raise RequestError(
                        f"simulation: {name}: expected a home whose copies are kept, as all of the plan are that it "
                        f"began with, got copy {home.copy!r}; make another simulation, of a plan with working copies"
                    )
                moved |= self._settle_in(tensor, self._find(self._home, plan_free.tensors[tensor].shape, home))
        self._follow(moved)
        for info in plan_free.graph.inputs:
            if info.id in reads:
                self._arrive(plan_free.places["input", info.id], f"{info.name}.input", ("value", -1, info.id))
        if draws:
            self._arrive(plan_free.places["clock", 0], "clock.input", CLOCK)
        if plan_free.optimizer.enters:
            self._arrive(plan_free.places["hyper", 0], "hyper.input", HYPER)

    def configure(self, operators: Mapping[str, OperatorPlan], weights: Mapping[str, WeightPlan] | None) -> None:
        """The same as `change`, by names."""
        number, graph = self.plan_free.number, self.plan_free.graph
        homes = None if weights is None else {graph.tensor(name).id: home for name, home in weights.items()}
        self.change({number[name]: config for name, config in operators.items()}, homes)

    def planned(self, plan: Plan) -> Plan:
        """A plan with the configurations as they are now."""
        number, graph = self.plan_free.number, self.plan_free.graph
        return replace(
            plan,
            operators=tuple((name, self.operators[number[name]]) for name, _ in plan.operators),
            weights=tuple((name, self.homes[graph.tensor(name).id].home.plan) for name, _ in plan.weights),
        )

    def held_of(self, key: RegionKey) -> Boxes | None:
        """Where a region lives that outlives the step, labelled by memory."""
        kind, number, tensor = key
        lasts = kind == "state" or (kind == "value" and number < 0)
        home = self.scale_home if kind == "scale" else self.homes.get(tensor) if lasts else None
        return None if home is None else home.held

    def run(self) -> None:
        """No run has to do with those before it: all have a flush."""

    def layout(self, key: RegionKey) -> tuple[tuple[int, ...], int]:
        """The shape of a region, and the bytes of an element."""
        return self.plan_free.layout(key, self.forms)

    def region(self, key: RegionKey) -> LogicalRegion:
        """A region as the runtime would make it."""
        return self.plan_free.region(key, self.forms)

    def _place(self, number: int, config: OperatorPlan) -> Iterable[int]:
        """Set the launches of an operator, and the places of the updates that follow its backward pass.

        Returns:
            The weights whose update, or norm, has another place.
        """
        plan_free = self.plan_free
        degrees = dict(config.degrees)
        form = plan_free.form(number, degrees)
        placement = self._find(self._placement, plan_free.kind[number], form, config)
        slots = self._find(self._own_slots, number, form)
        if self.forms.get(number) is not form:
            for place in self._slots.get(number, {}):
                if place not in slots:
                    self.table.put(place, None)
            self.table.set(self.forms, number, form)
            self.table.set(self._slots, number, slots)
        launches = [*placement.forward, *placement.backward]
        own: dict[int, PlacedLaunch] = {}
        moved = {w: at for at, (w, _, keys) in slots.items() if keys is None and self._updates.get(w) != at}
        for which, place in moved.items():
            self.table.set(self._updates, which, place)
        for place, (which, name, keys) in slots.items():
            if keys is None:
                continue
            launch = launches[which]
            uses = tuple((key, use) for key, (_, use) in zip(keys, launch.uses, strict=True))
            own[place] = PlacedLaunch(name, launch.rows, uses)
        self.table.set(self.views.placed, number, own)
        return moved

    def _own_slots(self, number: int, form: OperatorForm) -> dict[int, tuple[int, str, list[RegionKey] | None]]:
        """The launches of an operator by place: (which, name, regions); or (tensor, "", None) for an update."""
        plan_free = self.plan_free
        node = plan_free.nodes[number]
        slots: dict[int, tuple[int, str, list[RegionKey] | None]] = {}
        launches = [*form.forward, *(launch for launch, _ in form.backward)]
        place = plan_free.places["forward", number]
        for which, launch in enumerate(launches):
            if which == len(form.forward):
                place = plan_free.places["backward", number]
            name = form.name_for(launch.name, node.name)
            keys = [plan_free.key(number, form, requirement.region) for requirement in launch.requirements]
            slots[place] = which, name, keys
            place += 1
            if which >= len(form.forward):
                for operand in form.backward[which - len(form.forward)][1]:
                    tensor = node.operands[operand]
                    if tensor is not None and plan_free.finisher.get(tensor) == number:
                        slots[place] = tensor, "", None
                        place += 1
        return slots

    def _find(self, make: Callable[[*Arguments], Made], *arguments: *Arguments) -> Made:
        """What `make` gives for arguments, kept while there is room."""
        key = make, arguments
        if key not in self._kept:
            if len(self._kept) > KEPT:
                self._kept.clear()
            self._kept[key] = make(*arguments)
        made: Made = self._kept[key]
        return made

    def _placement(self, kind: int, form: OperatorForm, config: OperatorPlan) -> OperatorPlacement:
        del kind
        split = self._find(self._split, form, config.degrees)
        return operator_placement(split, config, self._memory_of, self.costs, self.shapes)

    def _split(self, form: OperatorForm, degrees: tuple[tuple[str, int], ...]) -> OperatorSplit:
        return split_operator(form, dict(degrees), self.shapes)

    def _settle_in(self, tensor: int, home: HomeBoxes) -> dict[int, None]:
        """Set the home of a weight; gives it if it is another."""
        old, plan_free = self.homes.get(tensor), self.plan_free
        if old is home:
            return {}
        self.table.set(self.homes, tensor, home)
        self.table.touched["value", -1, tensor] = None
        states = plan_free.own(tensor).states if plan_free.tensors[tensor].requires_grad else ()
        for state in range(len(states)):
            self.table.touched["state", state, tensor] = None
        if tensor in plan_free.halves:
            self.table.put(plan_free.places["cast", tensor], self._find(self._homes.cast, tensor, home))
        return {tensor: None}

    def _follow(self, moved: Iterable[int]) -> None:
        """Set the launches at the homes of weights and buffers, and of those that are one launch with theirs."""
        plan_free, done = self.plan_free, set[int]()
        for tensor in moved:
            if tensor in self._updates and plan_free.follows == "norm" and tensor in self.homes:
                form = self.forms[plan_free.finisher[tensor]]
                self.table.put(self._updates[tensor], self._find(self._homes.norm, tensor, self.homes[tensor], form))
            if tensor in done:
                continue
            places = self._together(tensor)
            done.update(places)
            if all(each in self.homes for each in places):
                for group in alike((each, self.homes[each].place) for each in places):
                    homes = tuple([self.homes[each] for each in group])
                    made = self._find(self._homes.fused, tuple(group), homes, self._finisher_form(tensor))
                    self.table.put(places[group[0]], made)
                    for each in group[1:]:
                        self.table.put(places[each], None)

    def _together(self, tensor: int) -> dict[int, int]:
        """The places of what follows at the home of a weight or buffer, and of what may be one launch with it."""
        plan_free, users = self.plan_free, self.plan_free.users
        if tensor in plan_free.together:
            return plan_free.together[tensor]
        if tensor not in self._updates:
            return {}
        slots, place = self._slots[plan_free.finisher[tensor]], self._updates[tensor]
        there = {at: which for at, (which, _, keys) in slots.items() if keys is None}
        first = last = place
        while users.get(there.get(first - 1, -1)) == users[tensor]:
            first -= 1
        while users.get(there.get(last + 1, -1)) == users[tensor]:
            last += 1
        return {there[at]: at for at in range(first, last + 1)}

    def _finisher_form(self, tensor: int) -> OperatorForm | None:
        """The form of the operator after which a weight is updated; a buffer is not."""
        finisher = self.plan_free.finisher.get(tensor)
        return None if finisher is None else self.forms[finisher]

    def _arrive(self, place: int, name: str, key: RegionKey) -> None:
        """Set the launch that brings a value from outside: in each memory, all that tasks there read of it."""
        first, last = self._first << REQUIREMENT_BITS, self._fetched << REQUIREMENT_BITS
        after = key == HYPER  # which updates read, after the loss was fetched
        readers = [use for at, use in self.table.users.get(key, {}).items() if first <= at and (after or at < last)]
        if not readers:
            self.table.put(place, None)
            return
        tiles = np.concatenate([use.shape.boxes for use in readers])
        memories = self._memory_of[np.concatenate([use.processors for use in readers])]
        found = hulls(tiles, memories, len(self._ports))
        processors = self._ports[found[:, 0]]
        found[:, 0] = 0
        colors, regions = np.zeros(len(found), dtype=np.int64), ((key, WRITE_DISCARD),)
        points = partial(replicas, processors)
        again = partial(bare_launch, self.plan_free, self.forms, name, points, found, regions, port="in")
        self.table.put(place, self._homes.passing(Passing(name, processors, colors, found, regions, again, port="in")))

    def _fetch(self) -> None:
        """Set the launch that brings the loss to every rank, into its first memory."""
        machine = self.plan_free.machine
        ports = self._ports[[machine.memories_of(rank)[0] for rank in sorted({m.rank for m in machine.memories})]]
        used = np.repeat(boxes_of([(0, Rect((), ()))]), len(ports), axis=0)
        regions: tuple[tuple[RegionKey, int], ...] = ((("value", -1, self.plan_free.loss), READ),)
        points = partial(numbered, ports)
        again = partial(bare_launch, self.plan_free, self.forms, "loss.fetch", points, used, regions, port="out")
        fetch = Passing("loss.fetch", ports, np.arange(len(ports)), used, regions, again, port="out")
        self.table.put(self._fetched, self._homes.passing(fetch))

    def _default_home(self, tensor: int) -> HomeBoxes:
        readers = self._readers.get(tensor, ())
        uses = tuple((self.plan_free.kind[number], place, self.operators[number]) for number, place in readers)
        producer = self.plan_free.producer.get(self.plan_free.assignments.get(tensor, -1))
        first = 0 if producer is None else self.operators[producer].processors[0]
        shape = self.plan_free.tensors[tensor].shape
        turn = self._turns.get(self.plan_free.tensors[tensor].name)
        return self._find(self._home, shape, self._find(self._settle, shape, uses, first, turn))

    def _settle(
        self, shape: Shape, uses: tuple[tuple[int, int, OperatorPlan], ...], first: int, turn: int | None
    ) -> WeightPlan:
        """The default home of a weight; of one that nothing reads it is where `first` says."""
        users, plan_free = [], self.plan_free
        for kind, place, config in uses:
            node = plan_free.nodes[plan_free.kind.index(kind)]
            users.append(users_of(plan_free.graph.bound(node), place, config))
        return home_among(shape, users, first, turn)

    def _home(self, shape: Shape, plan: WeightPlan) -> HomeBoxes:
        return HomeBoxes.of(planned_home(shape, plan, self._memory_of))
