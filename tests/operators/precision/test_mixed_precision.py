"""Operators in mixed precision: what they read and give, their scratchpads, and how they are written to a file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import maniple as mp
from maniple.models import digits_cnn
from maniple.operators.graph import graph_file
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.precision import mixed_kernels
from maniple.operators.precision.mixed_precision import MixedPrecision
from maniple.process.error import RequestError
from maniple.runtime.devices.multiplication import MULTIPLICATION
from maniple.runtime.devices.null_tensor import NullTensor
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.storage.scratchpad import Scratchpad
from maniple.testing import local_worlds


def layer(precision: str = "bf16") -> mp.Graph:
    graph = mp.Graph("layer")
    x, y = graph.input("x", (6, 4)), graph.input("y", (6,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 3, name="linear"), y))
    return apply_semantics(graph, {"precision": precision})


def test_a_product_rounds_what_it_reads_and_what_it_gives() -> None:
    graph = layer()
    node, bound = graph.node("linear"), graph.bound(graph.node("linear"))
    assert isinstance(node.operator, MixedPrecision)
    tile = next(iter(bound.table((1,) * len(bound.factors)).tiles([0])))
    context = TileContext(tile, bound.extents(), node.operator, scratch=Scratchpad().turn())
    x, weight, bias = torch.randn(6, 4), torch.randn(3, 4).bfloat16(), torch.randn(3).bfloat16()
    result = torch.empty(6, 3, dtype=torch.bfloat16)
    mixed_kernels.bind_forward(context, ForwardTensors((x, weight, bias), (result,)))()
    rounded = x.bfloat16().float()
    assert torch.equal(result, (rounded @ weight.float().t() + bias.float()).bfloat16())
    arrived = torch.randn(6, 3)
    targets = tuple(torch.empty_like(tensor, dtype=torch.float32) for tensor in (x, weight, bias))
    tensors = BackwardTensors((arrived,), (x, weight, None), (None,), (), targets)
    mixed_kernels.bind_backward(context, tensors)()
    gradient = arrived.bfloat16().float()
    wanted = gradient @ weight.float(), gradient.t() @ rounded, gradient.sum(0)
    for found, other in zip(targets, wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_file_holds_it(precision: str) -> None:
    graph = layer(precision)
    again = graph_file.from_json(graph_file.to_json(graph), mp.Graph)
    assert [node.operator for node in again.nodes] == [node.operator for node in graph.nodes]
    assert again.fingerprint() == graph.fingerprint()


def test_products_alone_may_be_of_tf32_and_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, bool]] = []

    def looked(name: str) -> None:
        found.append((name, torch.backends.cuda.matmul.allow_tf32))

    def bound(name: str) -> Callable[[], None]:
        looked(f"{name}, as it is bound")
        return lambda: looked(name)

    graph = layer("tf32")
    product, loss = (graph.node(name).operator for name in ("linear", "cross_entropy"))
    assert isinstance(product, MixedPrecision)
    assert not isinstance(loss, MixedPrecision)
    assert product.gives == ("float32",)
    mixed_kernels._in_tf32(lambda: bound("on the host"), (torch.zeros(1), None))()
    monkeypatch.setattr(NullTensor, "is_cuda", True)
    MULTIPLICATION.open()
    mixed_kernels._in_tf32(lambda: bound("on a device"), (torch.zeros(1).as_subclass(NullTensor),))()
    looked("after it")
    MULTIPLICATION.close()
    host, device = ("on the host, as it is bound", False), ("on a device, as it is bound", True)
    assert found == [host, ("on the host", False), device, ("on a device", True), ("after it", False)]


@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_on_cpus_tf32_changes_no_bit(name: str) -> None:
    graph, batch = (digits_cnn(8), (torch.randn(8, 1, 8, 8), torch.arange(8))) if name == "digits" else gpt()
    found = []
    for semantics in (None, {"precision": "tf32"}):
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel", semantics=semantics)
        (world,) = local_worlds(1)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(0.1, 0.9), world=world) as trainer:
            found.append(([trainer.step(*batch) for _ in range(3)], trainer.parameters()))
        RankRuntime.of(world).close()
    (losses, weights), (others, more) = found
    assert losses == others
    assert all(torch.equal(value, more[name]) for name, value in weights.items())


def gpt() -> tuple[mp.Graph, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    layers = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.lstm, self.head = layers, nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.head(self.lstm(self.layers(x))[0]).flatten(0, 1), y.flatten())

    batch = torch.randn(2, 4, 8), torch.randint(0, 5, (2, 4))
    return mp.from_torch(Model(), batch), batch


def test_a_graph_without_products_is_refused_tf32() -> None:
    graph = mp.Graph("none")
    x, y = graph.input("x", (6, 4)), graph.input("y", (6,), dtype="int64")
    graph.loss(graph.cross_entropy(x, y))
    with pytest.raises(RequestError, match=r"graph 'none' has no product of float32; leave it out"):
        apply_semantics(graph, {"precision": "tf32"})


@pytest.mark.parametrize("degree", [1, 2])
def test_a_split_of_what_is_added_up_is_composed(degree: int) -> None:
    """Its parts fold in float32, and one cast rounds their sum."""
    from maniple.operators.lowering.composite import lower_composites
    from maniple.operators.plan.plan import OperatorPlan, Plan

    graph = layer()
    operators = []
    for node in graph.nodes:
        names = [factor.name for factor in graph.bound(node).factors]
        degrees = tuple((name, degree if (node.name, name) == ("linear", "k") else 1) for name in names)
        operators.append((node.name, OperatorPlan(degrees, tuple(range(degree if node.name == "linear" else 1)))))
    made, plan = lower_composites(graph, Plan("", "", tuple(operators), ()), training=True)
    names = [node.name for node in made.nodes]
    if degree == 1:
        assert names == ["linear", "cross_entropy"]
        return
    assert names == ["linear.sum", "linear.half", "cross_entropy"]
    assert [made.tensor(name).dtype for name in names] == ["float32", "bfloat16", "float32"]
    assert plan.operator("linear.half").processors == (0,)
