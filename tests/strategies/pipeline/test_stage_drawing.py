"""Drawings of a cut: every node and edge is there, whatever the names, and crossings show."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import Stage
from maniple.strategies.pipeline.stage_drawing import bars, dot, svg

SVG = "{http://www.w3.org/2000/svg}"
NODES = [CostNode(name, label, 1.0, 1.0, 1, 1) for name, label in (("a", "<in>"), ("b", 'say "b" & c'), ("c", "out"))]
GRAPH = CostGraph.of('net "1" <x>', NODES, [("a", "b"), ("a", "c"), ("b", "c")])
STAGES = (Stage((0, 1), (0, 1), 0.2, 0.2, 10.0, 1), Stage((2,), (2,), 0.1, 0.1, 10.0, 0))


def test_bars_are_as_long_as_loads() -> None:
    assert bars(STAGES, 8).splitlines() == [
        "stage 0 x2 |########| 0.200000 s",
        "stage 1 x1 |####    | 0.100000 s",
    ]


def test_stages_without_work_have_no_bars() -> None:
    idle = (Stage((0,), (0,), 0.0, 0.0, 0.0, 0),)
    assert bars(idle, 4) == "stage 0 x1 |    | 0.000000 s"


def test_a_picture_has_a_line_for_each_edge_and_a_red_one_where_it_crosses() -> None:
    root = ET.fromstring(svg(GRAPH, STAGES))
    lines = [line.get("stroke") for line in root.iter(f"{SVG}line")]
    assert lines == ["#999999", "#d62728", "#d62728"]


def test_a_picture_names_every_node_as_it_is_called() -> None:
    root = ET.fromstring(svg(GRAPH, STAGES))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == [
        'net "1" <x>',
        "a: <in>, stage 0",
        'b: say "b" & c, stage 0',
        "c: out, stage 1",
    ]
    told = [text.text for text in root.iter(f"{SVG}text")]
    assert told == ["stage 0: 2 nodes, 2 replicas, 0.200000 s", "stage 1: 1 nodes, 0.100000 s"]


def test_nodes_of_one_depth_lie_below_each_other_and_later_ones_to_the_right() -> None:
    wide = CostGraph.of("wide", NODES, [("a", "b"), ("a", "c")])
    root = ET.fromstring(svg(wide, (Stage((0, 1, 2), (0,), 1.0, 1.0, 0.0, 0),)))
    places = [(int(circle.get("cx", "")), int(circle.get("cy", ""))) for circle in root.iter(f"{SVG}circle")][1:]
    assert len(set(places)) == 3
    assert places[0][0] < places[1][0] == places[2][0]


def test_graphviz_gets_a_cluster_for_each_stage_and_names_that_are_quoted() -> None:
    text = dot(GRAPH, STAGES)
    assert text.startswith('digraph "net \\"1\\" <x>" {')
    assert text.count("subgraph cluster_") == len(STAGES)
    assert [line.strip() for line in text.splitlines() if "->" in line] == ["n0 -> n1;", "n0 -> n2;", "n1 -> n2;"]
    assert 'label="b\\nsay \\"b\\" & c"' in text
