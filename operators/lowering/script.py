"""Scripts: what a step does, in order. This module alone says it: the expansion and the simulator walk the same script.

    y = linear(x, w), loss = cross_entropy(y, t)

    a training step      x and t arrive, the clock arrives
                         linear forward, cross_entropy forward
                         the loss goes to every rank
                         cross_entropy backward, linear backward, w is updated
    an evaluation        x and t arrive, the clock arrives, linear forward, cross_entropy forward, outputs go to all

Operators go backward in reverse order, and a parameter is updated as soon as its gradient is complete and nothing reads
it any more; where gradients are clipped by their norm, as soon as all are. Buffers get their next values last: whatever
reads one in the step sees the old value.

In a pipeline operators go forward and backward for each micro-batch, in the pipeline's order (see `pipeline`); what
follows, the loss's way to every rank and the updates, comes once, as soon as all micro-batches have added their part.
Of an input that is kept apart, the part of a micro-batch arrives when the first pass is to read it:

    y arrives, x#0 arrives, linear forward of 0, x#1 arrives, linear forward of 1, cross_entropy forward of 0, ...
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, final

from maniple.operators.graph.differentiation import find_needed
from maniple.operators.lowering.composite import lower_composites
from maniple.operators.lowering.flow.lives import Lives
from maniple.operators.lowering.micro_batch import ALL, MicroBatches
from maniple.operators.lowering.pipeline import Pass, Passes, Pipeline, pipeline_of
from maniple.operators.lowering.precision import is_scaled
from maniple.operators.lowering.step_form import PASSES, StepForms
from maniple.operators.lowering.working_copy import (
    COPY,
    NONE_WORKING,
    WorkingCopies,
    base_of,
    is_passing,
)
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import BackwardForms, RegionRef
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

AT_HOME = ("sum", "norm", "update")
"""What follows from a gradient."""


@final
class Action(NamedTuple):
    """One thing that a step does.

    Args:
        kind: what: ``input``, ``clock`` and ``hyper``, the numbers of updates, arrive where tasks read them, if any
            do; ``cast`` gives the values of a parameter as halves, ``copy`` gives them to a working copy; ``forward``
            and ``backward`` are an operator's, as are ``input_gradient`` and ``weight_gradient``, of which the latter
            may come later, and ``again``, forward of what was not kept; ``sum`` adds the gradient of a micro-batch to
            that of all; ``predict`` gives what a pass of a stage reads of a parameter; ``fetch`` brings a tensor whole
            to every rank; ``norm`` adds a gradient's squares up with all others; ``rescale`` changes the scale of the
            loss; ``assign`` gives a buffer its next value.
        number: of the operator, for its passes; else of the tensor; of the clock and of numbers 0.
        port: where a fetched tensor leaves; of a cast or copy the kind of region; ``first`` of the first sum; of a
            prediction the pass.
        part: the micro-batch of a pass, of a copy or sum for one, or of an input that is kept apart; of what is not cut
            -1.
    """

    kind: Literal[
        "input",
        "clock",
        "hyper",
        "cast",
        "copy",
        "forward",
        "again",
        "fetch",
        "backward",
        "input_gradient",
        "weight_gradient",
        "sum",
        "norm",
        "predict",
        "update",
        "rescale",
        "assign",
    ]
    number: int
    port: str = ""
    part: int = ALL


@final
@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """What a step does.

    Args:
        nodes: the operators that it needs, in the graph's order.
        actions: what it does, in order.
        forms: the launches of the operators' passes.
        in_turn: whether processors take the passes in the script's order, but for those of operators that run whole.
        lives: how long what a run writes is read, where there is no flush: then a run has each pass of another batch.
    """

    nodes: tuple[Node, ...]
    actions: tuple[Action, ...]
    forms: StepForms
    in_turn: bool = False
    lives: Lives | None = None

    @property
    def backward(self) -> BackwardForms:
        """The launches of the backward pass; of an evaluation there are none."""
        return self.forms.backward


def training_script(
    graph: Graph,
    optimizer: AbstractOptimizer | None = None,
    pipeline: Pipeline | None = None,
    passed: Mapping[int, tuple[int, ...]] | None = None,
    working: WorkingCopies = NONE_WORKING,
) -> Script:
    """What a training step does.

    Args:
        graph: the graph.
        optimizer: what updates the weights; None: one that has no numbers that enter.
        pipeline: how operators take turns; None: all go forward, and then backward.
        passed: see ``BackwardForms``; where operators take turns nothing is passed.
        working: which weights are read from working copies; where there are some, operators take turns.

    Raises:
        RequestError: the graph has no loss, or the lanes of the pipeline wait for each other in a circle.
    """
    if graph.loss_tensor is None:
        raise RequestError(f"graph {graph.name!r} has no loss to train for; name one with loss(tensor)")
    nodes = find_needed(graph, [graph.loss_tensor, *graph.assignments.values()])
    scaled = optimizer is not None and is_scaled(graph)
    if pipeline is None:
        forms = StepForms(graph, nodes, training=True, scaled=scaled, passed=passed)
        passes = [Pass("forward", node.id, ALL, "") for node in nodes]
        passes += [Pass("backward", node.id, ALL, "") for node in reversed(nodes)]
    else:
        again = [node.id for node in nodes if node.name in pipeline.recomputed]
        forms = StepForms(
            graph,
            nodes,
            training=True,
            scaled=scaled,
            recomputed=again,
            near=pipeline.near,
            working=working,
            cut=pipeline.parts.count > 1,
        )
        passes = Passes(graph, nodes, forms, pipeline).merged()
    lives = None
    if pipeline is not None and pipeline.rule is not None:
        lives = Lives(graph, pipeline.stages, pipeline.rule, pipeline.parts, pipeline.degrees)
        _check_lives(graph, optimizer, working, scaled=scaled)
        lives.note(passes, forms)
    enters = optimizer is not None and optimizer.enters
    waits = optimizer is not None and needs_squares(graph, optimizer)
    actions = [Action("hyper", 0)] if enters else []
    parts = MicroBatches(graph) if pipeline is None else pipeline.parts
    told = _followed(graph, forms, passes, waits=waits, last=lives is not None)
    followed = _later(graph, forms, told, working)
    following = _with_copies(graph, forms, _with_parts(graph, forms, parts, followed, lives))
    actions += _arrivals(graph, parts)
    if lives is None:
        actions += [*following, *([Action("rescale", 0)] if scaled else [])]
        actions += [Action("assign", buffer) for buffer in graph.assignments]
    else:
        actions += _with_assignments(graph, lives, _with_predictions(graph, lives, following))
    return Script(tuple(nodes), tuple(actions), forms, pipeline is not None, lives)


def _check_lives(graph: Graph, optimizer: AbstractOptimizer | None, working: WorkingCopies, *, scaled: bool) -> None:
    """Refuse updates that wait for the gradients of all stages: without a flush these are of different batches.

    So are weights that are whole only while they are used: what passes read are versions of their own.
    """
    for tensor in (*working.lives, *working.at_home):
        raise RequestError(
            f"plan: weights.{graph.tensors[tensor].name}: expected copy 'kept' and sums 'use' in a pipeline without a "
            "flush, where passes read versions of weights; leave out semantics.weights, or take zero=1"
        )
    if scaled or (optimizer is not None and needs_squares(graph, optimizer)):
        raise RequestError(
            "plan: semantics.weights: expected an optimizer whose updates wait for one gradient each; clip_norm and "
            "the scale of the loss need those of all stages, which are at different batches: clip_value can do without"
        )


def _with_predictions(graph: Graph, lives: Lives, actions: Iterable[Action]) -> Iterator[Action]:
    """Actions, and before the first pass of a stage that reads a weight predicted the prediction."""
    done: set[tuple[int, str]] = set()
    for action in actions:
        if action.kind in {"forward", "backward"}:
            node = graph.nodes[action.number]
            for tensor in lives.read_predicted(node, action.kind):
                if (tensor, action.kind) not in done:
                    done.add((tensor, action.kind))
                    yield Action("predict", tensor, action.kind)
        yield action


def _with_assignments(graph: Graph, lives: Lives, actions: Iterable[Action]) -> Iterator[Action]:
    """Actions, and after the last pass of a mini-batch to read a buffer, or to give to it, the buffer's next value."""
    after: dict[int, list[int]] = {}
    for buffer in graph.assignments:
        after.setdefault(lives.assigned(buffer).place, []).append(buffer)
    place = 0
    for action in actions:
        yield action
        if action.kind in PASSES:
            yield from (Action("assign", buffer) for buffer in after.get(place, ()))
            place += 1


