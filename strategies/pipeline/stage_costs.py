"""What a stage costs: named assumptions, the levels of the machine, and the ticks that searches count in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, final

import numpy as np
import numpy.typing as npt

from maniple.operators.plan.version_semantics import weight_copies
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.pipeline_order.version_rule import VersionRule
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.ideals import Ticks

__all__: list[str] = []

Floats = npt.NDArray[np.float64]
Number = TypeVar("Number", float, Floats)
Overlap = Literal["overlap", "add"]
Order = Literal["1f1b", "1f1b-so", "fbp", "gpipe", "pipedream", "2bw", "asynchronous"]
ORDERS: tuple[Order, ...] = ("1f1b", "1f1b-so", "fbp", "gpipe", "pipedream", "2bw", "asynchronous")
FLUSHED: tuple[Order, ...] = ("1f1b", "1f1b-so", "fbp", "gpipe")
"""The orders that end a mini-batch with a flush, after which weights are updated once."""
SHARED: tuple[Order, ...] = (*FLUSHED, "asynchronous")
"""The orders whose replicas share the samples of a mini-batch; under others they take mini-batches in turn."""

_TICK_S = 1e-12
_MOST_TICKS = 1e16


@final
@dataclass(frozen=True, slots=True)
class Level:
    """One level of the machine: groups of equal members joined by equal links.

    Args:
        members: how many devices (or groups of the level below) a group has.
        bandwidth: bytes per second of a member's link; infinite: communication costs nothing.
    """

    members: int
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.members < 1:
            raise RequestError(f"level: expected at least 1 device, got {self.members}")
        if not self.bandwidth > 0:
            raise RequestError(f"bandwidth: expected more than 0 bytes per second, got {self.bandwidth:g}")


@final
@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a prediction takes for granted, each with its default.

    Args:
        transfers: whether a stage's transfers ``overlap`` its work (the larger counts) or ``add`` to it.
        synchronization: whether the replicas' weight synchronisation ``add``s to their work or ``overlap``s it.
        crossings: how often a cut tensor crosses: the activation forward and its gradient backward make 2.
        compression: a cut tensor's bytes are divided by this before they are sent.
        synchronized: bytes that r replicas of a stage move per byte of weights, times r / (r - 1).
        gradients: bytes of gradients per byte of weights.
        optimizer: bytes of optimizer state per byte of weights: 0 plain, 1 momentum, 2 Adam.
        order: the pipeline order whose activations and weight versions a stage holds.
        micro_batches: into how many parts a mini-batch is cut.
        rule: of ``asynchronous``, the order of plans without a flush: which versions of weights stages read.
    """

    transfers: Overlap = "overlap"
    synchronization: Overlap = "add"
    crossings: float = 2.0
    compression: float = 1.0
    synchronized: float = 4.0
    gradients: float = 1.0
    optimizer: float = 1.0
    order: Order = "pipedream"
    micro_batches: int = 1
    rule: VersionRule | None = None

    def __post_init__(self) -> None:
        """Check the choices and numbers."""
        if (self.order == "asynchronous") != (self.rule is not None):
            raise RequestError(
                "order: 'asynchronous' is that of plans, and a plan says which weights are read: ask `maniple search "
                "--strategy pipedream --semantics weights=RULE`; the published orders are "
                f"{', '.join(order for order in ORDERS if order != 'asynchronous')}"
            )
        for what, value in (("transfers", self.transfers), ("synchronization", self.synchronization)):
            if value not in {"overlap", "add"}:
                raise RequestError(f"{what}: {value!r} is no choice{nearest(str(value), ('add', 'overlap'))}")
        if self.order not in ORDERS:
            raise RequestError(f"order: {self.order!r} is no choice{nearest(str(self.order), ORDERS)}")
        for what in ("crossings", "synchronized", "gradients", "optimizer"):
            number: float = getattr(self, what)
            if not (math.isfinite(number) and number >= 0):
                raise RequestError(f"{what}: expected a finite number >= 0, got {number:g}")
        if not (math.isfinite(self.compression) and self.compression > 0):
            raise RequestError(f"compression: expected a finite number > 0, got {self.compression:g}")
        if self.micro_batches < 1:
            raise RequestError(f"micro-batches: expected at least 1, got {self.micro_batches}")

    def in_flight(self, downstream: int, replicas: int) -> int:
        """The (micro-)batches whose activations a stage holds at once.

        ``pipedream`` and ``2bw`` admit a mini-batch per device from this stage on, per replica of the stage
        (Narayanan et al., SOSP 2019, section 3.2); ``1f1b`` as many micro-batches, at most all; ``1f1b-so`` and
        ``fbp`` about twice as many, to overlap transfers or both passes (Zhao et al., BaPipe); ``gpipe`` all;
        ``asynchronous`` a mini-batch for each stage from this one on, of which there are at most as many as devices.

        Args:
            downstream: devices of the stages after it.
            replicas: devices of the stage.
        """
        if self.order == "asynchronous":
            return downstream + 1
        if self.order == "gpipe":
            return self.micro_batches
        admitted = -(-downstream // replicas) + 1
        if self.order in {"1f1b-so", "fbp"}:
            admitted = 2 * admitted - 1
        return min(admitted, self.micro_batches) if self.order in FLUSHED else admitted

    def versions(self, downstream: int, replicas: int, before: int = 0) -> int:
        """The copies of its weights that a stage holds: one for each batch in flight where they are stashed.

        Args:
            downstream: devices of the stages after it.
            replicas: devices of the stage.
            before: devices of the stages before it.
        """
        if self.rule is not None:
            return weight_copies(self.rule, before, before + 1 + downstream)
        if self.order == "pipedream":
            return self.in_flight(downstream, replicas)
        return 2 if self.order == "2bw" else 1


@final
@dataclass(frozen=True, slots=True)
class Clock:
    """Integer time: how many seconds a tick has.

    Ticks of a picosecond where everything fits, of ten, a hundred, ... picoseconds where not.
    """

    tick_s: float

    @staticmethod
    def fitting(longest_s: float) -> Clock:
        """The finest clock that can count a time with room to add.

        Raises:
            RequestError: the time is not finite.
        """
        if not math.isfinite(longest_s):
            raise RequestError("the costs add up to no finite time; check bandwidths and times")
        tick = _TICK_S
        while longest_s / tick > _MOST_TICKS:
            tick *= 10
        return Clock(tick)

    def ticks(self, seconds: float) -> int:
        """The nearest number of ticks."""
        return round(seconds / self.tick_s)

    def seconds(self, ticks: int) -> float:
        """The seconds of some ticks."""
        return ticks * self.tick_s


def synchronization_s(assumptions: Assumptions, level: Level, replicas: int, shared: int, parameters: float) -> float:
    """Seconds per mini-batch in which some replicas synchronise weights.

    Args:
        assumptions: see there.
        level: whose links they use.
        replicas: how many.
        shared: devices in each replica, every one of which synchronises a part over its own link.
        parameters: bytes.
    """
    if replicas == 1:
        return 0.0
    moved = assumptions.synchronized * (replicas - 1) / replicas * parameters / (level.bandwidth * shared)
    # Replicas that take mini-batches in turn synchronise once for as many mini-batches as there are replicas.
    return moved / replicas if assumptions.order == "pipedream" else moved


def work_s(assumptions: Assumptions, seconds: Number, start_s: Number, replicas: int) -> Number:
    """Seconds per mini-batch in which each of some replicas computes.

    Under some orders replicas share the samples of every micro-batch, so each starts all of them; under others they
    take (micro-)batches in turn.

    Args:
        assumptions: see there.
        seconds: of a mini-batch that is not cut, on one device.
        start_s: of them, what each micro-batch takes however small.
        replicas: how many.
    """
    if assumptions.order in SHARED:
        return (seconds - start_s) / replicas + assumptions.micro_batches * start_s
    return (seconds + (assumptions.micro_batches - 1) * start_s) / replicas


def transfer_s(assumptions: Assumptions, level: Level, replicas: int, size: float) -> float:
    """Seconds per mini-batch in which one replica moves its part of a cut.

    Args:
        assumptions: see there.
        level: whose links are used.
        replicas: of the stage.
        size: bytes that cross the cut in one direction.
    """
    return assumptions.crossings * size / (assumptions.compression * level.bandwidth * replicas)


def clock_for(graph: CostGraph, levels: tuple[Level, ...], assumptions: Assumptions) -> Clock:
    """A clock that can count anything a stage of the graph may cost."""
    longest = graph.compute_s + assumptions.micro_batches * sum(node.start_s for node in graph.nodes)
    activations = sum(node.activation_bytes for node in graph.nodes)
    parameters = sum(node.parameter_bytes for node in graph.nodes)
    for level in levels:
        longest += assumptions.synchronized * parameters / level.bandwidth
        longest += transfer_s(assumptions, level, 1, activations)
    return Clock.fitting(longest)


def node_work(
    graph: CostGraph, level: Level, assumptions: Assumptions, replicas: int, clock: Clock, shared: int = 1
) -> tuple[Ticks, Ticks]:
    """Ticks of each node on 1, 2, ... replicas: of both passes, and of synchronisation; shape (nodes, replicas)."""
    compute = np.array([(node.compute_s, node.start_s) for node in graph.nodes], dtype=np.float64)
    return per_replica(assumptions, compute, replicas, clock), synchronization_ticks(
        graph, level, assumptions, replicas, clock, shared
    )


def per_replica(assumptions: Assumptions, seconds: Floats, replicas: int, clock: Clock, parts: int = 1) -> Ticks:
    """Ticks of each node when 1, 2, ... replicas share its work, shape (nodes, replicas).

    Args:
        assumptions: see there.
        seconds: of each node for a mini-batch, and of them what each micro-batch takes however small; shape (nodes, 2).
        replicas: the most.
        clock: what a tick is.
        parts: into how many equal parts the time is cut.
    """
    work = [work_s(assumptions, seconds[:, 0], seconds[:, 1], count) / parts for count in range(1, replicas + 1)]
    return np.rint(np.stack(work, axis=1) / clock.tick_s).astype(np.int64)


def synchronization_ticks(
    graph: CostGraph, level: Level, assumptions: Assumptions, replicas: int, clock: Clock, shared: int = 1
) -> Ticks:
    """Ticks of synchronising each node's weights among 1, 2, ... replicas, shape (nodes, replicas)."""
    parameters = np.array([node.parameter_bytes for node in graph.nodes], dtype=np.float64)
    factors = [synchronization_s(assumptions, level, m, shared, 1.0) for m in range(1, replicas + 1)]
    ticks: Ticks = np.rint(parameters[:, None] * np.array(factors) / clock.tick_s).astype(np.int64)
    return ticks


def cut_ticks(crossing: Ticks, level: Level, assumptions: Assumptions, replicas: int, clock: Clock) -> Ticks:
    """Ticks of transfers over each ideal's cut on 1, 2, ... replicas, shape (ideals, replicas)."""
    counts = np.arange(1, replicas + 1, dtype=np.float64)
    per_byte = transfer_s(assumptions, level, 1, 1.0) / clock.tick_s
    ticks: Ticks = np.rint(crossing.astype(np.float64)[:, None] * per_byte / counts).astype(np.int64)
    return ticks
