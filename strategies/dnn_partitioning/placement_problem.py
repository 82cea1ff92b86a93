"""dnn-partitioning's placement problem: atoms that stay together, and what is sent when they are on different devices.

(Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section 5.)

    forward   a -> b -> c        atoms  {a, a'} -> {b, b'} -> {c, c'}
    backward  a' <- b' <- c'     tensors between atoms, forward's and backward's alike, are the edges of a hypergraph
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, final

import networkx as nx

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Atom:
    """Nodes that share a device: a colour class with both passes, or several classes that depend on each other.

    Args:
        nodes: places in the graph, ascending.
        accelerator_s: seconds on an accelerator.
        cpu_s: seconds on a CPU.
        size_bytes: on an accelerator.
        supported: whether an accelerator can run all of it.
    """

    nodes: tuple[int, ...]
    accelerator_s: float
    cpu_s: float
    size_bytes: float
    supported: bool


@final
@dataclass(frozen=True, slots=True)
class Sent:
    """An output that atoms share.

    Args:
        atoms: its producer's and its readers', ascending; at least two.
        transfer_s: seconds between a device and the host.
    """

    atoms: tuple[int, ...]
    transfer_s: float


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """The problem on atoms, in a topological order of the forward pass.

    Args:
        graph: the graph.
        atoms: in order.
        edges: the forward order between atoms.
        sent: the outputs that more than one atom uses.
        accelerators: how many.
        cpus: how many.
        memory_bytes: of each accelerator.
    """

    graph: CostGraph
    atoms: tuple[Atom, ...]
    edges: tuple[tuple[int, int], ...]
    sent: tuple[Sent, ...]
    accelerators: int
    cpus: int
    memory_bytes: float

    @staticmethod
    def of(
        graph: CostGraph, accelerators: int | None = None, cpus: int | None = None, memory_bytes: float | None = None
    ) -> Placement:
        """The problem that a graph poses.

        Args:
            graph: a graph with devices, as dnn-partitioning's files have it.
            accelerators: how many; by default as many as the file says.
            cpus: how many; by default as many as the file says.
            memory_bytes: of each accelerator; by default what the file says.

        Raises:
            RequestError: the graph says nothing of devices, or there are none.
        """
        if graph.devices is None:
            raise RequestError(f"{graph.name}: expected a profile with devices (dnn-partitioning's JSON)")
        count = graph.devices.accelerators if accelerators is None else accelerators
        hosts = graph.devices.cpus if cpus is None else cpus
        if count < 0 or hosts < 0 or count + hosts == 0:
            raise RequestError(f"{graph.name}: expected at least one device, got {count} accelerators and {hosts} CPUs")
        if accelerators is not None and count > len(graph.nodes):
            raise RequestError(
                f"{graph.name}: expected at most as many accelerators as nodes, {len(graph.nodes)}, got {count}"
            )
        memory = graph.devices.memory_bytes if memory_bytes is None else memory_bytes
        classes = _merge(graph, _order(graph, _classes(graph)), memory)
        home = {node: place for place, nodes in enumerate(classes) for node in nodes}
        atoms = tuple(_atom(graph, nodes) for nodes in classes)
        edges = sorted({(home[a], home[b]) for a, b in _forward_edges(graph) if home[a] != home[b]})
        return Placement(graph, atoms, tuple(edges), _find_sent(graph, home), count, hosts, memory)

    def accelerator_load_s(self, atoms: Iterable[int], *, overlap: bool = False) -> float:
        """Seconds per sample of an accelerator that runs some atoms."""
        chosen = set(atoms)
        work = fsum(self.atoms[atom].accelerator_s for atom in chosen)
        moved = fsum(
            sent.transfer_s for sent in self.sent if 0 < len(chosen.intersection(sent.atoms)) < len(sent.atoms)
        )
        return max(work, moved) if overlap else work + moved

    def cpu_load_s(self, atoms: Iterable[int]) -> float:
        """Seconds per sample of a CPU that runs some atoms."""
        return fsum(self.atoms[atom].cpu_s for atom in atoms)


def _forward_edges(graph: CostGraph) -> list[tuple[int, int]]:
    """The order of the forward pass; of backward nodes without a forward mate their order reversed."""
    mated: set[int | None] = {node.colour for node in graph.nodes if not node.backward and node.colour is not None}
    edges = []
    for a, b in graph.edges:
        first, second = graph.nodes[a], graph.nodes[b]
        if not first.backward and not second.backward:
            edges.append((a, b))
        elif first.backward and second.backward and not (_is_mated(first, mated) and _is_mated(second, mated)):
            edges.append((b, a))
    return edges


def _is_mated(node: CostNode, mated: set[int | None]) -> bool:
    return node.colour is not None and node.colour in mated


def _classes(graph: CostGraph) -> list[list[int]]:
    """The nodes by colour, classes that depend on each other fused."""
    home: dict[int, int] = {}
    classes: list[list[int]] = []
    of_colour: dict[int, int] = {}
    for place, node in enumerate(graph.nodes):
        if node.colour is not None and node.colour in of_colour:
            home[place] = of_colour[node.colour]
            classes[home[place]].append(place)
            continue
        home[place] = len(classes)
        if node.colour is not None:
            of_colour[node.colour] = len(classes)
        classes.append([place])
    return _fuse(graph, classes, home)


def _fuse(graph: CostGraph, classes: list[list[int]], home: dict[int, int]) -> list[list[int]]:
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(classes)))
    order.add_edges_from((home[a], home[b]) for a, b in _forward_edges(graph) if home[a] != home[b])
    strong = sorted(sorted(component) for component in nx.strongly_connected_components(order))
    return [sorted(node for place in component for node in classes[place]) for component in strong]


def _order(graph: CostGraph, classes: list[list[int]]) -> list[tuple[int, ...]]:
    """The classes in topological order, of those that are free the one with the lowest node first."""
    home = {node: place for place, nodes in enumerate(classes) for node in nodes}
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(classes)))
    order.add_edges_from((home[a], home[b]) for a, b in _forward_edges(graph) if home[a] != home[b])
    line = nx.lexicographical_topological_sort(order, key=lambda place: classes[place][0])
    return [tuple(classes[place]) for place in line]


def _merge(graph: CostGraph, classes: list[tuple[int, ...]], memory_bytes: float) -> list[tuple[int, ...]]:
    """The classes with those that take no time and touch one other class only merged into that one.

    On the device of its only neighbour such a class costs nothing; anywhere else it may cost a transfer. So nothing
    better is lost, as long as the class has no size or everything together fits on one device.
    """
    roomy = fsum(node.device_bytes for node in graph.nodes) <= memory_bytes
    while True:
        home = {node: place for place, nodes in enumerate(classes) for node in nodes}
        touched: list[set[int]] = [set() for _ in classes]
        for a, b in graph.edges:
            if home[a] != home[b]:
                touched[home[a]].add(home[b])
                touched[home[b]].add(home[a])
        for place, nodes in enumerate(classes):
            chosen = [graph.nodes[node] for node in nodes]
            idle = all(node.compute_s == 0 and not node.cpu_s for node in chosen)
            if not (roomy or all(node.device_bytes == 0 for node in chosen)):
                continue
            if idle and len(touched[place]) == 1 and all(node.supported for node in chosen):
                target = next(iter(touched[place]))
                merged = [list(members) for members in classes]
                merged[target] = sorted([*merged[target], *nodes])
                del merged[place]
                classes = _order(graph, merged)
                break
        else:
            return classes


def _atom(graph: CostGraph, nodes: tuple[int, ...]) -> Atom:
    chosen = [graph.nodes[node] for node in nodes]
    cpu = fsum(float("inf") if node.cpu_s is None else node.cpu_s for node in chosen)
    return Atom(
        nodes,
        fsum(node.compute_s for node in chosen),
        cpu,
        fsum(node.device_bytes for node in chosen),
        all(node.supported for node in chosen),
    )


def _find_sent(graph: CostGraph, home: dict[int, int]) -> tuple[Sent, ...]:
    """The outputs between atoms; of equal users one, with the sum of the times."""
    users: dict[int, set[int]] = {}
    for a, b in graph.edges:
        users.setdefault(a, {home[a]}).add(home[b])
    times: dict[tuple[int, ...], list[float]] = {}
    for node, atoms in users.items():
        if len(atoms) > 1 and graph.nodes[node].transfer_s > 0:
            times.setdefault(tuple(sorted(atoms)), []).append(graph.nodes[node].transfer_s)
    return tuple(Sent(atoms, fsum(values)) for atoms, values in sorted(times.items()))
