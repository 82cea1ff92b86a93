"""Programs: the launches of a training step and the regions that they use, under a plan that changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, final

import numpy as np

from maniple.regions import privilege
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.roofline import DEFAULT_EFFICIENCY
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.lowering.boxes import HIGH, LOW, hulls
from maniple.strategies.lowering.region_cache import Shapes, boxes_of
from maniple.strategies.lowering.validity import READ, READ_WRITE, WRITE_DISCARD
from maniple.strategies.simulation.operator_placement import LaunchRows, launch_rows, operator_placement, place_use
from maniple.strategies.simulation.operator_split import split_operator, used_tiles
from maniple.strategies.simulation.outline import CLOCK
from maniple.strategies.simulation.weight_home import default_home, planned_home, unread_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.lowering.boxes import Boxes
    from maniple.strategies.lowering.network import Column
    from maniple.strategies.lowering.region_cache import Use
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.simulation.operator_placement import OperatorPlacement
    from maniple.strategies.simulation.operator_split import OperatorSplit
    from maniple.strategies.simulation.outline import Outline, RegionKey
    from maniple.strategies.simulation.weight_home import WeightHome

__all__: list[str] = []

Arguments = TypeVarTuple("Arguments")
Made = TypeVar("Made")
REQUIREMENT_BITS = 8
"""The place of a use is that of its launch and, in the lowest bits, the number of the requirement."""
PRIVILEGES = {READ: privilege.READ, READ_WRITE: privilege.READ_WRITE, WRITE_DISCARD: privilege.WRITE_DISCARD}
KEPT = 20_000
"""So many splits, placements or homes are kept to be found again, and then forgotten together."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlacedLaunch:
    """A launch of the step.

    Args:
        name: what the runtime calls it.
        rows: its rows.
        uses: the region and the use of each requirement.
    """

    name: str
    rows: LaunchRows
    uses: tuple[tuple[RegionKey, Use], ...]


