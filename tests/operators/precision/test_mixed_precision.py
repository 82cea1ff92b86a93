"""Operators in mixed precision: what they read and give, their scratchpads, and how they are written to a file."""

from __future__ import annotations

import pytest
import torch

import maniple as mp
from maniple.operators.graph import graph_file
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.operator.scratchpad import ALIGNMENT, Scratchpad, Scratchpads
from maniple.operators.precision import mixed_kernels
from maniple.operators.precision.mixed_precision import MixedPrecision


def layer() -> mp.Graph:
    graph = mp.Graph("layer")
    x, y = graph.input("x", (6, 4)), graph.input("y", (6,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 3, name="linear"), y))
    return apply_semantics(graph, {"precision": "bf16"})


def test_a_product_rounds_what_it_reads_and_what_it_gives() -> None:
    graph = layer()
    node, bound = graph.node("linear"), graph.bound(graph.node("linear"))
    assert isinstance(node.operator, MixedPrecision)
    tile = next(iter(bound.table((1,) * len(bound.factors)).tiles([0])))
    context = TileContext(tile, bound.extents(), node.operator, scratchpad=Scratchpad())
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


def test_a_file_holds_it() -> None:
    graph = layer()
    again = graph_file.from_json(graph_file.to_json(graph), mp.Graph)
    assert [node.operator for node in again.nodes] == [node.operator for node in graph.nodes]
    assert again.fingerprint() == graph.fingerprint()


def test_bodies_of_one_processor_take_turns_with_its_scratchpad() -> None:
    """What any number of bodies take together is below four times what the largest needs."""
    pads, near = Scratchpads(), torch.empty(0)
    sizes = [100 * (1 + n) for n in range(60)]
    for size in sizes:
        one, two = pads.of(3).views([((size,), torch.float32), ((5,), torch.bfloat16)], near)
        assert (one.shape, two.dtype) == ((size,), torch.bfloat16)
        assert two.data_ptr() >= one.data_ptr() + one.nbytes
        assert one.data_ptr() % ALIGNMENT == two.data_ptr() % ALIGNMENT
    largest = max(sizes) * 4 + 2 * ALIGNMENT
    assert largest <= pads.of(3).allocated + 2 * ALIGNMENT < 4 * largest
    assert pads.of(4).allocated == 0
    (empty,) = pads.of(3).views([((0, 7), torch.float32)], near)
    assert empty.shape == (0, 7)


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
