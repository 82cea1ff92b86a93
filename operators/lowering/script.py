"""Scripts: what a step does, in order. This module alone says it: the expansion and the simulator walk the same script.

    y = linear(x, w), loss = cross_entropy(y, t)

    a training step      x and t arrive, the clock arrives
                         linear forward, cross_entropy forward
                         the loss goes to every rank
                         cross_entropy backward, linear backward, w is updated
    an evaluation        x and t arrive, the clock arrives, linear forward, cross_entropy forward, outputs go to all

Operators go backward in reverse order, and a parameter is updated as soon as its gradient is complete; where gradients
are clipped by their norm, as soon as all are. Buffers get their next values last: whatever reads one in the step sees
the old value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, final

from maniple.operators.graph.differentiation import find_needed
from maniple.operators.lowering.launch_form import BackwardForms, find_halves
from maniple.operators.lowering.precision import is_scaled
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []


@final
class Action(NamedTuple):
    """One thing that a step does.

    Args:
        kind: what: ``input``, ``clock`` and ``hyper``, the numbers of updates, arrive where tasks read them, if any
            do; ``cast`` gives the values of a parameter as halves; ``fetch`` brings a tensor whole to every rank;
            ``norm`` adds a gradient's squares up with all others; ``rescale`` changes the scale of the loss;
            ``assign`` gives a buffer its next value.
        number: of the operator, for ``forward`` and ``backward``; else of the tensor; of the clock and of numbers 0.
        port: where a fetched tensor leaves; of a cast the dtype.
    """

    kind: Literal[
        "input", "clock", "hyper", "cast", "forward", "fetch", "backward", "norm", "update", "rescale", "assign"
    ]
    number: int
    port: str = ""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """What a step does.

    Args:
        nodes: the operators that it needs, in the graph's order.
        actions: what it does, in order.
        backward: the launches of the backward pass; of an evaluation there are none.
    """

    nodes: tuple[Node, ...]
    actions: tuple[Action, ...]
    backward: BackwardForms


def training_script(graph: Graph, optimizer: AbstractOptimizer | None = None) -> Script:
    """What a training step does.

    Args:
        graph: the graph.
        optimizer: what updates the weights; None: one that has no numbers that enter.

    Raises:
        RequestError: the graph has no loss.
    """
    if graph.loss_tensor is None:
        raise RequestError(f"graph {graph.name!r} has no loss to train for; name one with loss(tensor)")
    nodes = find_needed(graph, [graph.loss_tensor, *graph.assignments.values()])
    backward = BackwardForms(graph, nodes, scaled=optimizer is not None and is_scaled(graph))
    trained = {tensor.id for tensor in graph.parameters}
    actions = [Action("hyper", 0)] if optimizer is not None and optimizer.enters else []
    actions += [*_forward(graph, nodes), Action("fetch", graph.loss_tensor, "loss")]
    waits = optimizer is not None and needs_squares(graph, optimizer)
    updates = []
    for node in reversed(nodes):
        actions.append(Action("backward", node.id))
        complete = [tensor for tensor in backward.complete(node) if tensor in trained]
        actions += [Action("norm" if waits else "update", tensor) for tensor in complete]
        updates += [Action("update", tensor) for tensor in complete]
    actions += updates if waits else []
    actions += [Action("rescale", 0)] if optimizer is not None and is_scaled(graph) else []
    actions += [Action("assign", buffer) for buffer in graph.assignments]
    return Script(tuple(nodes), tuple(actions), backward)


def needs_squares(graph: Graph, optimizer: AbstractOptimizer) -> bool:
    """Whether updates wait for the sum of the squares of all gradients: they are clipped by it, or may overflow."""
    return optimizer.clip_norm is not None or is_scaled(graph)


def evaluation_script(graph: Graph) -> Script:
    """What an evaluation does: the forward pass of what the outputs need, and the way of the outputs to every rank."""
    nodes = find_needed(graph, graph.outputs.values())
    fetches = [Action("fetch", tensor, name) for name, tensor in graph.outputs.items()]
    return Script(tuple(nodes), (*_forward(graph, nodes), *fetches), BackwardForms(graph, ()))


def fetch_script(graph: Graph) -> Script:
    """What brings every parameter and buffer to every rank."""
    fetches = tuple(Action("fetch", tensor.id, tensor.name) for tensor in graph.lasting)
    return Script((), fetches, BackwardForms(graph, ()))


def _forward(graph: Graph, nodes: Iterable[Node]) -> Iterator[Action]:
    yield from (Action("input", tensor.id) for tensor in graph.inputs)
    yield Action("clock", 0)
    cast: set[int] = set()
    for node in nodes:
        for tensor, dtype in find_halves(graph, [node]).items():
            if tensor not in cast:
                yield Action("cast", tensor, dtype)
                cast.add(tensor)
        yield Action("forward", node.id)
