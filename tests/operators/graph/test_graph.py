"""The graph and its builder: shapes, names, sharing, rebatching, and every refusal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.graph.graph import Graph
from maniple.operators.graph.graph_file import from_json, to_json
from maniple.operators.operator.operator import Initial
from maniple.process.error import RequestError


def digits(batch: int = 64) -> Graph:
    g = Graph("digits")
    x, y = g.input("x", (batch, 1, 8, 8)), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.conv2d(x, 8, kernel_size=3, padding=1))
    h = g.max_pool2d(g.relu(g.conv2d(h, 16, 3, padding=1)), 2)
    logits = g.linear(g.relu(g.linear(g.flatten(h), 64)), 10)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g


def mixed() -> Graph:
    """One of every operator, a shared weight, and a tensor with several readers."""
    g = Graph("mixed")
    x, y = g.input("x", (6, 2, 9, 9), "float64"), g.input("y", (6,), "int64")
    h = g.conv2d(x, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False, name="stem")
    h = g.avg_pool2d(h, 2, stride=1, padding=1)
    h = g.reshape(g.max_pool2d(h, 2), (6, -1, 4))
    first = g.linear(h, 4, name="first")
    second = g.linear(first, 4, weight=g.handle("first.weight"), bias=g.handle("first.bias"))
    logits = g.flatten(g.add(first, g.relu(second)))
    g.output("logits", logits)
    g.loss(g.cross_entropy(logits, y))
    return g


def test_names_shapes_and_parameters() -> None:
    g = digits()
    g.validate()
    names = "conv2d relu conv2d_1 relu_1 max_pool2d flatten linear relu_2 linear_1 cross_entropy"
    assert [node.name for node in g.nodes] == names.split()
    assert [(p.name, p.shape) for p in g.parameters] == [
        ("conv2d.weight", (8, 1, 3, 3)),
        ("conv2d.bias", (8,)),
        ("conv2d_1.weight", (16, 8, 3, 3)),
        ("conv2d_1.bias", (16,)),
        ("linear.weight", (64, 256)),
        ("linear.bias", (64,)),
        ("linear_1.weight", (10, 64)),
        ("linear_1.bias", (10,)),
    ]
    assert [p.initial for p in g.parameters] == [Initial.fan_in(n) for n in (9, 9, 72, 72, 256, 256, 64, 64)]
    assert g.tensor("max_pool2d").shape == (64, 16, 4, 4)
    assert g.tensors[g.outputs["logits"]].shape == (64, 10)
    assert g.loss_tensor == g.node("cross_entropy").results[0]
    assert g.producer(g.node("relu").results[0]) == g.node("relu")
    assert all(tensor.id == place for place, tensor in enumerate(g.tensors))


def test_the_table() -> None:
    g = Graph("mlp")
    x, y = g.input("x", (4, 3)), g.input("y", (4,), dtype="int64")
    logits = g.linear(x, 2)
    g.loss(g.cross_entropy(logits, y))
    assert str(g).splitlines() == [
        "graph 'mlp': 2 operators, 8 parameter elements",
        "operator       operands                       rule                    result",
        "x                                             input                   (4, 3) float32",
        "y                                             input                   (4,) int64",
        "linear         x, linear.weight, linear.bias  b k, n k, [n]@k -> b n  (4, 2) float32",
        "cross_entropy  linear, y, y                   b c, b, [n0!], [c] ->   () float32      loss",
    ]


def test_shared_parameters_and_gradients() -> None:
    g = mixed()
    g.validate()
    assert [p.name for p in g.parameters] == ["stem.weight", "first.weight", "first.bias"]
    assert {p.dtype for p in g.parameters} == {"float64"}
    assert g.node("linear").operands[1:] == g.node("first").operands[1:]
    assert g.node("stem").operands[2] is None
    assert [node.name for node in g.nodes if g.tensor("first").id in node.operands] == ["linear", "add"]
    differentiated = {g.tensors[i].name for i in g.differentiated_tensors()}
    assert differentiated == {t.name for t in g.tensors} - {"x", "y"}


def test_what_needs_no_gradient_has_none() -> None:
    g = Graph()
    x, y = g.input("x", (2, 4)), g.input("y", (2,), "int64")
    logits = g.linear(g.relu(x), 3)
    g.output("side", g.linear(logits, 2, name="side"))
    g.loss(g.cross_entropy(logits, y))
    assert {g.tensors[i].name for i in g.differentiated_tensors()} == {
        "linear",
        "linear.weight",
        "linear.bias",
        "cross_entropy",
    }


@pytest.mark.parametrize("make", [digits, mixed])
def test_rebatching_keeps_every_id(make: Callable[[], Graph]) -> None:
    g = make()
    other = g.with_batch(5)
    other.validate()
    assert other.nodes == g.nodes
    assert [(t.id, t.name, t.kind, t.dtype) for t in other.tensors] == [
        (t.id, t.name, t.kind, t.dtype) for t in g.tensors
    ]
    for ours, theirs in zip(other.tensors, g.tensors, strict=True):
        sampled = theirs.kind != "parameter" and theirs.shape
        assert ours.shape == ((5, *theirs.shape[1:]) if sampled else theirs.shape)
    assert (other.batch, other.outputs, other.loss_tensor) == (5, g.outputs, g.loss_tensor)
    assert other.fingerprint() != g.fingerprint()
    assert other.with_batch(g.batch).fingerprint() == g.fingerprint()
    with pytest.raises(RequestError, match="at least 1 sample"):
        g.with_batch(0)


def test_the_fingerprint_is_the_same_in_every_process_and_covers_everything() -> None:
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import test_graph as t; print(t.mixed().fingerprint())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == mixed().fingerprint()
    changed = digits()
    changed.output("early", changed.handle("linear"))
    assert len({digits().fingerprint(), digits(32).fingerprint(), changed.fingerprint(), mixed().fingerprint()}) == 4


# What a builder's caller can do wrong, and what the message says.
REFUSALS: dict[str, tuple[Callable[[Graph], object], str]] = {
    "duplicate input": (lambda g: g.input("x", (4, 2)), "input 'x': graph 'g' has that name already"),
    "duplicate operator": (
        lambda g: (g.relu(g.handle("x"), name="a"), g.relu(g.handle("x"), name="a")),
        "operator 'a'",
    ),
    "empty shape": (lambda g: g.input("z", ()), "expected at least one dimension"),
    "zero extent": (lambda g: g.input("z", (0, 2)), "expected extents >= 1"),
    "unknown dtype": (lambda g: g.input("z", (4,), "float16"), "float16.*a graph is of float32"),
    "float label": (lambda g: g.cross_entropy(g.handle("x"), g.input("z", (4,))), "labels of dtype int64.*float32"),
    "label count": (lambda g: g.cross_entropy(g.handle("x"), g.input("z", (5,), "int64")), "expected b = 4, got 5"),
    "int logits": (
        lambda g: g.relu(g.handle("y")),
        "relu: expected operands of dtype float32 or float64, got int64",
    ),
    "two dtypes": (
        lambda g: g.add(g.handle("x"), g.input("z", (4, 3), "float64")),
        "one dtype, got float32 and float64",
    ),
    "other graph": (lambda g: g.relu(Graph("other").input("x", (4, 3))), "tensor 'x' belongs to another graph"),
    "no tensor": (lambda g: g.relu(3), "expected a tensor of graph 'g', got int"),  # type: ignore[arg-type]
    "parameter for assignment": (
        lambda g: (g.linear(g.handle("x"), 2), g.assign(g.handle("linear.weight"), g.handle("linear"))),
        "expected a buffer to assign to, got parameter 'linear.weight'",
    ),
    "add shapes": (lambda g: g.add(g.handle("x"), g.input("z", (4, 2))), "add: operand 1.*expected c = 3, got 2"),
    "no image": (lambda g: g.conv2d(g.handle("x"), 2, 3), "conv2d: expected 4 dimensions"),
    "window": (lambda g: g.conv2d(g.handle("image"), 2, 9), "a window of 9 rows with padding 0 does not fit"),
    "kernel 0": (lambda g: g.conv2d(g.handle("image"), 2, 0), "conv2d.kernel_size: expected an integer >= 1, got 0"),
    "stride 0": (lambda g: g.max_pool2d(g.handle("image"), 2, 0), "max_pool2d.stride: expected an integer >= 1"),
    "three numbers": (lambda g: g.conv2d(g.handle("image"), 2, (1, 2, 3)), "expected an integer or 2"),
    "groups": (lambda g: g.conv2d(g.handle("image"), 2, 3, groups=2), "conv2d.groups: expected a divisor"),
    "same": (
        lambda g: g.conv2d(g.handle("image"), 2, 2, padding="same"),
        "'same' with stride 1 and windows of an odd",
    ),
    "pool dilation": (lambda g: g.max_pool2d(g.handle("image"), 2, dilation=0), "dilation: expected an integer >= 1"),
    "pool padding": (lambda g: g.avg_pool2d(g.handle("image"), 3, padding=2), "at most half"),
    "out_features": (lambda g: g.linear(g.handle("x"), 0), "linear.out_features: expected an integer >= 1, got 0"),
    "shared shape": (
        lambda g: (
            g.linear(g.handle("x"), 2, name="a"),
            g.linear(g.handle("x"), 5, name="b", weight=g.handle("a.weight")),
        ),
        "b.weight: expected a parameter of shape .5, 3., got parameter 'a.weight' of shape .2, 3.",
    ),
    "reshape batch": (lambda g: g.reshape(g.handle("x"), (2, 6)), "dimension 0 .the samples. to stay"),
    "reshape size": (lambda g: g.reshape(g.handle("x"), (4, 4)), "expected 3 elements per sample"),
    "reshape -1": (lambda g: g.reshape(g.handle("x"), (4, -1, 2)), "expected 3 elements per sample"),
    "reshape nest": (
        lambda g: g.reshape(g.input("z", (4, 6, 4)), (4, 4, 6)),
        "do not nest; reshape to .24,. first",
    ),
    "vector loss": (lambda g: g.loss(g.handle("x")), "loss: expected a scalar"),
    "second loss": (lambda g: g.loss(g.cross_entropy(g.handle("x"), g.handle("y"))), "has a loss already, 'first'"),
    "second output": (
        lambda g: (g.output("o", g.handle("first")), g.output("o", g.handle("first"))),
        "output 'o' already",
    ),
    "input as output": (lambda g: g.output("o", g.handle("x")), "expected an operator's result, got input"),
}


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_refusals(name: str) -> None:
    act, message = REFUSALS[name]
    g = Graph("g")
    x, y = g.input("x", (4, 3)), g.input("y", (4,), "int64")
    g.input("image", (4, 1, 8, 8))
    g.loss(g.cross_entropy(x, y, name="first"))
    with pytest.raises(RequestError, match=message):
        act(g)


def test_validate() -> None:
    g = Graph("g")
    with pytest.raises(RequestError, match="has no loss"):
        g.validate()
    x, y = g.input("x", (4, 3)), g.input("y", (4,), "int64")
    g.loss(g.cross_entropy(x, y))
    with pytest.raises(RequestError, match="depends on no trained parameter"):
        g.validate()
    g = Graph("g")
    x, y = g.input("x", (4, 3)), g.input("y", (4,), "int64")
    g.loss(g.cross_entropy(g.linear(x, 3), y))
    g.validate()
    g.relu(g.relu(x, name="dead"), name="deader")
    with pytest.raises(RequestError, match="operators dead, deader reach neither the loss nor an output"):
        g.validate()
    g.output("o", g.handle("deader"))
    g.validate()
    g.input("z", (3, 2))
    with pytest.raises(RequestError, match="share no sample dimension: dimension 0 of 'x' is 4, of 'z' 3"):
        g.validate()


@pytest.mark.parametrize("make", [digits, mixed])
def test_files_round_trip(make: Callable[[], Graph], tmp_path: Path) -> None:
    g = make()
    g.save(tmp_path / "graph.json")
    again = Graph.load(tmp_path / "graph.json")
    assert (again.name, again.nodes, again.tensors) == (g.name, g.nodes, g.tensors)
    assert (again.outputs, again.loss_tensor, again.fingerprint()) == (g.outputs, g.loss_tensor, g.fingerprint())


@given(st.permutations(range(10)))
def test_the_order_of_nodes_in_a_file_does_not_matter(order: list[int]) -> None:
    data = to_json(digits())
    nodes = data["nodes"]
    assert isinstance(nodes, list)
    data["nodes"] = [nodes[place] for place in order]
    again = from_json(data, Graph)
    again.validate()
    assert {node.name for node in again.nodes} == {node.name for node in digits().nodes}
    for node in again.nodes:
        for operand in node.operands:
            producer = None if operand is None else again.producer(operand)
            assert producer is None or producer.id < node.id


CORRUPTIONS = [
    ('"version": 2', '"version": 3', "version: expected at most 2, got 3"),
    ('"version": 2', '"version": "2"', "version: expected an integer"),
    ('"version": 2', '"versoin": 2', "versoin: unknown key.*did you mean 'version'"),
    (
        '"kernel_size": [3, 3]',
        '"kernel_size": [3, "x"]',
        r"nodes\[0\].attributes.kernel_size\[1\]: expected an integer.*'x'",
    ),
    (
        '"kernel_size": [3, 3]',
        '"kernel_size": [3]',
        r"nodes\[0\].attributes: conv2d.kernel_size: expected 2 integers",
    ),
    ('"kernel_size": [3, 3]', '"kernel": [3, 3]', r"nodes\[0\].attributes.kernel: unknown key"),
    ('"operator": "relu"', '"operator": "rleu"', r"nodes\[1\].operator: .*did you mean 'relu'"),
    (
        '"operands": ["relu", ',
        '"operands": ["rleu", ',
        r"nodes\[2\].operands\[0\]: unknown tensor 'rleu'.*did you mean",
    ),
    (
        '"operands": ["conv2d"]',
        '"operands": ["max_pool2d"]',
        "operators relu -> conv2d_1 -> relu_1 -> max_pool2d -> relu form a cycle",
    ),
    ('"operands": ["conv2d"]', '"operands": []', r"nodes\[1\].operands: expected inputs"),
    ('"operands": ["conv2d"]', '"operands": ["relu"]', "operators relu -> relu form a cycle"),
    ('"shape": [64, 1, 8, 8]', '"shape": [64, 3, 8, 8]', r"nodes\[0\]: conv2d: operand 1.*expected i = 3, got 1"),
    ('"dtype": "int64"', '"dtype": "float32"', r"nodes\[9\]: cross_entropy: expected labels of dtype int64"),
    ('"outputs": {"logits"', '"outputs": {"logits": "linear", "more"', None),
    (
        '"outputs": {"logits": "linear_1"}',
        '"outputs": {"logits": "linear_7"}',
        "outputs.logits: .*no tensor 'linear_7'",
    ),
    ('"loss": "cross_entropy"', '"loss": "relu"', "loss: loss: expected a scalar"),
    ('"name": "relu"', '"name": "conv2d"', "has that name already|form a cycle|unknown tensor"),
    ('"loss": "cross_entropy"\n}', '"loss": "cross', "truncated"),
]


@pytest.mark.parametrize(("old", "new", "message"), CORRUPTIONS)
def test_a_bad_file_names_the_entry(old: str, new: str, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    digits().save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    if message is None:
        Graph.load(path)
        return
    with pytest.raises(RequestError, match=re.escape(str(path)) + ".*(" + message + ")"):
        Graph.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        Graph.load(tmp_path / "none.json")


def test_plain_data_is_json() -> None:
    assert json.loads(json.dumps(to_json(mixed()))) == to_json(mixed())
