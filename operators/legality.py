"""What makes a plan legal for a graph and a machine: one rule per function, each refusal naming its entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.operators.configuration import OperatorPlan, StagePlan, WeightPlan
    from maniple.operators.graph import Graph
    from maniple.runtime.machine import Machine

__all__: list[str] = []

BUILT_SEMANTICS = (("batch_norm", "local_stats"),)
"""What a plan may change of results by intent."""


def check_graph(fingerprint: str, graph: Graph) -> None:
    """Refuse a plan that was made for another graph.

    Raises:
        RequestError: the fingerprints differ.
    """
    actual = graph.fingerprint()
    if fingerprint != actual:
        raise RequestError(
            f"plan: graph: the plan is for the graph {fingerprint!r}, but graph {graph.name!r} is {actual!r}; "
            "search a plan for this graph, or use the graph (and batch size) that the plan was made for"
        )


def check_names(what: str, planned: Iterable[str], wanted: Sequence[str]) -> None:
    """Refuse a plan that lacks an operator or weight of the graph, or has one too many.

    Raises:
        RequestError: the first such name.
    """
    known = set(planned)
    for name in sorted(known.difference(wanted)):
        raise RequestError(f"plan: {what}.{name}: the graph has no such name{nearest(name, list(wanted))}")
    for name in wanted:
        if name not in known:
            raise RequestError(f"plan: {what}.{name}: missing; the plan must say how every one of the {what} runs")


def check_built(
    semantics: Sequence[tuple[str, str]],
    edges: Sequence[tuple[str, str]],
    stages: Sequence[StagePlan],
    graph: Graph,
) -> None:
    """Refuse what a plan can say and the runtime cannot do yet.

    Raises:
        RequestError: the first such entry, or a stage or edge that does not fit the graph.
    """
    for key, value in semantics:
        if (key, value) in BUILT_SEMANTICS:
            continue
        raise _not_built(
            f"semantics.{key}", f"{key}={value}", "use batch_norm=local_stats, or leave semantics empty: exact results"
        )
    wanted = [node.name for node in graph.nodes]
    results = {result: node.name for node in graph.nodes for result in node.results}
    joined = [
        f"{results.get(operand, graph.tensors[operand].name)} -> {node.name}"
        for node in graph.nodes
        for operand in node.operands
        if operand is not None
    ]
    for edge, choice in edges:
        if edge not in joined:
            raise RequestError(f"plan: edges.{edge}: the graph has no such edge{nearest(edge, joined)}")
        if choice != "keep":
            raise _not_built(f"edges.{edge}", f"{choice!r}", "use 'keep'")
    for index, stage in enumerate(stages):
        if stage.order != "sequential":
            raise _not_built(f"stages[{index}].order", f"the pipeline order {stage.order!r}", "use 'sequential'")
        if stage.micro_batches != 1:
            raise _not_built(f"stages[{index}].micro_batches", f"{stage.micro_batches} micro-batches", "use 1")
    staged = [operator for stage in stages for operator in stage.operators]
    if stages:
        check_names("stages", staged, wanted)
    for operator in staged:
        if staged.count(operator) > 1:
            raise RequestError(f"plan: stages.{operator}: expected every operator in one stage, got it in several")


def check_operators(operators: Mapping[str, OperatorPlan], graph: Graph, machine: Machine, *, strict: bool) -> None:
    """Refuse illegal configurations of operators.

    Raises:
        RequestError: the first operator and entry that is wrong.
    """
    check_names("operators", operators, [node.name for node in graph.nodes])
    for node in graph.nodes:
        where, plan = f"operators.{node.name}", operators[node.name]
        factors = {factor.name: factor for factor in graph.bound(node).factors}
        check_names(f"{where}.degrees", dict(plan.degrees), list(factors))
        if tuple(factor for factor, _ in plan.degrees) != tuple(factors):
            raise RequestError(f"plan: {where}.degrees: expected the order {list(factors)}, got {dict(plan.degrees)}")
        for name, degree in plan.degrees:
            factor = factors[name]
            if degree > 1 and not factor.splittable:
                raise RequestError(f"plan: {where}.degrees.{name}: factor {name} stays whole: expected 1, got {degree}")
            if strict and degree > max(1, factor.extent):
                raise RequestError(
                    f"plan: {where}.degrees.{name}: expected a degree of at most {factor.extent} (the extent of "
                    f"factor {name}), got {degree}"
                )
        if plan.recompute:
            raise _not_built(f"{where}.recompute", "recomputation", "use false")
        _check_processors(where, plan, machine)


def check_weights(weights: Mapping[str, WeightPlan], graph: Graph, machine: Machine) -> None:
    """Refuse illegal homes of weights.

    Raises:
        RequestError: the first weight and entry that is wrong.
    """
    check_names("weights", weights, [parameter.name for parameter in graph.lasting])
    for parameter in graph.lasting:
        where, plan = f"weights.{parameter.name}", weights[parameter.name]
        if len(plan.degrees) != len(parameter.shape):
            raise RequestError(
                f"plan: {where}.degrees: expected {len(parameter.shape)} degrees for the shape {parameter.shape}, "
                f"got {list(plan.degrees)}"
            )
        for axis, (degree, extent) in enumerate(zip(plan.degrees, parameter.shape, strict=True)):
            if degree > max(1, extent):
                raise RequestError(
                    f"plan: {where}.degrees[{axis}]: expected a degree of at most {extent} (the extent of "
                    f"dimension {axis}), got {degree}"
                )
        if plan.version != "latest":
            raise _not_built(f"{where}.version", f"the version rule {plan.version!r}", "use 'latest'")
        _check_processors(where, plan, machine)


def _check_processors(where: str, plan: OperatorPlan | WeightPlan, machine: Machine) -> None:
    count = len(machine.processors)
    for index, processor in enumerate(plan.processors):
        if not 0 <= processor < count:
            have = f"{count}: 0..{count - 1}" if count > 1 else "1: 0"
            raise RequestError(
                f"plan: {where}.processors[{index}]: processor {processor} does not exist; the machine has {have}"
            )
    for start in range(0, len(plan.processors), plan.replicas):
        replicas = plan.processors[start : start + plan.replicas]
        if len(set(replicas)) != len(replicas):
            raise RequestError(
                f"plan: {where}.processors[{start}]: expected the {plan.replicas} replicas of one point on distinct "
                f"processors, got {list(replicas)}"
            )


def _not_built(where: str, what: str, instead: str) -> RequestError:
    return RequestError(f"plan: {where}: {what} is not built yet; {instead}")
