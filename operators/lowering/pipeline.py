"""Pipelines: the operators' passes in the order of a pipeline, each lane's its own, merged into one.

Two linear layers, a stage each, two micro-batches, 1F1B:

    lane 0    0F0 = x.forward#0    0F1 = x.forward#1    0B0 = x.backward#0    0B1 = x.backward#1
    lane 1    1F0 = y.forward#0, loss.forward#0    1B0 = loss.backward#0, y.backward#0    1F1 ...    1B1 ...

    merged    x.forward#0 | x.forward#1, y.forward#0 | loss.forward#0 | loss.backward#0 | y.backward#0 | ...

What an operator waits for follows from the regions that its launches use, micro-batch by micro-batch. An operator that
is not cut stands in no lane: it comes as soon as what it reads is there. Where lanes then wait for each other in a
circle, that is what the message draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, final

from maniple.operators.lowering.micro_batch import ALL, MicroBatches
from maniple.operators.pipeline_order.flush import sequential
from maniple.operators.pipeline_order.lockstep import in_lockstep
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.operators.plan.pipeline_plan import stages_of
from maniple.operators.plan.version_semantics import rule_of
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.step_form import StepForms
    from maniple.operators.pipeline_order.action import Action as StageAction
    from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
    from maniple.operators.pipeline_order.version_rule import VersionRule
    from maniple.operators.plan.plan import Plan

__all__: list[str] = []

Degrees = tuple[int, ...]
"""Of the factors of an operator, in its rule's order."""

