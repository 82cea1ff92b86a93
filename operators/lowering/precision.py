"""Precision: a graph under a plan's ``semantics.precision``, rewritten before anything of it is split.

A layer and a loss under ``precision=bf16``:

    tensor          kind         dtype       because
    x               input        float32     rounded as linear reads it
    linear.weight   parameter    float32     its home stays so; cast there, and halves travel to where linear reads it
    linear          activation   bfloat16    a product
    relu            activation   bfloat16    as wide as what it reads
    cross_entropy   activation   float32     a loss; what it reads becomes float32

The graph has the same nodes, tensors, names and numbers, so the plan, the searches and the simulator's places stay as
they are; every operator that reads or gives halves is a ``MixedPrecision`` around what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.operators.operator.operator import HALF_DTYPES
from maniple.operators.precision.autocast_policy import Policy, names_dtype, policy_of
from maniple.operators.precision.mixed_precision import MixedPrecision, in_tf32
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.rules.bound_rule import BoundRule
    from maniple.operators.rules.pattern import Pattern

__all__: list[str] = []

PRECISION = "precision"
SCALED = "fp16"
"""The precision under which the loss is scaled."""
TF32 = "tf32"
"""The precision under which GPUs round what products multiply, and nothing else changes."""
_BY_SIGN = frozenset(("relu", "rectified_batch_norm"))
"""Operators whose backward asks of a result whether it is above zero."""
PRECISIONS = {"float32": "", TF32: "", "bf16": "bfloat16", "fp16": "float16"}
"""What a plan may say, and the half that it means."""


def apply_semantics(graph: Graph, semantics: Mapping[str, str]) -> Graph:
    """The graph that runs under a plan's semantics, before its operators are split.

    Args:
        graph: the graph.
        semantics: of the plan.

    Returns:
        A graph of the same nodes and tensors; the graph itself where nothing changes.

    Raises:
        RequestError: the graph has nothing that could be a half.
    """
    operators = [node.operator.under(semantics) for node in graph.nodes]
    precision = semantics.get(PRECISION, "float32")
    half, inside = _extent(graph, precision)
    if half:
        operators = _in_precision(graph, operators, half, inside)
    if precision == TF32:
        operators = _in_tf32(graph, operators)
    if all(found is node.operator for found, node in zip(operators, graph.nodes, strict=True)):
        return graph
    found = graph.with_operators(operators)
    found.enter_autocast({})  # its operators say it now
    return found


def is_scaled(graph: Graph) -> bool:
    """Whether the loss of a graph that was rewritten is scaled: gradients in float16 would become zero."""
    return "float16" in graph.autocast.values() or any(tensor.dtype == "float16" for tensor in graph.tensors)


def _extent(graph: Graph, precision: str) -> tuple[str, list[bool]]:
    """The half of a plan, or else of the module's own regions; and of every node whether it runs in mixed precision."""
    asked, own = PRECISIONS[precision], set(graph.autocast.values())
    if asked and own - {asked}:
        raise RequestError(
            f"plan: semantics.precision: graph {graph.name!r} runs parts in {own.pop()} by itself; expected that, or "
            f"no precision; got {precision}"
        )
    if asked or not own:
        return asked, [True] * len(graph.nodes)
    return own.pop(), [node.name in graph.autocast for node in graph.nodes]


def _in_tf32(graph: Graph, operators: list[AbstractOperator]) -> list[AbstractOperator]:
    dtypes = {tensor.id: tensor.dtype for tensor in graph.tensors}
    found: list[AbstractOperator] = []
    for node, operator in zip(graph.nodes, operators, strict=True):
        read = tuple(None if operand is None else dtypes[operand] for operand in node.operands)
        product = policy_of(operator) == "half" and "float32" in read and node.name not in graph.autocast
        found.append(in_tf32(operator, read, node.name) if product else operator)
    if all(new is old for new, old in zip(found, operators, strict=True)):
        raise RequestError(f"plan: semantics.precision: graph {graph.name!r} has no product of float32; leave it out")
    return found


def _in_precision(
    graph: Graph, operators: list[AbstractOperator], half: str, inside: Sequence[bool]
) -> list[AbstractOperator]:
    tensors = graph.tensors
    if any(tensor.dtype == "float64" for tensor in tensors if tensor.kind != "activation"):
        name = next(tensor.name for tensor in tensors if tensor.kind != "activation" and tensor.dtype == "float64")
        raise RequestError(
            f"plan: semantics.precision: {name!r} of graph {graph.name!r} is float64, which no half stands for; build "
            "the graph in float32, or leave the precision out"
        )
    policies: list[Policy] = [
        _policy(graph, node, operator, within=within)
        for node, operator, within in zip(graph.nodes, operators, inside, strict=True)
    ]
    kept, sent = {graph.loss_tensor, *graph.assignments.values()}, _read_as_halves(graph, operators, policies)
    dtypes = {tensor.id: tensor.dtype for tensor in tensors}
    found: list[AbstractOperator] = []
    for node, operator, policy in zip(graph.nodes, operators, policies, strict=True):
        ends = _Ends(
            tuple(None if operand is None else dtypes[operand] for operand in node.operands),
            tuple(tensors[result].dtype for result in node.results),
            tuple(result in kept for result in node.results),
            tuple(result in sent for result in node.results),
        )
        mixed = _mixed(operator, policy, graph.bound(node), ends, half)
        if isinstance(mixed, MixedPrecision):
            dtypes |= dict(zip(node.results, mixed.gives, strict=True))
        found.append(mixed)
    if not any(dtype == half for dtype in dtypes.values()):
        raise RequestError(
            f"plan: semantics.precision: graph {graph.name!r} has no product that could be of halves; leave it out"
        )
    return found