class Program:
    """The launches and the regions of a step.

    Every change is noted, so that `undo` takes back all changes since the last `keep`.

    Args:
        outline: what the plan does not change.
        plan: the plan to begin with.
        costs: what a task takes.
    """

    def __init__(self, outline: Outline, plan: Plan, costs: CostModel) -> None:
        self.outline, self.costs, self.shapes = outline, costs, Shapes()
        machine = outline.machine
        self._memory_of = np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
        self._ports = np.asarray([machine.processors_of(memory.id)[0] for memory in machine.memories], dtype=np.int64)
        self.launches: dict[int, PlacedLaunch] = {}
        self.users: dict[RegionKey, dict[int, Use]] = {}
        self.operators: dict[int, OperatorPlan] = {}
        self.homes: dict[int, WeightHome] = {}
        self.forms: dict[int, OperatorForm] = {}
        self._slots: dict[int, dict[int, Any]] = {}
        self._updates: dict[int, int] = {}
        self._notes: list[tuple[dict[Any, Any], object, object]] = []
        self.changed: dict[int, None] = {}
        """Places whose launch is another, or gone, since the last `keep` or `undo`."""
        self.touched: dict[RegionKey, None] = {}
        """Regions whose uses or homes are others."""
        self._kept: dict[Any, Any] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for node in outline.nodes:
            for place, operand in enumerate(node.operands):
                if operand is not None:
                    self._readers.setdefault(operand, []).append((node.id, place))
        self._numbers = [tensor.id for tensor in outline.graph.lasting]
        self.change(
            {outline.number[name]: config for name, config in plan.operators},
            {outline.graph.tensor(name).id: home for name, home in plan.weights},
        )
        self._fetch()

    def change(self, operators: Mapping[int, OperatorPlan], weights: Mapping[int, WeightPlan] | None) -> None:
        """Give operators other configurations.

        Args:
            operators: by number.
            weights: by tensor, other homes; None: the default homes of the weights that the operators use.
        """
        outline = self.outline
        reads: dict[int, None] = {}
        draws = False
        for number, config in operators.items():
            self._set(self.operators, number, config)
            reads.update((operand, None) for operand in outline.nodes[number].operands if operand is not None)
            draws |= outline.nodes[number].operator.random
        for number, config in operators.items():
            if number in outline.needed:
                self._place(number, config)
        if weights is None:
            lasting = [tensor for tensor in reads if outline.tensors[tensor].lasting]
            lasting += [b for b, value in outline.assignments.items() if self._is_only_written(b, value, operators)]
            for tensor in lasting:
                self._settle_in(tensor, self._default_home(tensor))
        else:
            for tensor, home in weights.items():
                self._settle_in(tensor, self._planned_home(tensor, home))
        for place, info in enumerate(outline.graph.inputs):
            if info.id in reads:
                self._arrive(place, f"{info.name}.input", ("value", -1, info.id))
        if draws:
            self._arrive(outline.clock, "clock.input", CLOCK)

    def _is_only_written(self, buffer: int, value: int, operators: Mapping[int, OperatorPlan]) -> bool:
        return buffer not in self._readers and self.outline.producer.get(value) in operators

    def keep(self) -> None:
        """Make the changes lasting."""
        for log in (self._notes, self.changed, self.touched):
            log.clear()

    def undo(self) -> None:
        """Take all changes since the last `keep` back."""
        for table, key, old in reversed(self._notes):
            if old is None:
                del table[key]
            else:
                table[key] = old
        self.keep()

    def _set(self, table: dict[Any, Any], key: object, value: object) -> None:
        """Change an entry (None: it goes), and note what was there."""
        self._notes.append((table, key, table.get(key)))
        if value is None:
            del table[key]
        else:
            table[key] = value

    def _put(self, place: int, launch: PlacedLaunch | None) -> None:
        """Set the launch at a place."""
        old = self.launches.get(place)
        if old is None and launch is None:
            return
        for number, (key, _) in enumerate(() if old is None else old.uses):
            self._set(self.users[key], place << REQUIREMENT_BITS | number, None)
            self.touched[key] = None
        for number, (key, use) in enumerate(() if launch is None else launch.uses):
            self._set(self.users.setdefault(key, {}), place << REQUIREMENT_BITS | number, use)
            self.touched[key] = None
        self._set(self.launches, place, launch)
        self.changed[place] = None

    def _place(self, number: int, config: OperatorPlan) -> None:
        """Set the launches of an operator, and the places of the updates that follow its backward pass."""
        outline = self.outline
        degrees = dict(config.degrees)
        form = outline.form(number, degrees)
        placement = self._find(self._placement, outline.kind[number], form, config)
        slots = self._find(self._own_slots, number, form)
        if self.forms.get(number) is not form:
            for place in self._slots.get(number, {}):
                if place not in slots:
                    self._put(place, None)
            self._set(self.forms, number, form)
            self._set(self._slots, number, slots)
        launches = [*placement.forward, *placement.backward]
        for place, (which, name, keys) in slots.items():
            if keys is None:
                if self._updates.get(which) != place:
                    self._set(self._updates, which, place)
                    if which in self.homes:
                        self._update(which)
                continue
            launch = launches[which]
            uses = tuple((key, use) for key, (_, use) in zip(keys, launch.uses, strict=True))
            self._put(place, PlacedLaunch(name, launch.rows, uses))

    def _own_slots(self, number: int, form: OperatorForm) -> dict[int, tuple[int, str, list[RegionKey] | None]]:
        """The launches of an operator by place: (which, name, regions); or (tensor, "", None) for an update."""
        outline = self.outline
        node = outline.nodes[number]
        slots: dict[int, tuple[int, str, list[RegionKey] | None]] = {}
        launches = [*form.forward, *(launch for launch, _ in form.backward)]
        place = outline.forward[number]
        for which, launch in enumerate(launches):
            if which == len(form.forward):
                place = outline.backward[number]
            name = form.name_for(form.nodes[launch.primitive].name, node.name) + f".{launch.suffix}"
            keys = [outline.key(number, form, requirement.region) for requirement in launch.requirements]
            slots[place] = which, name, keys
            place += 1
            if which >= len(form.forward):
                for operand in form.backward[which - len(form.forward)][1]:
                    tensor = node.operands[operand]
                    if tensor is not None and outline.finisher.get(tensor) == number:
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

    def _settle_in(self, tensor: int, home: WeightHome) -> None:
        """Set the home of a weight."""
        old, outline = self.homes.get(tensor), self.outline
        if old is home:
            return
        self._set(self.homes, tensor, home)
        self.touched["value", -1, tensor] = None
        for state in range(len(outline.optimizer.state_names)):
            self.touched["state", state, tensor] = None
        if tensor in self._updates:
            self._update(tensor)
        elif tensor in outline.assigned:
            self._put(outline.assigned[tensor], self._find(self._assignment, tensor, home))

    def _update(self, tensor: int) -> None:
        """Set the launch that updates a weight."""
        form = self.forms[self.outline.finisher[tensor]]
        self._put(self._updates[tensor], self._find(self._updating, tensor, self.homes[tensor], form))

    def _updating(self, tensor: int, home: WeightHome, form: OperatorForm) -> PlacedLaunch:
        outline = self.outline
        place = outline.nodes[outline.finisher[tensor]].operands.index(tensor)
        inside = next(own for own, end in form.bound.items() if end == ("operand", place))
        again = partial(form.lowering.update, form.lowering.graph.tensors[inside].name, home.plan())
        regions: list[tuple[RegionKey, int]] = [(("value", -1, tensor), READ_WRITE), (("gradient", -1, tensor), READ)]
        regions += [(("state", n, tensor), READ_WRITE) for n in range(len(outline.optimizer.state_names))]
        name = f"{outline.tensors[tensor].name}.update"
        return self._passing(name, home.processors, home.colors, home.blocks, regions, again, flops=4.0)

    def _assignment(self, tensor: int, home: WeightHome) -> PlacedLaunch:
        value: RegionKey = ("value", -1, self.outline.assignments[tensor])
        regions: list[tuple[RegionKey, int]] = [(("value", -1, tensor), WRITE_DISCARD), (value, READ)]
        name = f"{self.outline.tensors[tensor].name}.assign"
        again = partial(self._bare_launch, name, home.points, home.blocks, tuple(regions))
        return self._passing(name, home.processors, home.colors, home.blocks, regions, again)

    def _passing(
        self,
        name: str,
        processors: Column,
        colors: Column,
        used: Boxes,
        regions: Sequence[tuple[RegionKey, int]],
        again: Callable[[], Launch],
        flops: float = 0.0,
    ) -> PlacedLaunch:
        """A launch whose tasks use the same boxes of all its regions.

        Args:
            name: its name.
            processors: of its tasks.
            colors: the number of each point, the same for replicas.
            used: what each task uses.
            regions: what it uses, and how.
            again: makes the launch that the runtime would run.
            flops: operations for each element.
        """
        everyone = np.arange(len(processors))
        shapes = {access: self.shapes.shape(access, everyone, colors, used) for _, access in regions}
        placed = {access: place_use(shape, processors) for access, shape in shapes.items()}
        volumes = np.prod(used[:, HIGH:] - used[:, LOW:HIGH], axis=1)
        size = sum(self.outline.layout(key, self.forms)[1] for key, _ in regions)
        tasks = LaunchTasks(flops * volumes, volumes * size, processors, DEFAULT_EFFICIENCY, again)
        uses = tuple((key, placed[access]) for key, access in regions)
        return PlacedLaunch(name, launch_rows(tasks, self.costs), uses)

    def _bare_launch(
        self, name: str, points: Callable[[], list[Point]], used: Boxes, regions: tuple[tuple[RegionKey, int], ...]
    ) -> Launch:
        """A launch without a body."""
        requirements = []
        for key, access in regions:
            region = self.outline.region(key, self.forms)
            axes = region.bounds.ndim
            rects = tuple(
                Rect(tuple(row[LOW : LOW + axes].tolist()), tuple(row[HIGH : HIGH + axes].tolist())) for row in used
            )
            requirements.append(Requirement(region, PRIVILEGES[access], rects))
        return Launch(name, tuple(points()), tuple(requirements))

    def _arrive(self, place: int, name: str, key: RegionKey) -> None:
        """Set the launch that brings a value from outside: in each memory, all that tasks there read of it."""
        first, last = self.outline.forward[0] << REQUIREMENT_BITS, self.outline.fetch << REQUIREMENT_BITS
        readers = [use for at, use in self.users.get(key, {}).items() if first <= at < last]
        if not readers:
            self._put(place, None)
            return
        tiles = np.concatenate([use.shape.boxes for use in readers])
        memories = self._memory_of[np.concatenate([use.processors for use in readers])]
        found = hulls(tiles, memories, len(self._ports))
        processors = self._ports[found[:, 0]]
        found[:, 0] = 0
        colors, regions = np.zeros(len(found), dtype=np.int64), ((key, WRITE_DISCARD),)
        again = partial(self._bare_launch, name, partial(_replicas, processors), found, regions)
        self._put(place, self._passing(name, processors, colors, found, regions, again))

    def _fetch(self) -> None:
        """Set the launch that brings the loss to every rank, into its first memory."""
        machine = self.outline.machine
        ports = self._ports[[machine.memories_of(rank)[0] for rank in sorted({m.rank for m in machine.memories})]]
        used = np.repeat(boxes_of([(0, Rect((), ()))]), len(ports), axis=0)
        regions: tuple[tuple[RegionKey, int], ...] = ((("value", -1, self.outline.loss), READ),)
        again = partial(self._bare_launch, "loss.fetch", partial(_number, ports), used, regions)
        self._put(self.outline.fetch, self._passing("loss.fetch", ports, np.arange(len(ports)), used, regions, again))

    def _planned_home(self, tensor: int, plan: WeightPlan) -> WeightHome:
        return planned_home(self.outline.tensors[tensor].shape, plan, self.outline.machine)

    def _default_home(self, tensor: int) -> WeightHome:
        readers = self._readers.get(tensor, ())
        uses = tuple((self.outline.kind[number], place, self.operators[number]) for number, place in readers)
        producer = self.outline.producer.get(self.outline.assignments.get(tensor, -1))
        first = 0 if producer is None else self.operators[producer].processors[0]
        return self._find(self._home, self.outline.tensors[tensor].shape, uses, first)

    def _home(self, shape: tuple[int, ...], uses: tuple[tuple[int, int, OperatorPlan], ...], first: int) -> WeightHome:
        """The default home of a weight; of one that nothing reads it is where `first` says."""
        tiles, users = [], []
        for kind, place, config in uses:
            used, points = self._find(self._tiles, kind, place, config.degrees)
            tiles.append(used)
            users.append(np.asarray(config.processors, dtype=np.int64).reshape(-1, config.replicas)[points])
        if not any(map(len, tiles)):
            return unread_home(shape, first, self._memory_of)
        widest = max(found.shape[1] for found in users)
        owners = [np.pad(found, ((0, 0), (0, widest - found.shape[1])), mode="edge") for found in users]
        return default_home(shape, np.concatenate(tiles), np.concatenate(owners), self._memory_of)

    def _tiles(self, kind: int, place: int, degrees: tuple[tuple[str, int], ...]) -> tuple[Boxes, Column]:
        """What the points of an operator use of an operand, and the points that do."""
        node = self.outline.nodes[self.outline.kind.index(kind)]
        return used_tiles(self.outline.graph.bound(node), place, degrees)


def _replicas(processors: Column) -> list[Point]:
    return [Point((), processor, replica) for replica, processor in enumerate(processors.tolist())]


def _number(processors: Column) -> list[Point]:
    return [Point((number,), processor) for number, processor in enumerate(processors.tolist())]
