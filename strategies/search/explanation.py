"""Explanations: why an operator of a plan is cut and placed as it is, found by simulating what else it could be.

    linear: n=4 on processors 0 1 2 3
      step: 8.1 ms, 12 MB moved
      runner-up: b=4 on 0 1 2 3
      step with the runner-up: 9.4 ms, 40 MB moved
      data parallel: b=4 on 0 1 2 3: slower by 1.3 ms

The runner-up is the fastest of the other configurations that are near at hand: every split in equal parts on as many
processors as it needs, from the operator's first one, on that processor alone, and as each neighbour is cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.placement import split_sample
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.search.memory_fit import excess
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan, Term
    from maniple.operators.rules.configuration import OperatorPlan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

NEAR = 64
"""So many other configurations are simulated at most."""


def explain(plan: Plan, graph: Graph, machine: Machine, operator: str) -> Plan:
    """The plan with the reasons for one operator's configuration.

    Args:
        plan: the plan.
        graph: the graph that it is for.
        machine: the machine that it was made for.
        operator: name of the operator.

    Raises:
        RequestError: the plan has no such operator, or is for another graph or machine.
    """
    chosen = plan.operator(operator)
    simulation = Simulation(graph, machine, plan)
    told: list[tuple[str, Term]] = [("step", _cost(simulation))]
    found: list[tuple[int, int, OperatorPlan, str]] = []
    for other in _near(plan, graph, machine, operator):
        step_ns = simulation.propose({operator: other})
        if excess(simulation)[0] <= 0:
            found.append((step_ns, len(found), other, _cost(simulation)))
        simulation.reject()
    if found:
        _, _, runner_up, cost = min(found, key=lambda item: item[:2])
        told += [("runner-up", _said(runner_up)), ("step with the runner-up", cost)]
    told.append(("data parallel", _obvious(simulation, graph, machine, operator, chosen)))
    rest = tuple((name, terms) for name, terms in plan.explanation if name != operator)
    return replace(plan, explanation=(*rest, (operator, tuple(told))))


def _near(plan: Plan, graph: Graph, machine: Machine, operator: str) -> list[OperatorPlan]:
    """Other configurations of an operator that are near at hand."""
    space = Space.of(graph, len(machine.processors))
    number = space.names.index(operator)
    own, chosen = space.operators[number], plan.operator(operator)
    first = chosen.processors[0]
    near = [Choice(degrees, 1, first) for degrees in equal_splits(own.factors, own.processors)]
    for place, other in enumerate(space.neighbours[number]):
        theirs = space.operators[other].choice(plan.operator(space.names[other]))
        carried = None if theirs is None else space.carry(number, place, theirs)
        near += [] if carried is None else [carried]
    # The larger splits come last in order: of too many, those are kept.
    plans = [own.plan(choice) for choice in dict.fromkeys(near)]
    return [other for other in plans if other != chosen][-NEAR:]


def _obvious(simulation: Simulation, graph: Graph, machine: Machine, operator: str, chosen: OperatorPlan) -> str:
    """What speaks against splitting an operator by sample over all processors."""
    node = graph.node(operator)
    obvious = split_sample(graph, node, machine)
    if obvious == chosen:
        return "it is the choice"
    if all(degree == 1 for _, degree in obvious.degrees):
        return "it has no samples that can be split"
    before = simulation.makespan_ns
    slower = simulation.propose({operator: obvious}) - before
    beyond, _ = excess(simulation)
    simulation.reject()
    if beyond > 0:
        return f"{_said(obvious)}: it needs {beyond} bytes more than a memory holds"
    if slower < 0:
        return f"{_said(obvious)}: faster by {-slower / 1e6:.3f} ms; the search did not find it"
    return f"{_said(obvious)}: " + (f"slower by {slower / 1e6:.3f} ms" if slower else "no faster")


def _cost(simulation: Simulation) -> str:
    found = simulation.predict()
    most = max(found.memory_bytes)
    return f"{found.step_ns / 1e6:.3f} ms, {found.bytes:,} bytes moved, at most {most:,} bytes in a memory"


def _said(plan: OperatorPlan) -> str:
    copies = f" x{plan.replicas} replicas" if plan.replicas > 1 else ""
    return f"{plan.split()}{copies} on {' '.join(map(str, plan.processors))}"
