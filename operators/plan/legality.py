"""What makes a plan legal for a graph and a machine: one rule per function, each refusal naming its entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.plan.version_semantics import WEIGHTS, check_version_name
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.rules.configuration import OperatorPlan, StagePlan, WeightPlan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

BUILT_SEMANTICS = (
    ("batch_norm", "local_stats"),
    ("precision", "float32"),
    ("precision", "bf16"),
    ("precision", "fp16"),
    ("precision", "tf32"),
)
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


def check_semantics(semantics: Sequence[tuple[str, str]]) -> None:
    """Refuse what a plan may not change of results.

    Raises:
        RequestError: the first such entry.
    """
    for key, value in semantics:
        if key == WEIGHTS:
            check_version_name(value)
        elif (key, value) not in BUILT_SEMANTICS:
            known = " or ".join("=".join(pair) for pair in BUILT_SEMANTICS)
            raise RequestError(
                f"plan: semantics.{key}: expected {known}, or no semantics at all: exact results; got {key}={value}"
            )


def check_stages(stages: Sequence[StagePlan], graph: Graph) -> None:
    """Refuse stages that do not hold every operator once.

    Raises:
        RequestError: the first operator that is missing, unknown or there twice.
    """
    staged = [operator for stage in stages for operator in stage.operators]
    if stages:
        check_names("stages", staged, [node.name for node in graph.nodes])
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
