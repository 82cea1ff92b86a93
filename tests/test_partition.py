"""The command `maniple partition`: what it prints, draws and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from maniple.partition_command import partition
from maniple.partition_request import amount
from maniple.process.error import RequestError

PROFILE = """\
node1 -- Input -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
node2 -- Conv2d(1, 2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=100.0, parameter_size=40.0
node3 -- ReLU(inplace) -- forward_compute_time=0.5, backward_compute_time=0.5, activation_size=100.0, parameter_size=0.0
node4 -- Linear(2, 2) -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=10.0, parameter_size=400.0
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
"""
PLACEMENT = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 100.0,
    "nodes": [
        {"id": n, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 4.0, "isBackwardNode": 0, "colorClass": n}
        for n in range(4)
    ],
    "edges": [{"sourceId": n, "destId": n + 1, "cost": 0.25} for n in range(3)],
}


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.txt"
    path.write_text(PROFILE, encoding="utf-8")
    return str(path)


@pytest.fixture
def placement(tmp_path: Path) -> str:
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(PLACEMENT), encoding="utf-8")
    return str(path)


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(partition, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def data(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "--json"))


def test_json(profile: str) -> None:
    found = data(profile, "--stages", "2")
    assert {"stages", "bottleneck_s", "lower_bound_s", "exact", "states", "search_s"} <= set(found)
    assert [stage["nodes"] for stage in found["stages"]] == [["node2"], ["node3", "node4"]]
    assert [stage["replicas"] for stage in found["stages"]] == [1, 1]
    assert [stage["load_s"] for stage in found["stages"]] == pytest.approx([0.003, 0.003])
    # PipeDream's order: the first of two stages has two mini-batches in flight, with two versions of its weights,
    # gradients and momentum; the second receives 100 bytes and keeps nothing for its ReLU in place.
    assert [stage["memory_bytes"] for stage in found["stages"]] == [4 * 40 + 2 * 100, 3 * 400 + 110]
    assert [stage["sent_bytes"] for stage in found["stages"]] == [100, 0]
    assert (found["exact"], found["states"], found["gap"]) == (True, 4, 0.0)
    assert found["lower_bound_s"] == found["bottleneck_s"] == pytest.approx(0.003)
    assert found["search_s"] >= 0
    assert found["assumptions"]["order"] == "pipedream"


def test_options_change_the_problem(profile: str) -> None:
    # 2 x 100 bytes cross either cut: 2 ms at 100 kB/s, which work of 3 ms hides, and 20 ms at 10 kB/s.
    assert data(profile, "--stages", "2", "--bandwidth", "100KB/s")["bottleneck_s"] == pytest.approx(0.003)
    assert len(data(profile, "--stages", "2", "--bandwidth", "1e4")["stages"]) == 1
    added = data(profile, "--stages", "2", "--bandwidth", "1e5", "--transfers", "add")
    assert added["bottleneck_s"] == pytest.approx(0.005)
    two = data(profile, "--stages", "2", "--replicate")
    assert [stage["replicas"] for stage in two["stages"]] == [2]
    assert two["bottleneck_s"] == pytest.approx(0.003)
    leveled = data(profile, "--stages", "4", "--replicate", "--levels", "2x2", "--bandwidth", "1GB/s,1MB/s")
    assert [level["bandwidth"] for level in leveled["levels"]] == [1e9, 1e6]
    limited = data(profile, "--stages", "3", "--memory", "1310")
    assert max(stage["memory_bytes"] for stage in limited["stages"]) <= 1310
    latency = data(profile, "--stages", "2", "--objective", "latency", "--micro-batches", "4", "--order", "gpipe")
    assert latency["objective"] == "latency"
    assert latency["value_s"] == pytest.approx(0.006 / 4 + 0.75 * (0.0015 + 0.002))
    machine = data(profile, "--stages", "2", "--machine", "cpu:2x1")
    assert machine["levels"] == [{"members": 2, "bandwidth": 1e9}]


def test_the_table_and_the_drawing(profile: str, tmp_path: Path) -> None:
    text = printed(profile, "--stages", "2", "-o", str(tmp_path / "cut.svg"))
    lines = text.splitlines()
    assert lines[0].split() == [
        "stage",
        "replicas",
        "nodes",
        "first",
        "last",
        "load",
        "s",
        "memory",
        "MB",
        "sent",
        "MB",
    ]
    assert lines[1].split() == ["0", "1", "1", "node2", "node2", "0.003000", "0.0", "0.0"]
    assert f"stage 0 x1 |{'#' * 40}| 0.003000 s" in lines
    assert "bottleneck 0.003000 s per mini-batch (exact); lower bound 0.003000 s" in lines
    root = ET.fromstring((tmp_path / "cut.svg").read_text(encoding="utf-8"))
    circles = [circle for circle in root if circle.tag.endswith("circle") and len(circle)]
    assert [circle[0].text for circle in circles] == [
        "node2: Conv2d(1, 2), stage 0",
        "node3: ReLU(inplace), stage 1",
        "node4: Linear(2, 2), stage 1",
    ]
    printed(profile, "--stages", "2", "-o", str(tmp_path / "cut.dot"))
    dot = (tmp_path / "cut.dot").read_text(encoding="utf-8")
    assert dot.count("subgraph cluster_") == 2
    assert "n0 -> n1;" in dot


def test_models(tmp_path: Path) -> None:
    found = data("digits_cnn", "--stages", "2", "--batch", "32")
    assert found["stages"][0]["nodes"][0] == "conv2d"
    path = tmp_path / "mine.py"
    path.write_text(
        "import maniple as mp\n"
        "def make():\n"
        "    g = mp.Graph('mine')\n"
        "    x, y = g.input('x', (8, 4)), g.input('y', (8,), dtype='int64')\n"
        "    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 16)), 3), y))\n"
        "    return g\n"
        "number = 3\n",
        encoding="utf-8",
    )
    assert data(f"{path}:make", "--stages", "2", "--batch", "4")["graph"] == "mine"
    for source, expected in ((f"{path}:number", "no function"), (f"{path}:made", "did you mean 'make'")):
        with pytest.raises(RequestError, match=expected):
            printed(source, "--stages", "2")
    with pytest.raises(RequestError, match="does not exist"):
        printed(f"{tmp_path}/none.py:make", "--stages", "2")


def test_placements(placement: str, tmp_path: Path) -> None:
    found = data(placement, "--stages", "2")
    assert [stage["device"] for stage in found["stages"]].count("accelerator") == 2
    assert found["bottleneck_s"] == pytest.approx(0.00225)
    assert found["exact"] is True
    text = printed(placement, "--stages", "2", "--objective", "latency", "-o", str(tmp_path / "cut.dot"))
    assert "latency 0.0040000 s per sample (exact)" in text
    tight = data(placement, "--stages", "2", "--memory", "8")
    assert all(s["memory_bytes"] <= 8 for s in tight["stages"] if s["device"] == "accelerator")
    overlapped = data(placement, "--stages", "2", "--transfers", "overlap")
    assert overlapped["bottleneck_s"] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--stages", "0"), "--stages: expected at least 1, got 0"),
        (("--stages", "4"), "at most as many stages as nodes, 3, got 4"),
        (("--stages", "2", "--bandwidth", "0"), "--bandwidth: expected more than 0 bytes"),
        (("--stages", "2", "--bandwidth", "-1e9"), "--bandwidth: expected more than 0 bytes"),
        (("--stages", "2", "--bandwidth", "nan"), "--bandwidth: expected more than 0 bytes"),
        (("--stages", "2", "--bandwidth", "1e9,1e9"), "expected one number, or one for each of 1 levels"),
        (("--stages", "2", "--levels", "2x2"), "expected a product of 2"),
        (("--stages", "2", "--levels", "2xb"), "counts joined by x"),
        (("--stages", "2", "--memory", "100"), "alone holds"),
        (("--stages", "2", "--memory", "lots"), "--memory: expected more than 0 bytes"),
        (("--stages", "2", "--objective", "speed"), "--objective 'speed' is no choice"),
        (("--stages", "2", "--order", "2f2b"), "order: '2f2b' is no choice"),
        (("--stages", "2", "--micro-batches", "0"), "micro-batches: expected at least 1"),
        (("--stages", "2", "--machine", "cpu:1"), "at most the machine's 1 processors"),
        (("--stages", "2", "--machine", "gpu:1"), "expected cpu:PROCESSORS"),
        (("--stages", "2", "--machine", "cpu:2", "--bandwidth", "1e9"), "leave out --bandwidth"),
        (("--stages", "2", "--batch", "3"), "leave out --batch"),
        (("--stages", "2", "-o", "cut.bmp"), "ends with .dot or .svg"),
    ],
)
def test_wrong_requests(profile: str, options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        printed(profile, *options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--stages", "9"), "at most as many accelerators as nodes"),
        (("--stages", "2", "--replicate"), "leave out --replicate"),
        (("--stages", "2", "--bandwidth", "1e9", "--machine", "cpu:2"), "leave out --machine, --bandwidth"),
        (("--stages", "2", "--gradients", "0"), "leave out --gradients"),
        (("--stages", "2", "--objective", "latency", "--transfers", "overlap"), "leave it out"),
    ],
)
def test_wrong_requests_of_placements(placement: str, options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        printed(placement, *options)
    assert expected in str(caught.value)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="did you mean 'digits_cnn'"):
        printed("digit_cnn", "--stages", "2")
    with pytest.raises(RequestError, match="cannot be read"):
        printed(str(tmp_path / "none.txt"), "--stages", "2")
    with pytest.raises(RequestError, match="at least 1 sample"):
        printed("digits_cnn", "--stages", "2", "--batch", "0")


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("1e9", 1e9), ("1.5GB", 1.5e9), ("2GiB", 2**31), ("10 MB/s", 1e7), (".5K", 500)]
)
def test_amounts(text: str, value: float) -> None:
    assert amount("--memory", text) == value


def test_a_model_is_cut_by_what_its_tasks_take_here(profile: str) -> None:
    """Measured times are others than the roofline's; a profile has its own."""
    graph = ("lenet", "--batch", "2", "--stages", "2")
    measured, roofline = data(*graph, "--costs", "measured"), data(*graph)
    assert measured["bottleneck_s"] > 0
    assert measured["bottleneck_s"] != roofline["bottleneck_s"]
    with pytest.raises(RequestError, match="a profile has costs of its own; leave out --costs measured"):
        data(profile, "--stages", "2", "--costs", "measured")


MODELS = """
import maniple as mp


def tail(g, h):
    g.loss(g.cross_entropy(g.linear(h, 3), g.input("y", (8,), dtype="int64")))
    return g


def residual():
    g = mp.Graph("residual")
    h = g.relu(g.linear(g.input("x", (8, 64)), 256))
    return tail(g, g.add(h, g.relu(g.linear(h, 256))))


def exact():
    g = mp.Graph("exact statistics")
    return tail(g, g.relu(g.batch_norm(g.linear(g.input("x", (8, 64)), 256))))
"""


@pytest.mark.parametrize("parts", [2, 8])
def test_micro_batches_of_a_model_take_what_they_take_as_they_run(parts: int, tmp_path: Path) -> None:
    """Each reads the weights again and folds anew, which starts of kernels alone do not say."""
    from maniple.request import model_of
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.pipeline.operator_costs import cost_graph

    path = tmp_path / "models.py"
    path.write_text(MODELS, encoding="utf-8")
    given = f"{path}:residual", "--stages", "1", "--machine", "p100x4", "--order", "gpipe"
    found = data(*given, "--micro-batches", str(parts))
    graph, machine = model_of(given[0], None), Machine.preset("p100x4")
    own, starts = (cost_graph(graph, machine, parts=count).nodes for count in (parts, 0))
    taken, started = (sum(node.compute_s + (parts - 1) * node.start_s for node in nodes) for nodes in (own, starts))
    assert found["stages"][0]["load_s"] == pytest.approx(taken)
    assert taken > started
    assert found["uncounted"] is None


def test_where_micro_batches_cannot_go_one_by_one_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "models.py"
    path.write_text(MODELS, encoding="utf-8")
    given = f"{path}:exact", "--stages", "2", "--objective", "latency"
    assert "batch_norm=local_stats" in data(*given)["uncounted"]
    assert "each micro-batch was counted to add starts of kernels alone: " in printed(*given)
    with pytest.raises(RequestError, match="--micro-batches: expected 1 to 8, the samples of a mini-batch, got 9"):
        printed(*given, "--micro-batches", "9")
