"""The graph that a segmentation works on: operators with times and sizes, and who feeds whom."""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class CostNode:
    """One operator (or layer) and what it costs for one mini-batch on one device.

    Args:
        id: as the file or graph names it; unique.
        label: what it is, for people.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        activation_bytes: bytes of its output.
        parameter_bytes: bytes of its weights.
        stored_bytes: bytes that it keeps from forward to backward; 0 for an operator that works in place.
        cpu_s: seconds of both passes on a CPU; None where a CPU cannot run it.
        transfer_s: seconds that its output takes between a device and the host, where the file says so.
        device_bytes: bytes that it occupies on a device, where the file says one number for all.
        colour: nodes of one colour share a device; None: it is alone.
        backward: whether the node is a backward operator of its own (of a graph that holds both passes).
        supported: whether an accelerator can run it.
        forward_start_s: of ``forward_s``, what each micro-batch takes however small: starting kernels.
        backward_start_s: the same of ``backward_s``.
        beside: ids of operators that run with this one and that no other node depends on.
    """

    id: str
    label: str
    forward_s: float
    backward_s: float
    activation_bytes: int
    parameter_bytes: int
    stored_bytes: int = 0
    cpu_s: float | None = None
    transfer_s: float = 0.0
    device_bytes: float = 0.0
    colour: int | None = None
    backward: bool = False
    supported: bool = True
    forward_start_s: float = 0.0
    backward_start_s: float = 0.0
    beside: tuple[str, ...] = ()

    @property
    def compute_s(self) -> float:
        """Seconds of both passes on a device."""
        return self.forward_s + self.backward_s

    @property
    def start_s(self) -> float:
        """Seconds of both passes that do not shrink with a micro-batch."""
        return self.forward_start_s + self.backward_start_s


@final
@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a profile file asks to be filled.

    Args:
        accelerators: how many.
        cpus: how many CPU devices.
        memory_bytes: of each accelerator.
    """

    accelerators: int
    cpus: int
    memory_bytes: float


@final
@dataclass(frozen=True, slots=True)
class CostGraph:
    """Nodes in topological order (of equals the lowest id first), and edges between their places.

    Build one with ``of``, which orders and checks.

    Args:
        name: what people call it.
        nodes: every node after all nodes that feed it.
        edges: (place of the source, place of the target), sorted, each once.
        devices: what the file that it came from says about devices.
        uncounted: why each micro-batch is taken to add starts of kernels alone, where what one takes as it runs is not
            known; nothing where it is.
    """

    name: str
    nodes: tuple[CostNode, ...]
    edges: tuple[tuple[int, int], ...]
    devices: Devices | None = None
    uncounted: str = ""
    _place: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the nodes by id."""
        object.__setattr__(self, "_place", {node.id: place for place, node in enumerate(self.nodes)})

    @classmethod
    def of(
        cls,
        name: str,
        nodes: Iterable[CostNode],
        edges: Iterable[tuple[str, str]],
        devices: Devices | None = None,
    ) -> Self:
        """The graph of nodes in any order and edges between their ids.

        Raises:
            RequestError: no node, a duplicate id, an edge to nowhere, a cycle, or a cost that is negative or NaN.
        """
        given = sorted(nodes, key=lambda node: natural(node.id))
        if not given:
            raise RequestError(f"{name}: expected at least one node, got none")
        known = {node.id: index for index, node in enumerate(given)}
        if len(known) < len(given):
            twice = next(a.id for a, b in pairwise(given) if a.id == b.id)
            raise RequestError(f"{name}: node {twice!r}: the id appears twice; ids must differ")
        for node in given:
            _check_costs(name, node)
        pairs = sorted({(_place(name, known, a), _place(name, known, b)) for a, b in edges})
        order = _topological(name, given, pairs)
        rank = [0] * len(order)
        for place, index in enumerate(order):
            rank[index] = place
        ranked = sorted((rank[a], rank[b]) for a, b in pairs)
        return cls(name, tuple(given[index] for index in order), tuple(ranked), devices)

    @classmethod
    def in_order(cls, name: str, nodes: Iterable[CostNode], edges: Iterable[tuple[str, str]]) -> Self:
        """The graph of nodes that are in a topological order already, which is kept.

        Raises:
            RequestError: as ``of``, or an edge that leads back.
        """
        given = tuple(nodes)
        known = {node.id: place for place, node in enumerate(given)}
        for node in given:
            _check_costs(name, node)
        pairs = tuple(sorted({(_place(name, known, a), _place(name, known, b)) for a, b in edges}))
        for source, target in pairs:
            if source >= target:
                raise RequestError(
                    f"{name}: expected nodes in topological order, got the edge "
                    f"{given[source].id} -> {given[target].id}"
                )
        return cls(name, given, pairs)

    def place(self, node_id: str) -> int:
        """The place of the node of that id."""
        return self._place[node_id]

    def successors(self) -> list[list[int]]:
        """For every node the places that it feeds, ascending."""
        lists: list[list[int]] = [[] for _ in self.nodes]
        for source, target in self.edges:
            lists[source].append(target)
        return lists

    def predecessors(self) -> list[list[int]]:
        """For every node the places that feed it, ascending."""
        lists: list[list[int]] = [[] for _ in self.nodes]
        for source, target in self.edges:
            lists[target].append(source)
        return lists

    @property
    def compute_s(self) -> float:
        """Seconds of one mini-batch on one device."""
        return math.fsum(node.compute_s for node in self.nodes)


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """The key that sorts ``node2`` before ``node10``."""
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts if part)


