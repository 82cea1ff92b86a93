"""Profile files: both formats as published, and every way of being wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maniple.process.error import RequestError
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode, natural
from maniple.strategies.pipeline.profile import read_profile


def line(name: str, label: str = "Conv2d(3, 64)", **changes: str) -> str:
    values = {
        "forward_compute_time": "1.5",
        "backward_compute_time": "3.0",
        "activation_size": "8.0",
        "parameter_size": "6",
    } | changes
    attributes = ", ".join(f"{key}={value}" for key, value in values.items() if value)
    return f"{name} -- {label} -- {attributes}"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "profile.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_profile_of_layers(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line("node10", "ReLU(inplace)"),
        line("node1", "Input0", forward_compute_time="99"),
        line("node2", "LSTM(a, b)", activation_size="[4.0; 8.0; 1.0]") + " -- stage_id=3",
        line("node3", "__getitem__(0)"),
        "\tnode1 -- node2",
        "\tnode2 -- node10",
        "\tnode2 -- node10",
        "\tnode2 -- node3",
    )
    graph = read_profile(path)
    assert [node.id for node in graph.nodes] == ["node2", "node10"]
    assert graph.edges == ((0, 1),)
    first, second = graph.nodes
    assert (first.forward_s, first.backward_s) == (0.0015, 0.003)
    assert (first.activation_bytes, first.parameter_bytes, first.stored_bytes) == (13, 6, 13)
    # In place: its output crosses a cut like any other, but nothing more is kept for backward.
    assert (second.activation_bytes, second.stored_bytes) == (8, 0)
    assert [node.id for node in read_profile(path, inputs=True).nodes] == ["node1", "node2", "node10"]


@pytest.mark.parametrize(
    ("lines", "number", "expected"),
    [
        ([""], 1, "an empty file"),
        (["# Markdown", "text"], 1, "no profile that can be read"),
        (["", "", "what is this"], 3, "no profile that can be read"),
        ([line("a"), line("b"), line("a")], 3, "'a' appears twice"),
        ([line("a"), "\ta -- b"], 2, "an edge names 'b'"),
        ([line("a"), "\ta b"], 2, "expected an edge"),
        ([line("a"), "\ta -- b -- c"], 2, "expected an edge"),
        ([line("a"), "b -- c"], 2, "expected a node"),
        ([line("a"), line("b", forward_compute_time="-1")], 2, "forward_compute_time: expected a finite number >= 0"),
        ([line("a"), line("b", backward_compute_time="nan")], 2, "expected a finite number >= 0, got nan"),
        ([line("a"), line("b", backward_compute_time="inf")], 2, "expected a finite number >= 0, got inf"),
        ([line("a"), line("b", forward_compute_time="")], 2, "forward_compute_time is missing"),
        ([line("a"), line("b", parameter_size="")], 2, "parameter_size is missing"),
        ([line("a", activation_size="[1; x]")], 1, "expected a number >= 0, got 'x'"),
        ([line("a"), line("b"), "\ta -- b", "\tb -- a"], 3, "expected a graph without cycles"),
        ([line("a"), line("b"), line("c"), "\ta -- b", "\tb -- b", "\tb -- c"], 5, "the edge b -- b"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, lines: list[str], number: int, expected: str) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(RequestError) as caught:
        read_profile(path)
    assert f"{path}: line {number}: " in str(caught.value)
    assert expected in str(caught.value)


def test_a_profile_of_inputs_only(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="got inputs only"):
        read_profile(written(tmp_path, line("node1", "Input")))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_profile(tmp_path / "missing.txt")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="UTF-8"):
        read_profile(binary)


def document() -> dict[str, Any]:
    return {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 100.0,
        "nodes": [
            {"id": 7, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 4.0, "isBackwardNode": 0, "colorClass": 1},
            {"id": 9, "cpuLatency": 20.0, "fpgaLatency": 2.0, "size": 4.0, "isBackwardNode": True, "colorClass": 1},
            {"id": 8, "cpuLatency": 5.0, "fpgaLatency": 0.5, "size": 0.0, "supportedOnFpga": 0, "colorClass": None},
        ],
        "edges": [{"sourceId": 7, "destId": 8, "cost": 0.25, "size": 99}, {"sourceId": 7, "destId": 9, "cost": 0.25}],
    }


def stored(folder: Path, value: object) -> Path:
    path = folder / "placement.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_placement_file(tmp_path: Path) -> None:
    graph = read_profile(stored(tmp_path, document()))
    assert graph.devices is not None
    assert (graph.devices.accelerators, graph.devices.cpus, graph.devices.memory_bytes) == (2, 1, 100.0)
    first, second, third = graph.nodes
    assert [node.id for node in graph.nodes] == ["7", "8", "9"]
    assert (first.forward_s, first.backward_s, first.cpu_s, first.transfer_s) == (0.001, 0.0, 0.01, 0.00025)
    assert (third.forward_s, third.backward_s, third.backward, third.colour) == (0.0, 0.002, True, 1)
    assert (second.supported, second.colour, second.transfer_s) == (False, None, 0.0)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d.pop("nodes"), "nodes"),
        (lambda d: d["nodes"].clear() or d["edges"].clear(), "nodes"),
        (lambda d: d["nodes"].append(dict(d["nodes"][0])), "nodes[3].id"),
        (lambda d: d["nodes"][1].pop("fpgaLatency"), "nodes[1]"),
        (lambda d: d["nodes"][1].update(fpgaLatency=-1.0), "nodes[1].fpgaLatency"),
        (lambda d: d["nodes"][1].update(cpuLatency="1"), "nodes[1].cpuLatency"),
        (lambda d: d["nodes"][0].update(supportedOnFpga=2), "nodes[0].supportedOnFpga"),
        (lambda d: d["edges"][0].update(destId=77), "edges[0].destId"),
        (lambda d: d["edges"][1].update(cost=0.5), "edges[1].cost"),
        (lambda d: d["edges"].append({"sourceId": 8, "destId": 7, "cost": 0}), "cycle"),
        (lambda d: d.update(maxFPGAs=-1), "maxFPGAs"),
    ],
)
def test_wrong_entries_are_named(tmp_path: Path, change: Any, place: str) -> None:
    value = document()
    change(value)
    path = stored(tmp_path, value)
    with pytest.raises(RequestError) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)
    assert place in str(caught.value)


def test_json_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    path.write_text('{"nodes": [', encoding="utf-8")
    with pytest.raises(RequestError, match="line 1"):
        read_profile(path)
    path.write_text('{"nodes": [NaN]}', encoding="utf-8")
    with pytest.raises(RequestError, match="NaN"):
        read_profile(path)


# -- graphs of costs --------------------------------------------------------------------------------------------------


def node(name: str, forward: float = 1.0) -> CostNode:
    return CostNode(name, "", forward, 0.0, 1, 1)


def test_ids_are_ordered_as_people_count() -> None:
    assert sorted(["node10", "node2", "a", "node1b", "3", "12"], key=natural) == [
        "a", "node1b", "node2", "node10", "3", "12",
    ]  # fmt: skip
    graph = CostGraph.of("g", [node("n10"), node("n9"), node("n2")], [("n10", "n2")])
    assert [n.id for n in graph.nodes] == ["n9", "n10", "n2"]
    assert graph.place("n2") == 2


@pytest.mark.parametrize(
    ("nodes", "edges", "expected"),
    [
        ([], [], "at least one node"),
        ([node("a"), node("a")], [], "appears twice"),
        ([node("a")], [("a", "b")], "names node 'b'"),
        ([node("a"), node("b"), node("c")], [("a", "b"), ("b", "c"), ("c", "b")], "b -> c -> b|c -> b -> c"),
        ([node("a", float("nan"))], [], "forward_s: expected a finite number"),
        ([node("a", -1.0)], [], "forward_s: expected a finite number"),
    ],
)
def test_graphs_that_are_none(nodes: list[CostNode], edges: list[tuple[str, str]], expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        CostGraph.of("g", nodes, edges)


def test_an_order_that_is_given_is_kept() -> None:
    assert [n.id for n in CostGraph.in_order("g", [node("b"), node("a")], [("b", "a")]).nodes] == ["b", "a"]
    with pytest.raises(RequestError, match="topological order"):
        CostGraph.in_order("g", [node("a"), node("b")], [("b", "a")])


# -- the published files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nodes", "seconds"),
    [
        ("alexnet", 22, 0.085321),
        ("vgg16", 40, 0.672535),
        ("resnet18", 70, 0.259742),
        ("resnet50", 176, 0.443419),
        ("resnet101", 346, 0.411092),
        ("densenet121", 428, 0.326155),
        ("gnmt_large", 77, 0.520453),
        ("inception_v3", 325, 0.689038),
        ("nasnetamobile", 920, 0.584284),
    ],
)
def test_published_profiles(reference_data: Path, name: str, nodes: int, seconds: float) -> None:
    graph = read_profile(reference_data / "pipedream-profiles" / f"{name}.txt")
    assert len(graph.nodes) == nodes
    assert graph.compute_s == pytest.approx(seconds, abs=5e-7)


@pytest.mark.parametrize(
    ("name", "nodes", "milliseconds"),
    [
        ("throughput-inputs/LayerGraphs/bert24_training", 64, 217.8),
        ("throughput-inputs/LayerGraphs/inceptionv3_training", 652, 710.7),
        ("throughput-inputs/OperatorGraphs/resnet50_training", 1243, 684.9),
        ("latency-inputs/OperatorGraphs/bert_l-12_inference", 783, 642.8),
        ("latency-inputs/LayerGraphs/gnmt_inference", 96, 182.6),
    ],
)
def test_published_placements(reference_data: Path, name: str, nodes: int, milliseconds: float) -> None:
    graph = read_profile(reference_data / "dnn-partitioning" / f"{name}.json")
    assert len(graph.nodes) == nodes
    assert graph.compute_s * 1e3 == pytest.approx(milliseconds, abs=0.06)
