"""A run without a flush: what it does beside the passes of operators, and what outlives it.

The loss of a mini-batch goes from stage to stage with its backward, a stage a run, and after the passes of each: it
leaves as the stage behind begins its next run, when this one is at its backward. So no lane waits for a later one.
Where backward of all stages comes in one run, all are told in that run.

    run       0             1             2
    stage 0   .             .             loss 0 is told
    stage 1   .             loss 0 told   loss 1 told
    stage 2   loss 0 told   loss 1 told   loss 2 told
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from maniple.operators.lowering.flow.lived_program import Family
from maniple.operators.lowering.flow.lived_regions import LivedRegions
from maniple.operators.lowering.flow.lives import HYPER
from maniple.operators.lowering.flow.version_launch import (
    PredictBinder,
    predict_launch,
    relay_launch,
    settle_launch,
    version_update,
)
from maniple.operators.lowering.micro_batch import ALL
from maniple.operators.lowering.operator_body import FetchBinder
from maniple.operators.lowering.operator_launch import update_launch
from maniple.operators.lowering.step_program import Port
from maniple.regions.privilege import READ
from maniple.runtime.schedule.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.flow.lived_regions import PassRegions
    from maniple.operators.lowering.flow.lives import Lives
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.step_regions import StepRegions
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.analysis.fragment import Home
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.region_table import RegionTable
    from maniple.runtime.schedule.turns.ring import Ring

__all__: list[str] = []


@final
class LivedRun:
    """What outlives the runs of a plan without a flush.

    Args:
        graph: the graph.
        plan: the plan, as it is lowered.
        machine: the machine.
        regions: of a run.
        lives: how long each is read.
        table: makes regions.
    """

    def __init__(
        self, graph: Graph, plan: Plan, machine: Machine, regions: StepRegions, lives: Lives, table: RegionTable
    ) -> None:
        self._graph, self._plan, self._machine, self.lives, self._table = graph, plan, machine, lives, table
        self._lived = LivedRegions(graph, regions, lives, table)
        self._relays: list[LogicalRegion] = []

    def of(self, node: Node, kind: str, part: int = ALL) -> PassRegions:
        """The regions as a pass of an operator uses them."""
        return self._lived.at(kind, self.lag(node, kind, part), self.lives.stage(node))

    def lag(self, node: Node, kind: str, part: int = ALL) -> int:
        """How many runs ago the mini-batch began of which a pass is."""
        return self.lives.lag_of(node, kind, part)

    def youngest(self, ref: RegionRef, part: int = ALL) -> LogicalRegion:
        """What a run writes of something."""
        return self._lived.family(ref, part)[0]

    def arrival(self, ref: RegionRef, part: int) -> tuple[LogicalRegion, int]:
        """What an input is written to, and how many runs after its mini-batch began."""
        return self.youngest(ref, part), self.lives.arrival(ref, part)

    def given(self, buffer: int) -> tuple[LogicalRegion, int]:
        """What a buffer is given, and how many runs after its mini-batch began."""
        behind, value = self.lives.assigned(buffer).lag, self._graph.assignments[buffer]
        return self._lived.at("forward", behind, 0).region(("value", value)), behind

    def settled(self, node: Node, kind: str, part: int, launches: Sequence[Launch]) -> Iterator[Launch]:
        """What folds, once a pass has added to it, what is used in a later run and by nobody in this one.

        Args:
            node: of the pass.
            kind: of the pass.
            part: its micro-batch.
            launches: of the pass.
        """
        for ref in self.lives.settles(node, kind, part):
            region = self.of(node, kind, part).region(ref, part)
            whole = region.bounds if part == ALL else self._lived.regions.part_bounds(ref, part, region.bounds)
            yield replace(settle_launch(region, whole, launches), lag=self.lag(node, kind, part))

    def numbers(self, optimizer: AbstractOptimizer) -> tuple[LogicalRegion, ...]:
        """The numbers of updates, by the age of the mini-batch whose they are; none where none enter."""
        return self._lived.family(HYPER, optimizer=optimizer) if optimizer.enters else ()

    def versions(self, parameter: int) -> tuple[LogicalRegion, ...]:
        """The versions of a weight, the newest first."""
        return self._lived.family(("value", parameter))

    def update(self, weight: Weight, parameter: int, optimizer: AbstractOptimizer) -> Launch:
        """The update of a weight; of one with several versions from the newest to the next, over the oldest."""
        behind, numbers = self.behind(parameter), self.numbers(optimizer)
        gradient = self._lived.at("backward", behind, self.lives.stage_of(parameter)).region(("gradient", parameter))
        whole = (numbers[behind % len(numbers)],) if numbers else ()
        newest, written = self._lived.newest(weight, parameter)
        pads = self._lived.regions.scratchpads
        launch = update_launch(replace(weight, value=written), gradient, optimizer, weight.name, whole, pads)
        if written is not newest:
            launch = version_update(launch, newest)
        return replace(launch, name=f"{weight.name}.update", lag=behind)

    def predict(self, weight: Weight, parameter: int, kind: str, optimizer: AbstractOptimizer) -> Launch:
        """The prediction of a weight, by the numbers of its next update."""
        stage, behind, numbers = self.lives.stage_of(parameter), self.behind(parameter), self.numbers(optimizer)
        predictor = self.lives.predictor
        if predictor is None or not numbers:
            msg = f"nothing predicts {weight.name}"
            raise TypeError(msg)
        row, own = optimizer.row_of(weight.name), optimizer.of(weight.name)
        binder = PredictBinder(predictor, self.lives.delay(stage, kind), own, row)
        predicted = self._lived.prediction(parameter, kind)
        newest, _ = self._lived.newest(weight, parameter)
        launch = predict_launch(weight, newest, predicted, numbers[behind % len(numbers)], binder, kind)
        return replace(launch, lag=0 if kind == "forward" else behind)

    def relays(self, name: str, tensor: int, results: dict[str, Port]) -> Iterator[Launch]:
        """What brings the loss to every rank, from stage to stage.

        Args:
            name: of the port.
            tensor: the loss.
            results: the ports; this one is added.
        """
        stages = self._memories()
        told, port = self._told(stages), Port(())
        loss = self._graph.tensors[tensor]
        self._relays = [self._table.region(f"{name}@{stage}", loss.shape, loss.dtype) for stage in range(len(stages))]
        port = results[name] = Port(tuple(memory for found in told for memory in found))
        first = 0
        for stage, (memories, found) in enumerate(zip(stages, told, strict=True)):
            behind, target = self.lives.behind(stage), self._relays[stage]
            sooner = [later for later in range(stage + 1, len(stages)) if self.lives.behind(later) < behind]
            source = (
                self._relays[sooner[0]]
                if sooner
                else self._lived.at("forward", behind, stage).region(("value", tensor))
            )
            yield relay_launch(name, self._machine.processors_of(memories[0])[0], source, target, behind)
            if found:
                points = tuple(Point((number,), self._machine.processors_of(m)[0]) for number, m in enumerate(found))
                requirement = Requirement(target, READ, (target.bounds,) * len(points))
                how = FetchBinder(port, first)
                yield Launch(f"{name}.fetch", points, (requirement,), how, in_turn=True, lag=behind)
            first += len(found)

    def homes(self, launches: Sequence[Launch], held: Mapping[str, Home]) -> tuple[dict[int, Home], tuple[Ring, ...]]:
        """Where what outlives a run is valid as the next begins, and what takes turns.

        Args:
            launches: of the run.
            held: by parameter its home.
        """
        homes: dict[int, Home] = {}
        rings: list[Ring] = []
        families = [Family((region,)) for region in self._relays]
        for ((kind, number), _), regions in self._lived.families.items():
            info = self._graph.tensors[number] if kind == "value" else None
            weight = info is not None and info.kind == "parameter"
            families.append(Family(regions, held[info.name] if info is not None and weight else ()))
        users: dict[int, set[int]] = {}
        for place, launch in enumerate(launches):
            for need in launch.requirements:
                users.setdefault(need.region.id, set()).add(place)
        for family in families:
            own = sorted(set().union(*(users.get(region.id, ()) for region in family.regions)))
            family.note([launches[place] for place in own], self._machine)
            found = family.homes()
            homes |= found
            rings += family.rings(found)
        return homes, tuple(rings)

    def behind(self, parameter: int) -> int:
        """How many runs after its mini-batch began a parameter is updated."""
        return self.lives.behind(self.lives.stage_of(parameter))

    def _memories(self) -> list[list[int]]:
        """The memories of each stage."""
        found: list[set[int]] = [set() for _ in range(self.lives.count)]
        for node in self._graph.nodes:
            used = self._plan.operator(node.name).processors
            found[self.lives.stage(node)].update(self._machine.memory_of(processor) for processor in used)
        return [sorted(memories) for memories in found]

    def _told(self, stages: Sequence[Sequence[int]]) -> list[list[int]]:
        """By stage the memories where its ranks are told of a loss: each rank once, as soon as it can be."""
        found: list[list[int]] = [[] for _ in stages]
        ranks = {memory.id: memory.rank for memory in self._machine.memories}
        told: set[int] = set()
        for stage in reversed(range(len(stages))):
            others = ranks if not stage else stages[stage]
            for memory in [*stages[stage], *others]:
                if ranks[memory] not in told:
                    told.add(ranks[memory])
                    found[stage].append(memory)
        return found
