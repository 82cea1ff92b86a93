"""The plan: how every operator of a graph is cut and placed, as a value that a person can read, edit and run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeVar, final

from maniple.operators.plan import legality, plan_file
from maniple.operators.plan.pipeline_plan import PipelinePlan as PipelinePlan
from maniple.operators.plan.pipeline_plan import check_micro_batches, pipeline_order, stage_graph
from maniple.operators.plan.plan_file import Term as Term
from maniple.operators.plan.plan_table import fold_rows, ranges
from maniple.operators.plan.sharding import sharded
from maniple.operators.plan.version_semantics import check_versions
from maniple.operators.plan.weight_home import default_home as default_home
from maniple.operators.plan.weight_home import turns_of
from maniple.operators.rules.configuration import OperatorPlan as OperatorPlan
from maniple.operators.rules.configuration import Predicted as Predicted
from maniple.operators.rules.configuration import StagePlan as StagePlan
from maniple.operators.rules.configuration import WeightPlan as WeightPlan
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.process.file_entry import Entry
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """A graph's parallelization: degrees and processors of every operator, a home for every weight.

    A plan never changes results, only where and when they are computed; what would change results is listed in
    ``semantics``. A plan made for one machine runs on any machine that has the processors that it names.

    Args:
        graph: fingerprint of the graph that it is for.
        machine: fingerprint of the machine that it was made for.
        operators: (name, configuration) for every operator, in the graph's order.
        weights: (name, home) for every parameter, in the graph's order.
        strategy: name of the strategy that made it.
        seed: the seed that it was made with, None for strategies without chance.
        semantics: (key, value) of what changes results by intent; empty: nothing does.
        stages: the groups of operators that are placed together; empty: one group of all.
        pipeline: how the stages take turns with parts of a batch; None: each operator works on the whole batch, as soon
            as it can, and the stages say only why it runs where it does.
        explanation: (operator, ((term, value), ...)) that says why; printed by ``explain``.
        predicted: what the strategy expects of a step.
    """

    graph: str
    machine: str
    operators: tuple[tuple[str, OperatorPlan], ...]
    weights: tuple[tuple[str, WeightPlan], ...]
    strategy: str = "manual"
    seed: int | None = None
    semantics: tuple[tuple[str, str], ...] = ()
    stages: tuple[StagePlan, ...] = ()
    pipeline: PipelinePlan | None = None
    explanation: tuple[tuple[str, tuple[tuple[str, Term], ...]], ...] = ()
    predicted: Predicted = field(default_factory=Predicted)
    _operators: dict[str, OperatorPlan] = field(init=False, repr=False, compare=False)
    _weights: dict[str, WeightPlan] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the operators and weights by name."""
        object.__setattr__(self, "_operators", _index("operator", self.operators))
        object.__setattr__(self, "_weights", _index("weight", self.weights))

    def operator(self, name: str) -> OperatorPlan:
        """The configuration of an operator.

        Raises:
            RequestError: the plan has no such operator.
        """
        return _lookup("operator", name, self._operators)

    def weight(self, name: str) -> WeightPlan:
        """The home of a weight.

        Raises:
            RequestError: the plan has no such weight.
        """
        return _lookup("weight", name, self._weights)

    def validate(self, graph: Graph, machine: Machine, *, strict: bool = True) -> None:
        """Refuse a plan that cannot run as it stands.

        The graph must be the one that the plan is for. The machine may be another than the plan was made for, as
        long as it has the processors that the plan names.

        Args:
            graph: the graph to run.
            machine: the machine to run on.
            strict: whether a degree above the extent of its factor is refused; not so for the plan of a smaller
                batch (see ``for_graph``), whose last tiles are empty.

        Raises:
            RequestError: the first thing that is wrong, with the operator or weight and the next step.
        """
        legality.check_graph(self.graph, graph)
        legality.check_semantics(self.semantics)
        legality.check_stages(self.stages, graph)
        legality.check_operators(self._operators, graph, machine, strict=strict)
        legality.check_weights(self._weights, graph, machine)
        if self.pipeline is not None:
            check_micro_batches(self.pipeline, graph.batch)
            self.order(graph)
        check_versions(self, graph)

    def order(self, graph: Graph) -> PipelineOrder | None:
        """The order in which the stages take turns; None where there is no pipeline.

        Raises:
            RequestError: the stages are none of a pipeline, or no such order is one of theirs.
        """
        if self.pipeline is None:
            return None
        return pipeline_order(stage_graph(graph, self.stages, self._operators), self.pipeline)

    @property
    def takes_turns(self) -> bool:
        """Whether launches take turns: of micro-batches, of what is computed again, of weights' working copies."""
        again = any(operator.recompute for _, operator in self.operators)
        return self.pipeline is not None or again or any(home.copy != "kept" for _, home in self.weights)

    def with_pipeline(self, stages: Sequence[Sequence[str]] = (), *, order: str = "1f1b", micro_batches: int) -> Self:
        """The same plan as a pipeline; whether it can run, `validate` says.

        Args:
            stages: the operators of each stage; default those of the plan, or one stage of all, which accumulates
                gradients over the micro-batches.
            order: the name of an order, or the order itself as text.
            micro_batches: into how many parts the samples are cut.
        """
        given = tuple(StagePlan(tuple(stage)) for stage in stages) or self.stages
        return replace(self, stages=given, pipeline=PipelinePlan(order, micro_batches))

    def with_zero(self, stage: int, graph: Graph, machine: Machine) -> Self:
        """The same plan with the homes of its weights as a stage of ZeRO has them; see `sharding`.

        Args:
            stage: 0: value and optimizer state whole wherever a weight is used; 1: the state spread over who uses it;
                2: gradients of micro-batches added up there too; 3: values whole only while they are used.
            graph: the plan's graph.
            machine: the machine that it runs on.

        Raises:
            RequestError: there is no such stage, or stage 0 of a weight that is used in parts that overlap.
        """
        homes = sharded(graph, self._operators, self._weights, machine, stage)
        return replace(self, weights=tuple(homes.items()))

    def for_optimizer(self, optimizer: AbstractOptimizer, graph: Graph, machine: Machine) -> Self:
        """The same plan with each weight in one block that the optimizer updates whole; the others' homes stay.

        Args:
            optimizer: what will update the weights.
            graph: the plan's graph.
            machine: the machine that it runs on.
        """
        turns = turns_of(graph, optimizer)

        def settled(name: str, home: WeightPlan) -> WeightPlan:
            if name not in turns or not home.is_cut:
                return home
            found = default_home(graph, self._operators, name, machine, turns[name])
            return replace(found, copy=home.copy, sums=home.sums)

        return replace(self, weights=tuple((name, settled(name, home)) for name, home in self.weights))

    def for_graph(self, graph: Graph) -> Self:
        """The same plan for the same graph at another batch size.

        The degrees stay; where one is above the new extent, the last tiles are empty (``validate(strict=False)``).

        Raises:
            RequestError: the graph has other operators or parameters.
        """
        legality.check_names("operators", self._operators, [node.name for node in graph.nodes])
        legality.check_names("weights", self._weights, [tensor.name for tensor in graph.lasting])
        return replace(self, graph=graph.fingerprint())

    def processors_used(self) -> tuple[int, ...]:
        """The processors that run a task of the plan, ascending."""
        used = {processor for _, operator in self.operators for processor in operator.processors}
        return tuple(sorted(used.union(*(weight.processors for _, weight in self.weights))))

    def table(self) -> tuple[tuple[str, str, str, str], ...]:
        """Rows of (operator, degrees above 1, replicas, processors of its points), one for each operator."""
        return tuple(
            (name, operator.split(), str(operator.replicas), " ".join(map(str, operator.processors)))
            for name, operator in self.operators
        )

    def short_table(self) -> list[tuple[str, str, str, str]]:
        """The same rows with processors as ranges, such as ``0-63``; `plan_table.folded` tells equal ones once."""
        return [
            (name, operator.split(), str(operator.replicas), ranges(operator.processors))
            for name, operator in self.operators
        ]

    def explain(self, operator: str | None = None) -> str:
        """Say what the plan does, and why as far as its strategy said so.

        Args:
            operator: name of the only operator to speak of; by default all.

        Raises:
            RequestError: the plan has no such operator.
        """
        if operator is not None:
            self.operator(operator)
        reasons = dict(self.explanation)
        lines = [] if operator is not None else [self._headline(), *self._told_pipeline()]
        rows = [
            (
                name,
                split,
                replicas,
                processors,
                "computed again for backward" if self.operator(name).recompute else "",
                *(f"  {term}: {value}" for term, value in reasons.get(name, ())),
            )
            for name, split, replicas, processors in self.short_table()
            if operator in {None, name}
        ]
        for name, split, replicas, processors, again, *why in rows if operator is not None else fold_rows(rows):
            copies = f" x{replicas} replicas" if replicas != "1" else ""
            where = f"processor {processors}" if processors.isdigit() else f"processors {processors}"
            lines += [f"{name}: {split}{copies} on {where}" + (f", {again}" if again else ""), *why]
        if operator is None:
            lines += [f"{term}: {value}" for term, value in reasons.get("", ())]
            lines += self._told_copies()
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, whole or not at all, one operator or weight per line.

        Raises:
            RequestError: the place cannot be written.
        """
        plan_file.write(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The plan of a file.

        Raises:
            RequestError: the file or an entry of it is wrong; the message names the place.
        """
        return cls._of(plan_file.read(path))

    @classmethod
    def parse(cls, text: str, name: str = "plan") -> Self:
        """The plan of a file's text, as ``text`` gives it.

        Args:
            text: the text.
            name: what messages call it.

        Raises:
            RequestError: an entry is wrong; the message names the place.
        """
        return cls._of(plan_file.parse(name, text))

    @classmethod
    def _of(cls, table: Mapping[str, Entry]) -> Self:
        seed = table["seed"]
        return cls(
            graph=table["graph"].string(),
            machine=table["machine"].string(),
            operators=tuple((name, OperatorPlan.from_json(entry)) for name, entry in table["operators"].items()),
            weights=tuple((name, WeightPlan.from_json(entry)) for name, entry in table["weights"].items()),
            strategy=table["strategy"].string(),
            seed=None if seed.is_null else seed.integer(0),
            semantics=tuple((key, entry.string()) for key, entry in table["semantics"].items()),
            stages=tuple(StagePlan.from_json(entry) for entry in table["stages"].elements()),
            pipeline=None if table["pipeline"].is_null else PipelinePlan.from_json(table["pipeline"]),
            explanation=plan_file.explanation(table["explanation"]),
            predicted=Predicted.from_json(table["predicted"]),
        )

    def text(self) -> str:
        """The plan as the text of its file."""
        return plan_file.text(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The plan as plain data, every key present."""
        return {
            "version": plan_file.VERSION,
            "graph": self.graph,
            "machine": self.machine,
            "strategy": self.strategy,
            "seed": self.seed,
            "semantics": dict(self.semantics),
            "operators": {name: operator.to_json() for name, operator in self.operators},
            "weights": {name: weight.to_json() for name, weight in self.weights},
            "stages": [stage.to_json() for stage in self.stages],
            "pipeline": None if self.pipeline is None else self.pipeline.to_json(),
            "explanation": {name: dict(terms) for name, terms in self.explanation},
            "predicted": self.predicted.to_json(),
        }

    def _told_pipeline(self) -> list[str]:
        """How the stages take turns; nothing where they do not."""
        if self.pipeline is None:
            return []
        stages, parts = max(1, len(self.stages)), self.pipeline.micro_batches
        order = self.pipeline.order if len(self.pipeline.order) < 40 else "an order written out"
        counted = f"{stages} stage{'s' * (stages > 1)}, {parts} micro-batch{'es' * (parts > 1)}"
        return [f"pipeline: {order}, {counted}"]

    def _told_copies(self) -> list[str]:
        """Which weights are not whole from step to step where they are used; nothing where all are."""
        lines = []
        for copy, told in (("pass", "in forward, and again in backward"), ("step", "from first use to last")):
            count = sum(home.copy == copy for _, home in self.weights)
            lines += [f"weights: {count} of {len(self.weights)} are whole only while they are used, {told}"] * (
                count > 0
            )
        return lines

    def _headline(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        semantics = " ".join(f"{key}={value}" for key, value in self.semantics) or "exact"
        return f"plan by {self.strategy}{seed}; semantics: {semantics}"


def _index(what: str, pairs: tuple[tuple[str, T], ...]) -> dict[str, T]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise RequestError(f"plan: {what} {', '.join(twice)} is there twice")
    return table


def _lookup(what: str, name: str, table: dict[str, T]) -> T:
    if name not in table:
        raise RequestError(f"plan: {what} {name!r} is not in the plan{nearest(name, list(table))}")
    return table[name]