def needs_squares(graph: Graph, optimizer: AbstractOptimizer) -> bool:
    """Whether updates wait for the sum of the squares of all gradients: they are clipped by it, or may overflow."""
    return optimizer.clip_norm is not None or is_scaled(graph)


def check_turns(graph: Graph, plan: Plan) -> None:
    """Refuse a plan whose stages would wait for each other in a circle, once it is lowered.

    Raises:
        RequestError: they would, or they are none of a pipeline.
    """
    order = plan.order(graph)
    lowered, inner = lower_composites(graph, plan, training=True)
    training_script(lowered, None, pipeline_of(order, lowered, inner), working=WorkingCopies.of(lowered, inner))


def evaluation_script(graph: Graph, working: WorkingCopies = NONE_WORKING) -> Script:
    """What an evaluation does: the forward pass of what the outputs need, and the way of the outputs to every rank."""
    nodes = find_needed(graph, graph.outputs.values())
    forms = StepForms(graph, nodes, training=False, working=working)
    forward = _with_copies(graph, forms, (Action("forward", node.id) for node in nodes))
    fetches = _fetches(((tensor, name) for name, tensor in graph.outputs.items()), working)
    arrivals = _arrivals(graph, MicroBatches(graph))
    return Script(tuple(nodes), (*arrivals, *forward, *fetches), forms, bool(working.lives))