BACKWARD = {"B": "backward", "I": "input_gradient", "W": "weight_gradient"}
"""What operators do in an action of a stage that goes backward."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """How the operators of a step take turns.

    Args:
        order: of the stages' actions.
        stages: the stage of each operator, by its name.
        parts: the micro-batches.
        recomputed: the names of the operators whose results are computed again for backward.
        rule: which versions of weights are read, where there is no flush.
        degrees: of the operators that are split, then, by name.
    """

    order: PipelineOrder
    stages: Mapping[str, int]
    parts: MicroBatches
    recomputed: frozenset[str] = frozenset()
    rule: VersionRule | None = None
    degrees: Mapping[str, Degrees] = field(default_factory=dict)

    def near(self, reader: Node, writer: Node, tensor: int) -> bool:
        """Whether a node reads what another computes again of a tensor.

        What crosses to another stage is kept there, and so is what micro-batches share.
        """
        apart = self.parts.count == 1 or self.parts.apart(tensor)
        return apart and self.stages[reader.name] == self.stages[writer.name]


def pipeline_of(order: PipelineOrder | None, graph: Graph, plan: Plan) -> Pipeline | None:
    """How the operators of a step take turns; None where all go forward, and then backward, as they are ready.

    Args:
        order: in which the plan's stages take turns, if they do.
        graph: the graph, as it is lowered.
        plan: the plan for it.
    """
    recomputed = frozenset(name for name, operator in plan.operators if operator.recompute)
    if order is None and not plan.takes_turns:
        return None
    names = [node.name for node in graph.nodes]
    if order is None:
        # Without turns what is computed again would be so right after forward, and kept until backward; and the working
        # copies of all weights would be made when the step begins.
        return Pipeline(sequential(StageGraph.chain(1), 1), dict.fromkeys(names, 0), MicroBatches(graph), recomputed)
    parts, rule = MicroBatches(graph, order.micro_batches), rule_of(plan)
    return Pipeline(order, stages_of(plan.stages, names), parts, recomputed, rule, flow_degrees(plan))


def flow_degrees(plan: Plan) -> dict[str, Degrees]:
    """Of a plan without a flush the degrees of the operators that are split, by name; of others none."""
    if rule_of(plan) is None:
        return {}
    degrees = {name: tuple(degree for _, degree in own.degrees) for name, own in plan.operators}
    return {name: own for name, own in degrees.items() if any(degree > 1 for degree in own)}


class Pass(NamedTuple):
    """One pass of an operator, for one micro-batch.

    Args:
        kind: see `step_form`.
        node: the number of the operator.
        part: the micro-batch.
        label: what a message calls it.
    """

    kind: str
    node: int
    part: int
    label: str

    def __str__(self) -> str:
        """Its label."""
        return self.label


class _Use(NamedTuple):
    """What a launch of a pass uses.

    Args:
        region: the region.
        written: whether it is written, and not read.
        parts: that of its ``own`` micro-batch, the ``one`` that all have, or those of ``all``.
    """

    region: RegionRef
    written: bool
    parts: Literal["own", "one", "all"]


@final
class Passes:
    """The passes of a step's operators in the order of a pipeline.

    Args:
        graph: the graph.
        nodes: what the step needs, in the graph's order.
        forms: their launches.
        pipeline: the order.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node], forms: StepForms, pipeline: Pipeline) -> None:
        self._graph, self._forms, self._parts = graph, forms, pipeline.parts
        self._pipeline = pipeline
        self._stages: dict[int, list[Node]] = {}
        self._free = [node for node in nodes if self._parts.count > 1 and not self._parts.is_cut(node)]
        for node in nodes:
            if node not in self._free:
                self._stages.setdefault(pipeline.stages[node.name], []).append(node)
        self._done: set[tuple[int, int]] = set()
        self._check_recomputed()

    def merged(self) -> list[Pass]:
        """All passes in one order.

        Raises:
            RequestError: lanes wait for each other in a circle.
        """
        if self._pipeline.rule is not None:
            return self._without_flush(self._pipeline.rule)
        lanes = [[found for action in lane for found in self._of(action)] for lane in self._pipeline.order.lanes]
        for node in self._free:
            lanes += [[_whole(node, "forward")], [_whole(node, "backward")]]
        if self._pipeline.order.stages == self._parts.count == 1:
            return lanes[0]  # as the operators stand in the graph
        needs = self._needs([found for lane in lanes for found in lane])
        merged = _merge(lanes, needs)
        if len(merged) < len(needs):
            try:
                in_lockstep(lanes, needs.__getitem__, "plan: pipeline")
            except RequestError as error:
                raise RequestError(f"{error}{self._hint()}") from None
        return merged

    def _without_flush(self, rule: VersionRule) -> list[Pass]:
        """What prepares inputs, and then micro-batch by micro-batch forward of all stages, and backward of all.

        What follows all micro-batches comes when its stage has had forward of the last. Mini-batches that are not cut
        are one micro-batch each, and every stage is at another: the first goes backward first, so that it reads
        gradients before the stage behind it writes those of the next. Else all go backward with the same micro-batch,
        the last first, and then forward with the next that they have not had.
        """
        stages, count = range(1 + max(self._pipeline.stages.values())), self._parts.count
        self._check_flow(rule, len(stages))
        following = [node for node in self._free if self._parts.follows(node)]
        found = [_whole(node, "forward") for node in self._free if node not in following]
        for turn in range(count):
            forward, backward = list[Pass](), list[Pass]()
            for stage in stages:
                part = (turn + rule.ahead(stage, len(stages), count)) % count if rule.adds else turn
                forward += self._of_stage(stage, "F", part)
                if part == count - 1:
                    own = [node for node in following if self._pipeline.stages[node.name] == stage]
                    forward += [_whole(node, "forward") for node in own]
            for stage in reversed(stages) if rule.adds else stages:
                backward += self._of_stage(stage, "B", turn)
            found += [*backward, *forward] if rule.adds else [*forward, *backward]
        return found

    def _of_stage(self, stage: int, kind: str, part: int) -> Iterator[Pass]:
        """The passes of a stage without a flush."""
        does, number, nodes = ("forward" if kind == "F" else "backward"), part, self._stages.get(stage, [])
        if self._parts.count == 1:
            number = ALL
        for node in nodes if kind == "F" else reversed(nodes):
            yield Pass(does, node.id, number, f"{stage}{kind}{part} ({node.name}.{does})")

    def _check_flow(self, rule: VersionRule, stages: int) -> None:
        """Refuse too few samples, and what runs whole and reads what micro-batches give, unless it follows them."""
        if rule.adds and self._parts.count < stages:
            raise RequestError(
                f"batch: expected at least {stages} samples, a micro-batch for each stage, under semantics.weights "
                f"{rule.name}; got {self._parts.count}"
            )
        buffers = [tensor for tensor in self._graph.lasting if tensor.kind == "buffer"]
        given = {tensor.id for tensor in (*self._graph.inputs, *buffers)}
        for node in self._free:
            if self._parts.follows(node):
                continue
            if not given.issuperset(operand for operand in node.operands if operand is not None):
                raise RequestError(
                    f"plan: pipeline.micro_batches: {node.name} is not cut into micro-batches and runs whole, for "
                    f"which a pipeline without a flush has no moment{self._hint()}"
                )
            given.update(node.results)

    def _of(self, action: StageAction) -> Iterator[Pass]:
        """The passes of a stage's action."""
        stage, kind, part = action
        if part >= self._parts.count:
            return
        nodes, number = self._stages.get(stage, []), part if self._parts.count > 1 else ALL
        if kind == "F":
            yield from (self._pass("forward", node, number, action) for node in nodes)
            return
        for node in reversed(nodes):
            for does in ("backward",) if kind == "R" else (BACKWARD[kind],):
                for before in self._forms.again(node, does):
                    yield from self._again(before, number, action)
                if kind != "R":
                    yield self._pass(does, node, number, action)

    def _again(self, node: Node, part: int, action: StageAction) -> Iterator[Pass]:
        """What must be computed again so that a node is, and the node, once for each micro-batch."""
        if (node.id, part) not in self._done:
            self._done.add((node.id, part))
            for before in self._forms.again(node, "again"):
                yield from self._again(before, part, action)
            yield self._pass("again", node, part, action)

    def _pass(self, kind: str, node: Node, part: int, action: StageAction) -> Pass:
        return Pass(kind, node.id, part, f"{action} ({node.name}.{kind})")

    def _needs(self, passes: Sequence[Pass]) -> dict[Pass, list[Pass]]:
        """For every pass those that write what it reads."""
        writers: dict[tuple[RegionRef, int], list[Pass]] = {}
        reads: dict[Pass, list[tuple[RegionRef, int]]] = {}
        uses: dict[tuple[str, int, bool], tuple[_Use, ...]] = {}
        everyone = range(self._parts.count)
        for found in passes:
            part, alike = found.part, (found.kind, found.node, found.part == ALL)
            if alike not in uses:
                uses[alike] = tuple(self._uses(found))
            reads[found] = own = []
            for ref, written, parts in uses[alike]:
                for each in everyone if parts == "all" else (part if parts == "own" else ALL,):
                    if written:
                        writers.setdefault((ref, each), []).append(found)
                    else:
                        own.append((ref, each))
        return {
            found: [writer for key in keys for writer in writers.get(key, ()) if writer != found]
            for found, keys in reads.items()
        }

    def _uses(self, found: Pass) -> Iterator[_Use]:
        """What the launches of a pass use, of whichever micro-batch."""
        for form in self._forms.of(found.kind, self._graph.nodes[found.node]):
            for need in form.requirements:
                kind, number = need.region
                written = need.access != "read"
                if kind not in {"value", "gradient"} or need.tiles is None:
                    yield _Use(need.region, written, "own")
                    continue
                along = self._parts.written(number)
                cut = found.part != ALL and self._parts.axis(form.node, *need.tiles) == along
                yield _Use(need.region, written, "one" if along is None else "own" if cut else "all")

    def _check_recomputed(self) -> None:
        """Refuse to compute again what runs once for all micro-batches."""
        for node in self._free:
            if node.name in self._pipeline.recomputed:
                raise RequestError(
                    f"plan: operators.{node.name}.recompute: expected false: it is not cut into micro-batches and runs "
                    "whole, once in a step"
                )

    def _hint(self) -> str:
        """What would help against a circle: the semantics under which an operator that runs whole would be cut."""
        local = {"batch_norm": "local_stats"}
        helped = [node.name for node in self._free if node.operator.under(local) != node.operator]
        whole = ", ".join(node.name for node in self._free)
        if helped:
            return (
                f"\n  {', '.join(helped)}: statistics over the whole batch need all micro-batches at once; "
                "semantics batch_norm=local_stats takes them of each micro-batch"
            )
        return f"\n  whole, as they have no samples of their own to cut: {whole}" if whole else ""


