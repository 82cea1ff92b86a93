"""The rewriting for a precision: which values are halves, which weights are cast at home, and what stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import maniple as mp
from maniple.operators.lowering.precision import PRECISIONS, apply_semantics, is_scaled
from maniple.operators.lowering.script import training_script
from maniple.operators.precision.autocast_policy import names_dtype, policy_of


def network() -> mp.Graph:
    graph = mp.Graph("network")
    x, words = graph.input("x", (4, 3, 8, 8)), graph.input("words", (4, 5), dtype="int64")
    y = graph.input("y", (4,), dtype="int64")
    seen = graph.flatten(graph.relu(graph.batch_norm(graph.conv2d(x, 6, 3, name="conv"), name="norm"), name="relu"))
    read = graph.flatten(graph.embedding(words, 20, 7, name="table"))
    both = graph.add(graph.linear(seen, 9, name="l1"), graph.linear(read, 9, name="l2"), name="both")
    graph.loss(graph.cross_entropy(graph.linear(both, 3, name="l3"), y, name="loss"))
    return graph


@pytest.mark.parametrize(("said", "half"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_values_are_as_autocast_has_them(said: str, half: str) -> None:
    """And what only products read is rounded where it is made: the table's rows, and their flat view."""
    graph = network()
    found = apply_semantics(graph, {"precision": said})
    assert [(t.id, t.name, t.shape, t.kind) for t in found.tensors] == [
        (t.id, t.name, t.shape, t.kind) for t in graph.tensors
    ]
    dtypes = {tensor.name: tensor.dtype for tensor in found.tensors}
    halves = {name for name, dtype in dtypes.items() if dtype == half}
    assert halves == {"conv", "norm", "relu", "flatten", "l1", "l2", "both", "l3"} | {"table", "flatten_1"}
    assert all(dtypes[tensor.name] == "float32" for tensor in found.lasting)
    assert is_scaled(found) == (said == "fp16")
    assert found.node("loss").operator != graph.node("loss").operator


def test_weights_of_products_are_cast_at_home_before_their_first_reader() -> None:
    found = apply_semantics(network(), {"precision": "bf16"})
    actions = training_script(found).actions
    names = [found.tensors[number].name for kind, number, *_ in actions if kind == "cast"]
    products = ("conv", "l1", "l2", "l3")
    assert names == [f"{product}.{part}" for product in products for part in ("weight", "bias")]
    at = next(n for n, action in enumerate(actions) if action.kind == "cast")
    assert actions[at + 2].kind == "forward"
    assert found.nodes[actions[at + 2].number].name == "conv"


class Wide(nn.Module):
    """Sums, an exponential and a cast by hand among products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        gate = hidden.exp() / hidden.exp().sum(-1, keepdim=True)
        return nn.functional.cross_entropy(self.last(gate * hidden.float()), y)


def test_an_import_has_the_lists_of_autocast() -> None:
    """Every value that torch.autocast would make in float32 is float32, and the step runs."""
    graph = mp.from_torch(Wide(), (torch.randn(5, 6), torch.randint(3, (5,))))
    found = apply_semantics(graph, {"precision": "bf16"})
    for node in found.nodes:
        dtypes = {found.tensors[result].dtype for result in node.results}
        call = getattr(getattr(node.operator, "inner", node.operator), "call", "")
        if policy_of(graph.nodes[node.id].operator) == "float32" or names_dtype(graph.nodes[node.id].operator):
            assert "bfloat16" not in dtypes, (node.name, call)
    assert {policy_of(node.operator) for node in graph.nodes} >= {"half", "float32", "widest"}
    plan = mp.search(graph, mp.Machine.preset("cpu:1"), semantics={"precision": "bf16"})
    (world,) = mp.testing.local_worlds(1)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(0.1), world=world) as trainer:
        losses = [trainer.step(torch.ones(5, 6), torch.zeros(5, dtype=torch.int64)) for _ in range(3)]
    assert losses[2] < losses[0]


def test_a_graph_without_products_is_refused() -> None:
    graph = mp.Graph("no product")
    graph.loss(
        graph.cross_entropy(graph.layer_norm(graph.input("x", (4, 3)), 3), graph.input("y", (4,), dtype="int64"))
    )
    with pytest.raises(mp.RequestError, match="'no product' has no product that could be of halves; leave it out"):
        apply_semantics(graph, {"precision": "bf16"})


def squared(value: torch.Tensor) -> torch.Tensor:
    """A function of a user's, for which nobody says what halves do to it."""
    return value * value


@pytest.mark.parametrize("said", ["bf16", "fp16"])
def test_an_operator_of_a_user_stays_float32(said: str) -> None:
    """It reads the halves of a product as float32, and what it gives is float32; both train."""
    graph = mp.Graph("own")
    x, y = graph.input("x", (4, 3)), graph.input("y", (4,), dtype="int64")
    (own,) = graph.call(squared, graph.linear(x, 5))
    graph.output("own", own)  # what products alone read is rounded where it is made
    graph.loss(graph.cross_entropy(graph.linear(own, 2), y))
    found = apply_semantics(graph, {"precision": said})
    dtypes = {node.name: found.tensors[node.results[0]].dtype for node in found.nodes}
    assert dtypes == {**dict.fromkeys(dtypes, "float32"), "linear": PRECISIONS[said], "linear_1": PRECISIONS[said]}
    plan = mp.search(graph, mp.Machine.preset("cpu:1"), semantics={"precision": said})
    (world,) = mp.testing.local_worlds(1)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(0.1), world=world) as trainer:
        losses = [trainer.step(torch.ones(4, 3), torch.tensor([0, 1, 1, 1])) for _ in range(4)]
    assert losses[3] < losses[0]