def fetch_script(graph: Graph, working: WorkingCopies = NONE_WORKING) -> Script:
    """What brings every parameter and buffer to every rank."""
    fetches = tuple(_fetches(((tensor.id, tensor.name) for tensor in graph.lasting), working))
    return Script((), fetches, StepForms(graph, (), training=False), bool(working.lives))


def _fetches(tensors: Iterable[tuple[int, str]], working: WorkingCopies) -> Iterator[Action]:
    """Fetches of some tensors to ports, of a weight that is nowhere whole by a copy that lives as long."""
    for tensor, port in tensors:
        if tensor in working.lives:
            yield Action("copy", tensor, COPY)
        yield Action("fetch", tensor, port)


def _arrivals(graph: Graph, parts: MicroBatches) -> Iterator[Action]:
    yield from (Action("input", tensor.id) for tensor in graph.inputs if not parts.apart(tensor.id))
    yield Action("clock", 0)


def _with_parts(
    graph: Graph, forms: StepForms, parts: MicroBatches, actions: Iterable[Action], lives: Lives | None
) -> Iterator[Action]:
    """Actions, and before the first that reads the part of a micro-batch of an input its arrival.

    Without a flush passes of the mini-batch before may come first.
    """
    inputs = {tensor.id for tensor in graph.inputs if parts.apart(tensor.id)}
    arrived, nodes = set[tuple[int, int]](), graph.nodes
    for action in actions:
        if inputs and action.part != ALL and action.kind in PASSES:
            node, part = nodes[action.number], action.part
            for kind, number in forms.uses(action.kind, node).reads:
                missing = kind == "value" and number in inputs and (number, part) not in arrived
                if missing and (lives is None or lives.arrives(node, action.kind, part, (kind, number))):
                    arrived.add((number, part))
                    yield Action("input", number, "", part)
        yield action


