"""What a segmentation is asked, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from maniple.process.error import RequestError, nearest
from maniple.strategies.pipeline.stage_costs import SHARED, Assumptions, Level

if TYPE_CHECKING:
    from maniple.strategies.pipeline.cost_graph import CostGraph

__all__: list[str] = []

Goal = Literal["throughput", "latency"]
GOALS: tuple[Goal, ...] = ("throughput", "latency")

MOST_STATES = 2_000_000
"""Ideals that are enumerated before the search turns to coarser graphs."""


@final
@dataclass(frozen=True, slots=True)
class SegmentationProblem:
    """A graph to cut into at most as many stages as there are devices.

    Args:
        graph: the graph with its costs.
        levels: the machine, innermost level first; the devices are the product of the members.
        replicate: whether a stage may run on several devices, each of which takes its share of the mini-batches.
        memory_bytes: of each device; None: no limit.
        goal: ``throughput``: the least slowest stage; ``latency``: the least time of one pipelined mini-batch.
        assumptions: what predictions take for granted.
        states: the most ideals to enumerate.

    Raises:
        RequestError: numbers that make no problem, or a layer that fits on no device.
    """

    graph: CostGraph
    levels: tuple[Level, ...]
    replicate: bool = False
    memory_bytes: float | None = None
    goal: Goal = "throughput"
    assumptions: Assumptions = field(default_factory=Assumptions)
    states: int = MOST_STATES

    def __post_init__(self) -> None:
        """Check what can be checked before the search."""
        if not self.levels:
            raise RequestError("levels: expected at least one level of devices")
        if self.goal not in GOALS:
            raise RequestError(f"objective {self.goal!r} is no choice{nearest(self.goal, GOALS)}")
        if self.states < 2:
            raise RequestError(f"states: expected a budget of at least 2 ideals, got {self.states}")
        if not self.replicate and self.devices > len(self.graph.nodes):
            raise RequestError(
                f"{self.graph.name}: expected at most as many stages as nodes, {len(self.graph.nodes)}, got "
                f"{self.devices}; ask for fewer stages, or allow replicas"
            )
        if self.memory_bytes is not None:
            self._check_memory(self.memory_bytes)

    def _check_memory(self, limit: float) -> None:
        if not (math.isfinite(limit) and limit > 0):
            raise RequestError(f"memory: expected more than 0 bytes, got {limit:g}")
        for node in self.graph.nodes:
            least = min(
                self.held_bytes(node.parameter_bytes, node.stored_bytes, 0, replicas)
                for replicas in range(1, (self.devices if self.replicate else 1) + 1)
            )
            if least > limit:
                raise RequestError(
                    f"{self.graph.name}: memory: expected room for the largest layer; node {node.id!r} alone holds "
                    f"{least:.0f} bytes, got a limit of {limit:.0f}; raise the limit, or cut the batch"
                )

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return math.prod(level.members for level in self.levels)

    def held_bytes(self, parameters: float, activations: float, downstream: int, replicas: int) -> float:
        """Bytes that each device of a stage holds.

        Weights in every version that the order needs, gradients, optimizer state, and the activations of every
        (micro-)batch in flight.

        Args:
            parameters: bytes of the stage's weights.
            activations: bytes that its nodes keep for backward, and of what it was sent, per mini-batch.
            downstream: devices of the stages after it.
            replicas: devices of the stage.
        """
        copies, flights = self.holding(downstream, replicas)
        return copies * parameters + flights * activations

    def holding(self, downstream: int, replicas: int) -> tuple[float, float]:
        """Bytes held per byte of weights, and per byte of a mini-batch's activations."""
        given = self.assumptions
        before = max(0, self.devices - downstream - replicas)
        copies = given.versions(downstream, replicas, before) + given.gradients + given.optimizer
        shares = replicas if given.order in SHARED else 1
        return copies, given.in_flight(downstream, replicas) / (given.micro_batches * shares)


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a pipeline.

    Args:
        nodes: places of its nodes in the graph, ascending.
        devices: those that share its mini-batches, numbered from 0 group by group.
        load_s: seconds per mini-batch in which the stage is busy.
        compute_s: of them the computation of one replica.
        memory_bytes: held by each of its devices.
        sent_bytes: that cross the cut after it, forward, per mini-batch; relayed tensors included.
    """

    nodes: tuple[int, ...]
    devices: tuple[int, ...]
    load_s: float
    compute_s: float
    memory_bytes: float
    sent_bytes: int

    @property
    def replicas(self) -> int:
        """How many devices share its mini-batches."""
        return len(self.devices)


@final
@dataclass(frozen=True, slots=True)
class Segmentation:
    """A pipeline.

    Args:
        stages: in order.
        bottleneck_s: seconds of the slowest stage per mini-batch.
        lower_bound_s: what no pipeline of the problem can go below (of the goal's value).
        exact: whether the value is known to be the least.
        states: ideals of the graph that was searched last.
        value_s: the goal's value: the bottleneck, or the latency of a mini-batch.
    """

    stages: tuple[Stage, ...]
    bottleneck_s: float
    lower_bound_s: float
    exact: bool
    states: int
    value_s: float

    @property
    def gap(self) -> float:
        """How far the value may be above the least, as a share of the bound; 0 when exact."""
        if self.exact:
            return 0.0
        return math.inf if self.lower_bound_s <= 0 else self.value_s / self.lower_bound_s - 1

    @property
    def balance(self) -> float:
        """The worst stage's load over the mean of all stages."""
        mean = math.fsum(stage.load_s for stage in self.stages) / len(self.stages)
        return self.bottleneck_s / mean if mean > 0 else 1.0