def _check_costs(name: str, node: CostNode) -> None:
    costs = {
        "forward_s": node.forward_s,
        "backward_s": node.backward_s,
        "activation_bytes": node.activation_bytes,
        "parameter_bytes": node.parameter_bytes,
        "stored_bytes": node.stored_bytes,
        "cpu_s": 0.0 if node.cpu_s is None else node.cpu_s,
        "transfer_s": node.transfer_s,
        "device_bytes": node.device_bytes,
        "forward_start_s": node.forward_start_s,
        "backward_start_s": node.backward_start_s,
    }
    for what, value in costs.items():
        if not (math.isfinite(value) and value >= 0):
            raise RequestError(f"{name}: node {node.id!r}: {what}: expected a finite number >= 0, got {value}")


def _place(name: str, known: dict[str, int], node_id: str) -> int:
    if node_id not in known:
        raise RequestError(f"{name}: an edge names node {node_id!r}, which the graph has not; remove the edge")
    return known[node_id]


def _topological(name: str, nodes: Sequence[CostNode], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The nodes in topological order, of those that are free the lowest first."""
    targets: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for source, target in edges:
        targets[source].append(target)
        missing[target] += 1
    free = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while free:
        index = heapq.heappop(free)
        order.append(index)
        for target in targets[index]:
            missing[target] -= 1
            if missing[target] == 0:
                heapq.heappush(free, target)
    if len(order) < len(nodes):
        cycle = _cycle(targets, {index for index, count in enumerate(missing) if count})
        raise RequestError(
            f"{name}: expected a graph without cycles, got the cycle "
            f"{' -> '.join(nodes[index].id for index in cycle)}; remove one of these edges"
        )
    return order


def _cycle(targets: Sequence[Sequence[int]], rest: set[int]) -> list[int]:
    """A cycle among nodes of which each has a predecessor among them, the first node repeated at the end."""
    sources: dict[int, int] = {}
    for source in sorted(rest, reverse=True):
        for target in targets[source]:
            if target in rest:
                sources[target] = source
    walk = [min(rest)]
    while walk[-1] not in walk[:-1]:
        walk.append(sources[walk[-1]])
    return walk[walk.index(walk[-1]) :][::-1]