def _whole(node: Node, kind: str) -> Pass:
    """A pass of what runs whole."""
    return Pass(kind, node.id, ALL, f"{node.name}.{kind} of all micro-batches")


def _merge(lanes: Sequence[Sequence[Pass]], needs: Mapping[Pass, Sequence[Pass]]) -> list[Pass]:
    """The lanes in lockstep: in every tick each takes its next pass if it may; those that wait in a circle are missing.

    The same as `in_lockstep`, by who waits for whom: an operator that runs whole is a lane by itself, and there may be
    hundreds.
    """
    lane_of = {found: (number, place) for number, lane in enumerate(lanes) for place, found in enumerate(lane)}
    left = {found: len(needs[found]) for found in lane_of}
    readers: dict[Pass, list[Pass]] = {}
    for found, wanted in needs.items():
        for need in wanted:
            readers.setdefault(need, []).append(found)
    places = [0] * len(lanes)
    ready = [number for number, lane in enumerate(lanes) if lane and not left[lane[0]]]
    merged: list[Pass] = []
    while ready:
        taken = [lanes[number][places[number]] for number in ready]
        merged += taken
        for number in ready:
            places[number] += 1
        following = {number for number in ready if places[number] < len(lanes[number])}
        following = {number for number in following if not left[lanes[number][places[number]]]}
        for reader in [reader for found in taken for reader in readers.get(found, ())]:
            left[reader] -= 1
            number, place = lane_of[reader]
            if not left[reader] and places[number] == place:
                following.add(number)
        ready = sorted(following)
    return merged
