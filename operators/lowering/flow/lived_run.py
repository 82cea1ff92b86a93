"""A run without a flush: what it does beside the passes of operators, and what outlives it.

The loss of a mini-batch goes from stage to stage with its backward, a stage a run: so no lane waits for a later one.

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
from maniple.operators.lowering.flow.version_launch import PredictBinder, predict_launch, relay_launch, version_update
from maniple.operators.lowering.operator_body import FetchBinder
from maniple.operators.lowering.operator_launch import update_launch
from maniple.operators.lowering.step_program import Port
from maniple.operators.pipeline_order.version_rule import lag
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

    def of(self, node: Node, kind: str) -> PassRegions:
        """The regions as a pass of an operator uses them."""
        return self._lived.at(kind, self.lag(node, kind), self.lives.stage(node))

    def lag(self, node: Node, kind: str) -> int:
        """How many runs ago the mini-batch began of which a pass is."""
        return self.lives.lag_of(node, kind)

    def youngest(self, ref: RegionRef) -> LogicalRegion:
        """What a run writes of something."""
        return self._lived.family(ref)[0]

    def numbers(self, optimizer: AbstractOptimizer) -> tuple[LogicalRegion, ...]:
        """The numbers of updates, by the age of the mini-batch whose they are; none where none enter."""
        return self._lived.family(HYPER, optimizer) if optimizer.enters else ()

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
            behind, target = lag(stage, len(stages)), self._relays[stage]
            source = (
                self._relays[stage + 1] if behind else self._lived.at("forward", 0, stage).region(("value", tensor))
            )
            yield relay_launch(name, self._machine.processors_of(memories[0])[0], source, target, behind)
            if found:
                points = tuple(Point((number,), self._machine.processors_of(m)[0]) for number, m in enumerate(found))
                requirement = Requirement(target, READ, (target.bounds,) * len(points))
                yield Launch(f"{name}.fetch", points, (requirement,), FetchBinder(port, first), lag=behind)
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
        for (kind, number), regions in self._lived.families.items():
            info = self._graph.tensors[number] if kind == "value" else None
            weight = info is not None and info.kind == "parameter"
            families.append(Family(regions, held[info.name] if info is not None and weight else ()))
        for family in families:
            family.note(launches, self._machine)
            found = family.homes()
            homes |= found
            rings += family.rings(found)
        return homes, tuple(rings)

    def behind(self, parameter: int) -> int:
        """How many runs after its mini-batch began a parameter is updated."""
        return lag(self.lives.stage_of(parameter), self.lives.count)

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
