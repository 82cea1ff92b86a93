"""dnn-partitioning's JSON (Tarnawski et al., NeurIPS 2020): nodes with latencies on two kinds of device, and edges.

Latencies and edge costs are milliseconds; an edge's cost is the time that its source's output takes between an
accelerator and the host, and is equal on all edges of one source.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from maniple.process.file_entry import Entry, read_json
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode, Devices

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []


def read(path: str | os.PathLike[str]) -> CostGraph:
    """The graph of a file.

    Raises:
        RequestError: the file or an entry is wrong; names the place.
    """
    root = read_json(path)
    table = _pick(root, ("maxFPGAs", "maxSizePerFPGA", "nodes", "edges"))
    cpus = dict(root.items()).get("maxCPUs")
    devices = Devices(
        table["maxFPGAs"].integer(0),
        0 if cpus is None else cpus.integer(0),
        table["maxSizePerFPGA"].number(0.0),
    )
    entries = [_pick(entry, ("id", "cpuLatency", "fpgaLatency", "size")) for entry in table["nodes"].elements()]
    ids: dict[int, Entry] = {}
    for entry in entries:
        number = entry["id"].integer(0)
        if number in ids:
            raise entry["id"].problem(f"an id that no other node has ({ids[number].path} has it too)")
        ids[number] = entry["id"]
    edges: list[tuple[str, str]] = []
    costs: dict[int, tuple[float, Entry]] = {}
    for row in table["edges"].elements():
        edge = _pick(row, ("sourceId", "destId", "cost"))
        source, target = edge["sourceId"].integer(0), edge["destId"].integer(0)
        for end, key in ((source, "sourceId"), (target, "destId")):
            if end not in ids:
                raise edge[key].problem("the id of a node of the file")
        cost = edge["cost"].number(0.0)
        known, first = costs.setdefault(source, (cost, edge["cost"]))
        if known != cost:
            raise edge["cost"].problem(f"one cost for all edges of node {source} ({first.path} has {known:g})")
        edges.append((str(source), str(target)))
    if not entries:
        raise table["nodes"].problem("at least one node")
    nodes = [
        _node(entry, dict(node.items()), costs) for entry, node in zip(entries, table["nodes"].elements(), strict=True)
    ]
    return CostGraph.of(root.file, nodes, edges, devices)


def _pick(entry: Entry, keys: tuple[str, ...]) -> dict[str, Entry]:
    """The entries under some keys; others are for people and are passed over."""
    found = dict(entry.items())
    for key in keys:
        if key not in found:
            raise entry.problem(f"a table with the key {key!r}")
    return {key: found[key] for key in keys}


def _node(
    entry: Mapping[str, Entry], everything: Mapping[str, Entry], costs: Mapping[int, tuple[float, Entry]]
) -> CostNode:
    number = entry["id"].integer(0)
    backward = _flag(everything.get("isBackwardNode"), otherwise=False)
    latency = entry["fpgaLatency"].number(0.0) / 1e3
    colour = everything.get("colorClass")
    label = everything.get("name")
    return CostNode(
        id=str(number),
        label=str(number) if label is None else label.string(),
        forward_s=0.0 if backward else latency,
        backward_s=latency if backward else 0.0,
        activation_bytes=0,
        parameter_bytes=0,
        cpu_s=entry["cpuLatency"].number(0.0) / 1e3,
        transfer_s=costs[number][0] / 1e3 if number in costs else 0.0,
        device_bytes=entry["size"].number(0.0),
        colour=None if colour is None or colour.is_null else colour.integer(-1),
        backward=backward,
        supported=_flag(everything.get("supportedOnFpga"), otherwise=True),
    )


def _flag(entry: Entry | None, *, otherwise: bool) -> bool:
    """True, false, 1 or 0."""
    if entry is None:
        return otherwise
    if isinstance(entry.value, bool) or entry.value not in {0, 1}:
        return entry.boolean()
    return bool(entry.integer(0))