def _with_copies(graph: Graph, forms: StepForms, actions: Iterable[Action]) -> Iterator[Action]:
    """Actions, and before the first that reads a copy of a weight, as halves or not, what gives it its values."""
    made: set[tuple[RegionRef, int]] = set()
    copies: dict[tuple[str, int], tuple[RegionRef, ...]] = {}
    for action in actions:
        if action.kind in PASSES:
            done = action.kind, action.number
            if done not in copies:
                copies[done] = forms.uses(action.kind, graph.nodes[action.number]).copies
            for kind, tensor in copies[done]:
                part = action.part if is_passing(kind) else ALL
                if ((kind, tensor), part) not in made:
                    made.add(((kind, tensor), part))
                    yield Action("copy" if is_passing(kind) or base_of(kind) == COPY else "cast", tensor, kind, part)
        yield action


def _followed(
    graph: Graph, forms: StepForms, passes: Sequence[Pass], *, waits: bool, last: bool = False
) -> Iterator[Action]:
    """The passes of operators, and what follows from them as soon as it can; where updates wait, once all norms are.

    Args:
        graph: the graph.
        forms: the launches.
        passes: the passes.
        waits: whether updates wait for all norms.
        last: whether the loss is told after all passes, for which a stage would wait that goes on with another batch.
    """
    nodes, loss = graph.nodes, graph.loss_tensor or 0
    trained = {tensor.id for tensor in graph.parameters}
    ends = {node.id for node in nodes if loss in node.results}
    forward = sum([found.kind == "forward" and found.node in ends for found in passes])
    counts = Counter([(found.kind, found.node) for found in passes])
    uses = {(kind, node): forms.uses(kind, nodes[node]) for kind, node in counts}
    left = Counter[int]()
    for key, count in counts.items():
        left.update(dict.fromkeys(uses[key].parameters, count))
    given = {tensor for own in uses.values() for tensor in own.contributed} & trained
    parts = Counter([(tensor, found.part) for found in passes for tensor in uses[found.kind, found.node].summed])
    begun: set[int] = set()
    updates, fetched = [], False
    for found in passes:
        if not last and not forward and not fetched and found.kind != "forward":
            fetched = True
            yield Action("fetch", loss, "loss")
        own = uses[found.kind, found.node]
        forward -= found.kind == "forward" and found.node in ends
        yield Action(found.kind, found.node, "", found.part)  # type: ignore[arg-type]
        for tensor in own.summed:
            parts[tensor, found.part] -= 1
            if not parts[tensor, found.part]:
                yield Action("sum", tensor, "" if tensor in begun else "first", found.part)
                begun.add(tensor)
        for tensor in own.parameters:
            left[tensor] -= 1
            if not left[tensor] and tensor in given:
                yield Action("norm" if waits else "update", tensor)
                updates.append(Action("update", tensor))
    if not fetched:
        yield Action("fetch", loss, "loss")
    yield from updates if waits else []


def _later(graph: Graph, forms: StepForms, actions: Iterable[Action], working: WorkingCopies) -> Iterator[Action]:
    """Actions, where what follows from the gradient of a weight that is whole only in passes comes one operator later.

    It takes its turn, or gradients of many layers could be on their way at once; so those of one are while the next are
    computed.
    """
    waiting: list[Action] = []
    for action in actions:
        if action.kind in AT_HOME and working.lives.get(action.number) == "pass":
            waiting.append(action)
            continue
        yield action
        if waiting and action.kind in PASSES and forms.uses(action.kind, graph.nodes[action.number]).contributed:
            yield from waiting
            waiting = []
    yield from waiting
