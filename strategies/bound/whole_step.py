"""The step as one processor computes it alone: the launches that every plan cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.operator_body import BackwardBinder, ForwardBinder
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.plan.plan import Plan
from maniple.operators.plan.weight_home import default_homes
from maniple.operators.training.descent import SGD
from maniple.strategies.bound.access import Access, entire, slot_uses
from maniple.strategies.interface.placement import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.rules.pattern import Pattern
    from maniple.operators.rules.rule import BoundRule
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.bound.access import Uses

__all__: list[str] = []

MOMENTUM = SGD(lr=0.1, momentum=0.9)
"""What updates the weights where nobody says."""


def whole_step(
    graph: Graph, machine: Machine, processor: int, optimizer: AbstractOptimizer = MOMENTUM
) -> tuple[Launch, ...]:
    """The launches of a step that one processor computes alone."""
    return training_step(graph, _alone(graph, machine, processor), machine, optimizer, views=False).launches


def accumulated_step(
    graph: Graph, machine: Machine, processor: int, parts: int, optimizer: AbstractOptimizer = MOMENTUM
) -> tuple[Launch, ...]:
    """The launches of such a step, of several micro-batches, as they run: what computes nothing has none.

    Args:
        graph: the model.
        machine: what the processor is part of.
        processor: who computes.
        parts: how many micro-batches; 1: the mini-batch is not cut.
        optimizer: what updates the weights.

    Raises:
        RequestError: micro-batches cannot go through the graph one by one.
    """
    plan = _alone(graph, machine, processor)
    plan = plan.with_pipeline(order="gpipe", micro_batches=parts) if parts > 1 else plan
    return training_step(graph, plan, machine, optimizer).launches


def _alone(graph: Graph, machine: Machine, processor: int) -> Plan:
    """The plan of a step that one processor computes alone."""
    operators = tuple((node.name, whole(graph, node, processor)) for node in graph.nodes)
    return Plan("", "", operators, default_homes(graph, operators, machine))  # no file ever holds it


def change_semantics(graph: Graph, semantics: tuple[tuple[str, str], ...]) -> Graph:
    """The graph that runs under plans that change results by intent."""
    return apply_semantics(graph, dict(semantics))


def accesses(launch: Launch) -> tuple[Access, ...]:
    """What the parts of a launch use of its regions, of a launch that one processor computes alone.

    Args:
        launch: of ``whole_step``.
    """
    return tuple(
        Access(requirement, uses) for requirement, uses in zip(launch.requirements, _uses(launch), strict=True)
    )


def node_of(launch: Launch) -> Node | None:
    """The operator of a launch; None where it is none's: an arrival, an update, a fetch."""
    binder = launch.binder
    return binder.node if isinstance(binder, BackwardBinder | ForwardBinder) else None


def rule_of(launch: Launch) -> BoundRule | None:
    """The rule of a launch's operator; None where the launch is none's."""
    binder = launch.binder
    return binder.graph.bound(binder.node) if isinstance(binder, BackwardBinder | ForwardBinder) else None


def patterns_of(launch: Launch) -> Iterator[Pattern | None]:
    """The pattern of each requirement of an operator's launch; None for the clock, which every part reads whole."""
    rule, binder = rule_of(launch), launch.binder
    if rule is not None and isinstance(binder, BackwardBinder | ForwardBinder):
        for role, place in binder.slots:
            if role == "clock":
                yield None
            elif role == "saved":
                yield rule.rule.saved[place][1]
            else:
                yield (rule.rule.operands if role.startswith("operand") else rule.rule.results)[place]


def _uses(launch: Launch) -> Iterator[Uses]:
    """What the parts of a launch use, requirement by requirement."""
    binder = launch.binder
    if isinstance(binder, BackwardBinder | ForwardBinder):
        bound = binder.graph.bound(binder.node)
        yield from (slot_uses(bound, slot) for slot in binder.slots)
    else:
        # Homes may be cut down to elements, and an arrival brings what its memory will read.
        yield from (entire(requirement.region.bounds.volume) for requirement in launch.requirements)