@final
@dataclass(frozen=True, slots=True)
class _Ends:
    """What goes into an operator and comes out of it.

    Args:
        operands: dtypes, once what comes before is rewritten.
        results: dtypes of the graph as it was.
        kept: whether a result stays as it was: the loss, or a buffer's next value.
        sent: whether all that read a result would round it to halves.
    """

    operands: tuple[str | None, ...]
    results: tuple[str, ...]
    kept: tuple[bool, ...]
    sent: tuple[bool, ...]


def _policy(graph: Graph, node: Node, operator: AbstractOperator, *, within: bool) -> Policy:
    """How an operator runs; outside of regions all that computes does so in float32."""
    return policy_of(operator) if within else "widest" if _is_view(operator, graph.bound(node)) else "float32"


def _read_as_halves(graph: Graph, operators: Sequence[AbstractOperator], policies: Sequence[Policy]) -> set[int]:
    """The values of which nobody reads more than halves, directly or as a view: once is enough for all to round them.

    Such as what a layer norm gives to a linear layer; autocast keeps it in float32 beside its halves.
    """
    read, wider = set[int](), {graph.loss_tensor, *graph.outputs.values(), *graph.assignments.values()}
    for node, operator, policy in zip(reversed(graph.nodes), reversed(operators), reversed(policies), strict=True):
        rounds = policy == "half"
        moved = node.results[0] in read - wider and _is_view(operator, graph.bound(node))
        for operand in node.operands:
            if operand is not None:
                (read if rounds or moved else wider).add(operand)
    return read - wider


def _is_view(operator: AbstractOperator, bound: BoundRule) -> bool:
    """Whether an operator computes nothing: what it gives is what it reads."""
    ends = [shape for shape in (*bound.operand_shapes, *bound.result_shapes) if shape is not None]
    return len(ends) == 2 and operator.rearrangement(*ends) is not None


def _mixed(operator: AbstractOperator, policy: Policy, bound: BoundRule, ends: _Ends, half: str) -> AbstractOperator:
    """An operator as it is in mixed precision; itself where it neither reads nor gives halves."""
    halves = [dtype in HALF_DTYPES for dtype in ends.operands]
    singles = any(dtype == "float32" for dtype in ends.operands)
    if policy == "half":
        narrow = any(halves) or singles
    elif policy == "first":
        narrow = halves[0]
    else:
        narrow = policy == "widest" and any(halves) and not singles and not names_dtype(operator)
    rounds = tuple(half if policy == "half" and dtype == "float32" else "" for dtype in ends.operands)
    early = tuple(sent and _gives_early(operator, bound, place) for place, sent in enumerate(ends.sent))
    gives = tuple(
        half if dtype == "float32" and not kept and (sent or (narrow and not (policy == "first" and place))) else dtype
        for place, (dtype, kept, sent) in enumerate(zip(ends.results, ends.kept, early, strict=True))
    )
    folds: tuple[str, ...] = ()
    for place, dtype in enumerate(gives):
        if dtype in HALF_DTYPES:
            pattern = bound.rule.results[place]
            added = [f.name for f in bound.factors if f.splittable and f.name not in pattern.factors]
            if added and not _is_plain(pattern):  # no cast has a rule for its result
                return _mixed_singly(operator, ends, rounds)
            folds += tuple(name for name in added if name not in folds)
    if not any(halves) and not any(rounds) and gives == ends.results:
        return operator
    return MixedPrecision(operator, rounds, gives, folds, half if policy in {"half", "first"} and narrow else "")


def _gives_early(operator: AbstractOperator, bound: BoundRule, place: int) -> bool:
    """Whether an operator may round a result that all readers would round.

    A view gives what it reads, and a gradient that follows from a result from all its digits; of a ReLU the sign does.
    """
    told = place in operator.backward_reads.results and operator.name not in _BY_SIGN
    return not (told or _is_view(operator, bound))


def _mixed_singly(operator: AbstractOperator, ends: _Ends, rounds: tuple[str, ...]) -> AbstractOperator:
    if not any(dtype in HALF_DTYPES for dtype in ends.operands) and not any(rounds):
        return operator
    return MixedPrecision(operator, rounds, ends.results)


def _is_plain(pattern: Pattern) -> bool:
    """Whether each dimension of a tensor is one factor."""
    return all(len(dimension.terms) == 1 and dimension.halo is None for dimension in pattern.dimensions)
