"""Hybrids: operators split by sample, from one on by sample over hosts and by feature within them.

Early layers of a convolutional network have large results and few weights, late ones the reverse: so late weights are
cut within hosts, and a quarter of them crosses between hosts of four. (A. Krizhevsky, One weird trick for parallelizing
convolutional neural networks, arXiv 1404.5997, section 4, has the idea for dense layers and one host.)

    2 hosts of 2, from the second    degrees  processors
    conv2d                           b=4      p0 p1 p2 p3
    conv2d_1                         b=2 o=2  p0 p1 p2 p3
    relu, relu_1, flatten            b=2 c=2  p0 p1 p2 p3
    cross_entropy                    b=4      p0 p1 p2 p3

Or only operators with weights are cut so, and the others by sample, b=4. That moves more between operators where
few of them share a cut, and less where many, such as poolings and concatenations, would need another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.placement import complete, configure, split_sample
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.plan.plan import OperatorPlan, Plan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

QUARTERS = 4
"""Hybrids begin at the first operator, and after one, two and three quarters of them ..."""
MIDDLE = (1, 2)
"""... and those that cut weights only after these."""


@final
class Hybrid(AbstractDirectStrategy):
    """Cuts late operators within hosts too.

    Args:
        quarter: after how many quarters of the operators that begins.
        weights_only: whether operators without weights stay split by sample.
    """

    name: ClassVar[str] = "hybrid"

    def __init__(self, quarter: int, *, weights_only: bool = False) -> None:
        self._quarter, self._weights_only = quarter, weights_only

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, machine = problem.graph, problem.machine
        first = len(graph.nodes) * self._quarter // QUARTERS
        operators = (
            (
                node.name,
                (node.id >= first and self._within_hosts(graph, node, machine)) or split_sample(graph, node, machine),
            )
            for node in graph.nodes
        )
        return complete(problem, self.name, tuple(operators))

    def _within_hosts(self, graph: Graph, node: Node, machine: Machine) -> OperatorPlan | None:
        """The configuration by sample over hosts and by feature within; None where it cannot be cut so."""
        size, factors = processors_of_hosts(machine), graph.bound(node).factors
        cut = [factor for factor in factors if not factor.reduction and factor.highest_degree > 1]
        sample = next((factor for factor in cut if factor.role == "sample"), None)
        features = sorted(
            (
                factor
                for factor in cut
                if factor.role == "parameter" or not (factor.role == "sample" or self._weights_only)
            ),
            key=lambda factor: factor.role != "parameter",
        )
        hosts = len(machine.processors) // size
        if sample is None or not features or sample.highest_degree < hosts or features[0].highest_degree < size:
            return None
        return configure(graph, node, {sample.name: hosts, features[0].name: size}, machine)


def hybrids(machine: Machine) -> tuple[Hybrid, ...]:
    """All of a machine of several hosts of equally many processors, more than one."""
    if not processors_of_hosts(machine):
        return ()
    whole, middle = (
        (Hybrid(quarter) for quarter in range(QUARTERS)),
        (Hybrid(quarter, weights_only=True) for quarter in MIDDLE),
    )
    return (*whole, *middle)


def processors_of_hosts(machine: Machine) -> int:
    """How many processors a host has; 0 where there is one host, or hosts differ, or all have one."""
    hosts = [machine.memories[processor.memory].host for processor in machine.processors]
    size = hosts.count(hosts[0])
    even = len(set(hosts)) * size == len(hosts)
    even &= hosts == [hosts[first] for first in range(0, len(hosts), size) for _ in range(size)]
    return size if even and 1 < size < len(hosts) else 0
