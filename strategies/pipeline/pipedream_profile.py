"""PipeDream's profile text (Narayanan et al., SOSP 2019): a line for each layer, then a line for each edge.

node1 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=[4; 8], parameter_size=6
TAB node1 -- node2

Times are milliseconds of one mini-batch, sizes bytes; a list of sizes is summed.
"""

from __future__ import annotations

import math

from maniple.process.error import RequestError
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode

__all__: list[str] = []

_KEYS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NODE = f"'id -- description -- {'=..., '.join(_KEYS)}=...'"


def parse(name: str, text: str, *, inputs: bool = False) -> CostGraph:
    """The graph of a profile's text, without outputs that nothing reads.

    Args:
        name: the file, for messages.
        text: its content.
        inputs: whether sources whose description starts with ``Input`` stay.

    Raises:
        RequestError: a wrong line; names it.
    """
    nodes: dict[str, CostNode] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}: line {number}"
        if not line.strip():
            continue
        if line[0].isspace():
            edges.setdefault(_edge(where, line.strip()), number)
        else:
            node = _node(where, line)
            if node.id in nodes:
                raise RequestError(f"{where}: node {node.id!r} appears twice; expected every id once")
            nodes[node.id] = node
    for (source, target), number in edges.items():
        for end in (source, target):
            if end not in nodes:
                raise RequestError(
                    f"{name}: line {number}: an edge names {end!r}; expected a node that the file describes"
                )
    _refuse_cycles(name, nodes, edges)
    gone = _find_unused(nodes, edges, inputs=inputs)
    if len(gone) == len(nodes):
        raise RequestError(f"{name}: expected a layer, got inputs only")
    kept = [node for node in nodes.values() if node.id not in gone]
    return CostGraph.of(name, kept, [edge for edge in edges if not gone.intersection(edge)])


def _node(where: str, line: str) -> CostNode:
    head, _, rest = line.partition(" -- ")
    label, _, attributes = rest.partition(" -- ")
    attributes = attributes.partition(" -- ")[0]
    if not head.strip() or not attributes:
        raise RequestError(f"{where}: expected a node {_NODE} or an edge that starts with a tab, got {line[:60]!r}")
    given = dict(part.split("=", 1) for part in attributes.split(", ") if "=" in part)
    for key in _KEYS:
        if key not in given:
            raise RequestError(f"{where}: node {head!r}: {key} is missing; expected {_NODE}")
    forward, backward = (_number(where, key, given[key]) for key in _KEYS[:2])
    activation, parameter = (round(_number(where, key, given[key])) for key in _KEYS[2:])
    # An operator in place leaves nothing but its operand's memory for backward.
    stored = 0 if "inplace" in label and "inplace=False" not in label else activation
    return CostNode(head.strip(), label, forward / 1e3, backward / 1e3, activation, parameter, stored)


def _edge(where: str, line: str) -> tuple[str, str]:
    source, separator, target = line.partition(" -- ")
    if not separator or not source or not target or " -- " in target:
        raise RequestError(f"{where}: expected an edge 'source -- target', got {line[:60]!r}")
    return source.strip(), target.strip()


def _number(where: str, key: str, text: str) -> float:
    """A size or time; of a bracketed list the sum."""
    parts = text.strip().strip("[]").split(";") if text.strip().startswith("[") else [text]
    total = 0.0
    for part in parts:
        try:
            value = float(part)
        except ValueError as error:
            raise RequestError(f"{where}: {key}: expected a number >= 0, got {part.strip()!r}") from error
        if not (math.isfinite(value) and value >= 0):
            raise RequestError(f"{where}: {key}: expected a finite number >= 0, got {part.strip()}")
        total += value
    return total


def _find_unused(nodes: dict[str, CostNode], edges: dict[tuple[str, str], int], *, inputs: bool) -> set[str]:
    """Inputs, and parts of results that nothing reads."""
    read = {source for source, _ in edges}
    fed = {target for _, target in edges}
    gone = {n.id for n in nodes.values() if n.label.startswith("__getitem__") and n.id not in read}
    if not inputs:
        gone |= {n.id for n in nodes.values() if n.label.startswith("Input") and n.id not in fed}
    return gone


def _refuse_cycles(name: str, nodes: dict[str, CostNode], edges: dict[tuple[str, str], int]) -> None:
    """Refuse a cycle with the line of one of its edges."""
    fed: dict[str, int] = dict.fromkeys(nodes, 0)
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        targets[source].append(target)
        fed[target] += 1
    free = [node for node, count in fed.items() if count == 0]
    while free:
        for target in targets[free.pop()]:
            fed[target] -= 1
            if fed[target] == 0:
                free.append(target)
    rest = {node for node, count in fed.items() if count}
    # Trim what is only below the cycle.
    while tails := {node for node in rest if not rest.intersection(targets[node])}:
        rest -= tails
    for (source, target), number in edges.items():
        if source in rest and target in rest:
            raise RequestError(
                f"{name}: line {number}: expected a graph without cycles, but the edge {source} -- {target} is in one; "
                "remove one of its edges"
            )
