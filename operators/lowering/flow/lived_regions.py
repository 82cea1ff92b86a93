"""The regions of a run without a flush: those of each age, versions of weights, and predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.operators.lowering.flow.lives import HYPER, Lives
from maniple.operators.lowering.micro_batch import ALL

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.flow.lives import Key
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.micro_batch import MicroBatches
    from maniple.operators.lowering.step_regions import StepRegions
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.program.region_table import RegionTable
    from maniple.runtime.storage.scratchpad import Scratchpads

__all__: list[str] = []


@final
class LivedRegions:
    """The regions of a run, by what they hold and of which age it is.

    Args:
        graph: the graph.
        regions: of what lives within a run, and of age 0.
        lives: how long each is read.
        table: makes regions.
    """

    def __init__(self, graph: Graph, regions: StepRegions, lives: Lives, table: RegionTable) -> None:
        self._graph, self.regions, self.lives, self._table = graph, regions, lives, table
        self.families: dict[Key, tuple[LogicalRegion, ...]] = {}
        """By reference and micro-batch the regions of what outlives a run, by age."""
        self._within: dict[Key, tuple[LogicalRegion, ...]] = {}  # of what lives within a run
        self.predicted: dict[tuple[int, str], LogicalRegion] = {}
        """By parameter and pass what is predicted."""

    def family(
        self, ref: RegionRef, part: int = ALL, optimizer: AbstractOptimizer | None = None
    ) -> tuple[LogicalRegion, ...]:
        """The regions of a reference, by age; one where it lives within a run.

        Args:
            ref: the reference.
            part: the micro-batch.
            optimizer: whose numbers are meant, if they are.
        """
        key = self.lives.key(ref, part)
        if key in self._within:
            return self._within[key]
        if key not in self.families:
            hyper = ref == HYPER and optimizer is not None
            first = self.regions.hyper(optimizer) if hyper and optimizer else self.regions.region(*key)
            if first is None:
                return ()
            kind, number = ref
            weight = kind == "value" and self._graph.tensors[number].kind == "parameter"
            count = self.lives.versions(number) if weight else self.lives.places(key)
            shape = first.bounds.shape
            further = [self._table.region(f"{first.name}'{age}", shape, first.dtype) for age in range(1, count)]
            if not further and not (self.lives.outlives(key) and not weight):
                if not hyper:
                    self._within[key] = (first,)
                return (first,)
            self.families[key] = (first, *further)
        return self.families[key]

    def at(self, kind: str, lag: int, stage: int) -> PassRegions:
        """The regions as a pass of a stage uses them."""
        return PassRegions(self, kind, lag, stage)

    def prediction(self, parameter: int, kind: str) -> LogicalRegion:
        """What a pass reads of a parameter that is predicted."""
        if (parameter, kind) not in self.predicted:
            value = self.regions.value(parameter)
            made = self._table.region(f"{value.name}.{kind}", value.bounds.shape, value.dtype)
            self.predicted[parameter, kind] = made
        return self.predicted[parameter, kind]

    def newest(self, weight: Weight, parameter: int) -> tuple[LogicalRegion, LogicalRegion]:
        """What an update reads of a weight, and what it writes, over the oldest version."""
        family = self.family(("value", parameter))
        return family[0] if family else weight.value, family[-1] if family else weight.value


@final
class PassRegions:
    """The regions as a pass uses them; see `StepRegions`.

    Args:
        lived: of all passes.
        kind: of the pass.
        lag: of the pass.
        stage: of the pass.
    """

    def __init__(self, lived: LivedRegions, kind: str, lag: int, stage: int) -> None:
        self._lived, self._kind, self._lag, self._stage = lived, kind, lag, stage
        self.parts: MicroBatches = lived.regions.parts
        self.scratchpads: Scratchpads = lived.regions.scratchpads

    def region(self, ref: RegionRef, part: int = ALL) -> LogicalRegion:
        """What a launch form calls by a reference."""
        lived, lives = self._lived, self._lived.lives
        kind, number = ref
        tensors = lived.regions.tensors
        if kind == "value" and tensors[number].kind == "parameter":
            if lives.delay(self._stage, self._kind):
                return lived.prediction(number, self._kind)
            return lived.family(ref)[lives.weight_age(number, self._stage, self._lag)]
        if kind == "value" and tensors[number].lasting:
            return lived.regions.region(ref)
        family = lived.family(ref, part)
        return family[lives.age(ref, part, self._lag) % len(family)]

    def is_apart(self, ref: RegionRef) -> bool:
        """Whether each micro-batch has a region in which its samples begin at 0."""
        return self._lived.regions.is_apart(ref)

    def start(self, ref: RegionRef, axis: int, part: int) -> int:
        """Where a micro-batch begins, among all samples, along a dimension of what is kept apart."""
        return self._lived.regions.start(ref, axis, part)
