"""A lower bound on the step time of every plan for a graph on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.plan.version_semantics import WEIGHTS
from maniple.strategies.bound.crossing import crossing_ns, exchange_ns, report_ns
from maniple.strategies.bound.launch_chain import ends
from maniple.strategies.bound.span import NS, Rates, spans
from maniple.strategies.bound.trade_off import trade_off_ns
from maniple.strategies.bound.whole_step import MOMENTUM, change_semantics

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


Semantics = tuple[tuple[str, str], ...]


def lower_bound_s(
    graph: Graph, machine: Machine, optimizer: AbstractOptimizer | None = None, semantics: Semantics = ()
) -> float:
    """Seconds below which no plan can go, by the roofline of the machine's processors.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine.
        optimizer: what updates the weights; None: descent with momentum.
        semantics: what the plans change of results by intent; see ``Plan``.
    """
    return max(terms_ns(graph, machine, optimizer, semantics).values()) * NS


def terms_ns(
    graph: Graph, machine: Machine, optimizer: AbstractOptimizer | None = None, semantics: Semantics = ()
) -> dict[str, float]:
    """Nanoseconds below which no plan can go, each by the reason of its name; see the package's first lines."""
    if semantics:
        graph = change_semantics(graph, semantics)
    found = spans(graph, machine, optimizer or MOMENTUM)
    terms = {"work": sum(span.work for span in found) / len(machine.processors)}
    if WEIGHTS in dict(semantics):
        return terms  # without a flush steps overlap: who is last in one may be at work while the next has begun
    times = ends(found)
    terms["path"] = max(times.last)
    terms["trade_off"] = trade_off_ns(found, Rates.of(graph, machine), len(machine.processors))
    crossing = crossing_ns(machine)
    if crossing:
        most = max(len(machine.processors_of(memory.id)) for memory in machine.memories)
        terms["report"] = report_ns(found, times, most, crossing)
        terms["exchange"] = exchange_ns(graph, found, times, most, crossing)
    return terms
