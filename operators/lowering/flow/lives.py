"""Lives: how many runs what a run writes is read, in a pipeline without a flush, and in which regions it then lies.

Two layers, a stage each; backward of the first is one run behind forward, that of the last in the same run:

    region       written    read                            ages     places
    x            run k      forward in k, backward in k+1   0, 1     2, which take turns
    h            run k      forward in k, backward in k     0        within the run
    h.grad       run k      backward of stage 0 in k+1      0, 1     1: it is read in a run before it is written
    w0           update     forward 0; backward 1 (stash)   0, 1     2 versions; an update reads 0, writes over 1
    w1           update     0, 0                            0        1

A region stands for what is of an age in a run; from one run to the next all grow older, and storage stays where it is
(`runtime.schedule.turns.ring`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from maniple.operators.pipeline_order.version_rule import lag
from maniple.operators.training.prediction import PREDICTORS
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.pipeline import Pass
    from maniple.operators.lowering.step_form import StepForms
    from maniple.operators.pipeline_order.version_rule import VersionRule

__all__: list[str] = []

HYPER: RegionRef = ("hyper", 0)
"""What a life calls the numbers of updates."""


@final
class Use(NamedTuple):
    """A use of a region.

    Args:
        lag: of the pass.
        place: of the pass in the order of a run.
    """

    lag: int
    place: int


@final
class Lives:
    """How long what a run writes is read.

    Args:
        graph: the graph.
        stages: the stage of each operator, by name.
        rule: which versions of weights are read.
    """

    def __init__(self, graph: Graph, stages: Mapping[str, int], rule: VersionRule) -> None:
        self._graph, self._stages, self.rule = graph, stages, rule
        self.count = 1 + max(stages.values(), default=0)
        """How many stages there are."""
        self._written: dict[RegionRef, list[Use]] = {}
        self._read: dict[RegionRef, list[Use]] = {}
        self._weights: dict[int, dict[bool, int]] = {}
        self._forms: StepForms | None = None
        self.predictor = PREDICTORS.lookup(rule.name)() if rule.predicts else None
        """What gives the weights that passes read."""

    def read_predicted(self, node: Node, kind: str) -> list[int]:
        """The parameters that a pass of an operator reads predicted."""
        if self._forms is None or not self.delay(self.stage(node), kind):
            return []
        read = [n.region[1] for f in self._forms.of(kind, node) for n in f.requirements if n.region[0] == "value"]
        return [number for number in dict.fromkeys(read) if number in self._weights]

    def delay(self, stage: int, kind: str) -> int:
        """How many updates ahead a pass of a stage reads weights."""
        if self.predictor is None:
            return 0
        delays = self.predictor.delays(stage, self.count)
        return delays.forward if kind == "forward" else delays.backward

    def stage(self, node: Node) -> int:
        """The stage of an operator."""
        return self._stages[node.name]

    def stage_of(self, parameter: int) -> int:
        """The stage that reads a parameter.

        Raises:
            RequestError: several do.
        """
        found = sorted({self.stage(node) for node in self._graph.nodes if parameter in node.operands})
        if len(found) > 1:
            raise RequestError(
                f"plan: semantics.weights: expected each weight in one stage; stages {' '.join(map(str, found))} read "
                f"{self._graph.tensors[parameter].name}: put the operators that share it into one stage"
            )
        return found[0] if found else self.count - 1

    def lag_of(self, node: Node, kind: str) -> int:
        """How many runs ago the mini-batch began of which a pass is."""
        return 0 if kind == "forward" else lag(self.stage(node), self.count)

    def note(self, passes: Sequence[Pass], forms: StepForms) -> None:
        """Take note of all passes of a run, in order."""
        self._forms = forms
        trained = {tensor.id for tensor in self._graph.parameters}
        lasting = {tensor.id for tensor in self._graph.lasting}
        arrives = Use(0, -1)
        for tensor in self._graph.inputs:
            self._written["value", tensor.id] = [arrives]
        self._written["clock", 0] = self._written[HYPER] = [arrives]
        for place, found in enumerate(passes):
            node = self._graph.nodes[found.node]
            use = Use(self.lag_of(node, found.kind), place)
            for form in forms.of(found.kind, node):
                for need in form.requirements:
                    kind, number = need.region
                    if kind == "value" and number in lasting:
                        if number in trained:
                            self._weights.setdefault(number, {})[form.is_forward] = self._age(node, form.is_forward)
                        continue
                    (self._read if need.access == "read" else self._written).setdefault(need.region, []).append(use)
            for number in trained.intersection(forms.backward.contributed(node) if found.kind != "forward" else ()):
                self._read.setdefault(HYPER, []).append(use)
                self._read.setdefault(("gradient", number), []).append(use)
        for ref, uses in self._written.items():
            self._check(ref, uses)

    def _age(self, node: Node, forward: bool) -> int:  # noqa: FBT001
        return (self.rule.forward if forward else self.rule.backward)(self.stage(node), self.count)

    def _check(self, ref: RegionRef, uses: Iterable[Use]) -> None:
        """Refuse what several stages add to: each does for another mini-batch in a run."""
        lags = sorted({use.lag for use in uses})
        if len(lags) > 1:
            kind, number = ref
            name = self._graph.tensors[number].name if kind in {"value", "gradient"} else kind
            stages = " ".join(str(self.count - 1 - found) for found in reversed(lags))
            raise RequestError(
                f"plan: semantics.weights: stages {stages} each give a part of the {kind} of {name}; without a flush "
                "they are at different mini-batches in a run: put the operators that read it into one stage"
            )

    def written(self, ref: RegionRef) -> int:
        """The lag of those who write a region."""
        uses = self._written.get(ref)
        return uses[0].lag if uses else 0

    def age(self, ref: RegionRef, at: int) -> int:
        """Of which age a region is, in a pass of some lag."""
        return at - self.written(ref)

    def places(self, ref: RegionRef) -> int:
        """How many places a region has; 1 also where it lives within a run."""
        ages = self._ages(ref)
        oldest = max(ages, default=0)
        if not oldest:
            return 1
        last = max(use.place for use in self._read[ref] if self.age(ref, use.lag) == oldest)
        first = min(use.place for use in self._written[ref])
        return oldest + (last > first)

    def outlives(self, ref: RegionRef) -> bool:
        """Whether a region is read in a later run than that which wrote it."""
        return max(self._ages(ref), default=0) > 0

    def _ages(self, ref: RegionRef) -> list[int]:
        return [self.age(ref, use.lag) for use in self._read.get(ref, ())]

    def weight_age(self, parameter: int, *, forward: bool) -> int:
        """The version that a pass reads of a weight."""
        return self._weights.get(parameter, {}).get(forward, 0)

    def versions(self, parameter: int) -> int:
        """How many versions are kept of a weight: as many as are read."""
        return 1 + max(self._weights.get(parameter, {}).values(), default=0)
