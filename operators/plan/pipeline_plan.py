"""The pipeline of a plan: in how many micro-batches its stages work, and in which order; and what makes that legal.

A lane is a group of processors that stages share. Stages that share no processor have lanes of their own:

    stage    operators     processors    lane
    0        conv relu     0 1           0
    1        linear        2             1
    2        linear_1      0 1           0       two stages in one lane: an interleaved order
    3        loss          1 2                   refused: it shares some processors of lane 0, and not all
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from maniple.operators.pipeline_order.lockstep import CircleError
from maniple.operators.pipeline_order.named_order import named_order
from maniple.operators.pipeline_order.order_text import is_text, parse
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
    from maniple.operators.rules.configuration import OperatorPlan, StagePlan
    from maniple.process.file_entry import Entry

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """How the stages of a plan work on a batch.

    Args:
        order: the name of an order, or the order itself as text.
        micro_batches: into how many parts the samples are cut.
    """

    order: str
    micro_batches: int

    def to_json(self) -> dict[str, object]:
        """The pipeline as plain data, every key present."""
        return {"order": self.order, "micro_batches": self.micro_batches}

    @classmethod
    def from_json(cls, entry: Entry) -> Self:
        """The pipeline that an entry of a plan file describes.

        Raises:
            RequestError: the entry is wrong; the message names the place.
        """
        table = entry.table(("order", "micro_batches"))
        return cls(table["order"].string(), table["micro_batches"].integer(1))


def stages_of(stages: Sequence[StagePlan], names: Sequence[str]) -> dict[str, int]:
    """The stage of each operator, by name.

    Args:
        stages: of the plan; where it has none, all operators are one.
        names: of all operators.
    """
    if not stages:
        return dict.fromkeys(names, 0)
    return {operator: number for number, stage in enumerate(stages) for operator in stage.operators}


def stage_graph(graph: Graph, stages: Sequence[StagePlan], operators: Mapping[str, OperatorPlan]) -> StageGraph:
    """The stages of a plan: which share processors, and which read what others compute.

    Args:
        graph: the graph.
        stages: of the plan.
        operators: the configuration of each operator.

    Raises:
        RequestError: a stage is empty or reads from a later one, or stages share some processors and not all.
    """
    stage_of = stages_of(stages, [node.name for node in graph.nodes])
    count = max(1, len(stages))
    processors: list[set[int]] = [set() for _ in range(count)]
    reads: list[set[int]] = [set() for _ in range(count)]
    producers = {result: node for node in graph.nodes for result in node.results}
    for node in graph.nodes:
        stage = stage_of[node.name]
        processors[stage].update(operators[node.name].processors)
        for operand in node.operands:
            before = producers.get(-1 if operand is None else operand)
            if before is None or stage_of[before.name] == stage:
                continue
            if stage_of[before.name] > stage:
                raise RequestError(_backwards(graph, stage_of, node.name, before.name))
            reads[stage].add(stage_of[before.name])
    lanes: dict[frozenset[int], list[int]] = {}
    for stage, used in enumerate(processors):
        if not used:
            raise RequestError(f"plan: stages[{stage}]: expected at least one operator")
        lanes.setdefault(frozenset(used), []).append(stage)
    groups = list(lanes)
    for number, group in enumerate(groups):
        for other in groups[:number]:
            if shared := sorted(group & other):
                first, second = lanes[other][0], lanes[group][0]
                raise RequestError(
                    f"plan: stages[{first}] and stages[{second}] both run on processors "
                    f"{' '.join(map(str, shared))}, but stage {first} on {_listed(other)} and stage {second} on "
                    f"{_listed(group)}; in a pipeline stages share all of their processors or none"
                )
    return StageGraph(tuple(map(tuple, lanes.values())), tuple(tuple(sorted(found)) for found in reads))


def pipeline_order(stages: StageGraph, pipeline: PipelinePlan) -> PipelineOrder:
    """The order in which a plan's stages take turns.

    Args:
        stages: of the plan.
        pipeline: of the plan.

    Raises:
        RequestError: there is no such order, it is one of other stages or lanes, or its lanes cannot meet.
    """
    if is_text(pipeline.order):
        found = parse(pipeline.order, "plan: pipeline.order")
    else:
        found = named_order(pipeline.order, stages, pipeline.micro_batches)
    if found.stages != stages.stages or found.micro_batches != pipeline.micro_batches:
        raise RequestError(
            f"plan: pipeline.order: expected an order of {stages.stages} stages and {pipeline.micro_batches} "
            f"micro-batches, got one of {found.stages} and {found.micro_batches}"
        )
    lanes = {tuple(sorted({action.stage for action in lane})) for lane in found.lanes}
    if lanes != set(stages.lanes):
        wrong = min(lanes.symmetric_difference(stages.lanes))
        raise RequestError(
            f"plan: pipeline.order: has stages {sorted(lanes)} in its lanes, and the plan's stages share processors as "
            f"{sorted(stages.lanes)}; they differ in {wrong}"
        )
    try:
        found.merged(stages)
    except CircleError as error:
        raise error if not is_text(pipeline.order) else _at_lines(error) from error
    return found


def _at_lines(error: CircleError) -> CircleError:
    """What is said of a written order whose lanes wait for each other: which lines these are."""
    lines = " and ".join(str(lane + 1) for lane in error.lanes)
    return CircleError(f"plan: pipeline.order: line{'s' * (len(error.lanes) > 1)} {lines}: {error}", error.lanes)


def check_micro_batches(pipeline: PipelinePlan, batch: int) -> None:
    """Refuse micro-batches of which there are none, or that some samples would have to be in twice.

    Raises:
        RequestError: there are none, or more than samples.
    """
    if pipeline.micro_batches < 1:
        raise RequestError(f"plan: pipeline.micro_batches: expected an integer >= 1, got {pipeline.micro_batches}")
    if pipeline.micro_batches > batch:
        raise RequestError(
            f"plan: pipeline.micro_batches: expected at most {batch}, the samples of a batch, "
            f"got {pipeline.micro_batches}"
        )


def _backwards(graph: Graph, stage_of: Mapping[str, int], reader: str, writer: str) -> str:
    """What is said of an operator that reads from a later stage; of a circle among stages, the way back."""
    here, there = stage_of[reader], stage_of[writer]
    told = f"plan: stages[{here}]: operator {reader} reads {writer} of stage {there}, a later one"
    producers = {result: node.name for node in graph.nodes for result in node.results}
    for node in graph.nodes:
        if stage_of[node.name] == there:
            for operand in node.operands:
                source = producers.get(-1 if operand is None else operand)
                if source is not None and stage_of[source] == here:
                    return (
                        f"{told}, and {node.name} of stage {there} reads {source} of stage {here}: stage {here} waits "
                        f"for stage {there} waits for stage {here}; what stages read must come from earlier stages"
                    )
    return f"{told}; number stages so that each reads from earlier ones"


def _listed(processors: frozenset[int]) -> str:
    return " ".join(map(str, sorted(processors)))
