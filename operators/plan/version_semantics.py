"""The semantics of weights: which versions of them a pipeline without a flush reads, and what makes that legal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.pipeline_order.named_order import ASYNCHRONOUS, EARLY, WITHOUT_FLUSH
from maniple.operators.pipeline_order.version_rule import RULES, predicted
from maniple.operators.training.prediction import PREDICTORS, check_optimizer
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.pipeline_order.version_rule import VersionRule
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

WEIGHTS = "weights"
"""The key of the semantics."""
NO_STRATEGY = (
    "the strategy makes no plans without a flush; ask pipedream or spectrain, or give stages the order 'asynchronous' "
    "by plan.with_pipeline, and the rule as its semantics"
)
"""What is said where a search is to find one."""
NO_REPORT = "a report is of a step by itself, and without a flush steps overlap; look at trainer.timeline()"
"""What is said where one is to be reported of."""


def version_names() -> tuple[str, ...]:
    """All rules that a plan can name."""
    return tuple(sorted({*RULES, *PREDICTORS.names()}))


def version_rule(semantics: Mapping[str, str]) -> VersionRule | None:
    """The rule that semantics name; None where every step sees all updates before it."""
    name = semantics.get(WEIGHTS)
    if name is None:
        return None
    return RULES[name] if name in RULES else predicted(name)


def rule_of(plan: Plan) -> VersionRule | None:
    """The rule of a plan, early if its order is; None where every step sees all updates before it."""
    rule = version_rule(dict(plan.semantics))
    if rule is None or plan.pipeline is None or plan.pipeline.order != EARLY:
        return rule
    return replace(rule, early=True)


def weight_copies(rule: VersionRule, stage: int, stages: int) -> int:
    """How often a stage has a weight that both passes read: its versions, and what is predicted for a pass."""
    delays = PREDICTORS.lookup(rule.name)().delays(stage, stages) if rule.predicts else ()
    return rule.versions(stage, stages) + any(delays)


def with_flush(semantics: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The same semantics of a plan with a flush."""
    return tuple((key, value) for key, value in semantics if key != WEIGHTS)


def check_version_name(name: str) -> None:
    """Refuse a rule that there is not.

    Raises:
        RequestError: it names the good ones.
    """
    known = version_names()
    if name not in known:
        raise RequestError(
            f"plan: semantics.{WEIGHTS}: expected {', '.join(known)}, or no such key: a step sees all updates before "
            f"it; got {name!r}{nearest(name, known)}"
        )


def refuse_versions(semantics: Mapping[str, str], reason: str) -> None:
    """Refuse a rule where there can be none.

    Args:
        semantics: of a plan, or asked for.
        reason: why, and what to do instead.

    Raises:
        RequestError: there is one.
    """
    if WEIGHTS in semantics:
        raise RequestError(f"semantics.{WEIGHTS}: {reason}")


def check_versions(plan: Plan, graph: Graph) -> None:
    """Refuse a rule without the order that needs one, the order without a rule, and what cannot be without a flush.

    Raises:
        RequestError: the first of these.
    """
    name = dict(plan.semantics).get(WEIGHTS)
    order = None if plan.pipeline is None else plan.pipeline.order
    if (name is None) and order in WITHOUT_FLUSH:
        raise RequestError(
            f"plan: semantics.{WEIGHTS}: missing; order {order!r} has no flush, so the plan must say which "
            f"weights are read: {', '.join(version_names())}"
        )
    if name is None:
        return
    if order not in WITHOUT_FLUSH:
        found = "no pipeline" if order is None else f"order {order!r}, which has a flush"
        raise RequestError(
            f"plan: semantics.{WEIGHTS}: {name} is a rule of order {ASYNCHRONOUS!r}; got {found}: leave the rule out, "
            "or give that order"
        )
    if len(plan.stages) < 2:
        raise RequestError(
            f"plan: semantics.{WEIGHTS}: expected at least 2 stages, for one stage has no versions but the newest; got "
            f"{len(plan.stages)}"
        )
    _check_parts(name, 1 if plan.pipeline is None else plan.pipeline.micro_batches, len(plan.stages))
    if order == EARLY and not (name in RULES and RULES[name].adds):
        raise RequestError(
            f"plan: pipeline.order: expected {ASYNCHRONOUS!r} beside semantics.{WEIGHTS} {name}, which has a "
            f"mini-batch for each stage in flight; got {EARLY!r}: 2bw has more micro-batches in flight early"
        )
    semantics = dict(plan.semantics)
    if semantics.get("precision") not in {None, "float32"}:
        raise RequestError(
            f"plan: semantics.precision: expected float32 beside semantics.{WEIGHTS}; got {semantics['precision']}"
        )
    if graph.autocast:
        raise RequestError(
            f"plan: semantics.{WEIGHTS}: expected a graph in float32; {graph.name!r} runs "
            f"{next(iter(graph.autocast))!r} under autocast of its own: import it without"
        )
    for node in graph.nodes:
        if node.operator.under({"batch_norm": "local_stats"}) != node.operator and "batch_norm" not in semantics:
            raise RequestError(
                f"plan: semantics.batch_norm: expected local_stats beside semantics.{WEIGHTS}: {node.name} has running "
                "statistics over all batches in their order, and stages are at different ones"
            )
    for name, operator in plan.operators:
        if operator.recompute:
            raise RequestError(
                f"plan: operators.{name}.recompute: expected false beside semantics.{WEIGHTS}: what is computed again "
                "would be computed with other weights"
            )


def _check_parts(name: str, micro_batches: int, stages: int) -> None:
    """Refuse micro-batches with a rule that has none, and too few for one that adds their gradients up."""
    adds = name in RULES and RULES[name].adds
    if adds and micro_batches < stages:
        raise RequestError(
            f"plan: pipeline.micro_batches: expected at least {stages} beside semantics.{WEIGHTS} {name}, one for each "
            f"stage, so that weights are one update late and no more; got {micro_batches}"
        )
    if not adds and micro_batches != 1:
        raise RequestError(
            f"plan: pipeline.micro_batches: expected 1 micro-batch beside semantics.{WEIGHTS} {name}, for mini-batches "
            f"follow each other; got {micro_batches}: 2bw takes several"
        )


def optimizer_under(plan: Plan, optimizer: AbstractOptimizer, names: tuple[str, ...]) -> AbstractOptimizer:
    """The optimizer as a plan needs it: where weights are predicted its numbers enter each step.

    Args:
        plan: the plan.
        optimizer: of all parameters.
        names: of the parameters.

    Raises:
        RequestError: it cannot say what it will subtract.
    """
    rule = version_rule(dict(plan.semantics))
    if rule is None or not rule.predicts:
        return optimizer
    check_optimizer(optimizer, names, rule.name)
    return optimizer.varying()
