"""In what kernels of mixed precision compute: on devices products are given halves, and nothing is cast for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import maniple as mp
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.precision.arithmetic import arithmetic_of, unread
from maniple.operators.precision.mixed_precision import MixedPrecision
from maniple.process.torch_internals import schema_of
from maniple.runtime.devices.null_tensor import NullTensor, inside
from maniple.runtime.storage.scratchpad import Scratchpad

HALF = torch.bfloat16


class Net(torch.nn.Module):
    """One of each kind of operator, each behind products, so that halves arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = self.norm(h + torch.nn.functional.gelu(h) * h.relu())
        return torch.nn.functional.cross_entropy(self.last(h), y)


class Calls(TorchDispatchMode):
    """Hears of calls that compute or copy; of copies that change the dtype as ``cast``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if all(end.alias_info is None or end.alias_info.is_write for end in schema_of(func).returns):
            name = func.overloadpacket.__name__
            self.names.append("cast" if name == "copy_" and args[0].dtype != args[1].dtype else name)
        return found


def lay(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(dtype).as_subclass(NullTensor)


def bound(graph: mp.Graph, name: str, *, backward: bool = False, wanted: tuple[int, ...] = (0,)) -> list[str]:
    """The calls of an operator's body on a null device."""
    node = next(node for node in graph.nodes if node.name == name)
    rule = graph.bound(node)
    tile = next(iter(rule.table((1,) * len(rule.factors)).tiles([0])))
    context = TileContext(tile, rule.extents(), node.operator, scratch=Scratchpad().turn())
    tensors = graph.tensors

    def of(number: int | None, place: int) -> torch.Tensor | None:
        if number is None:
            return None
        half = node.operator.reads_as(place) and tensors[number].lasting
        return lay(tensors[number].shape, HALF if half else getattr(torch, tensors[number].dtype))

    with inside("device"):
        operands = tuple(of(number, place) for place, number in enumerate(node.operands))
        results = tuple(lay(tensors[number].shape, getattr(torch, tensors[number].dtype)) for number in node.results)
        shapes = zip(rule.rule.saved, rule.saved_shapes, strict=True)
        saved = tuple(lay(shape, torch.float32) for _, shape in shapes)
        run: Callable[[], object]
        if backward:
            gradients = tuple(lay(result.shape, torch.float32) for result in results)
            targets = tuple(
                lay(each.shape, torch.float32) if each is not None and place in wanted else None
                for place, each in enumerate(operands)
            )
            reads = node.operator.backward_reads
            read = reads.operand_places(len(operands))
            given = tuple(each if place in read else None for place, each in enumerate(operands))
            kept = tuple(each if place in reads.results else None for place, each in enumerate(results))
            found = BackwardTensors(gradients, given, kept, saved, targets)
            run = node.operator.variant(operands).bind_backward(context, found)
        else:
            run = node.operator.variant(operands).bind_forward(context, ForwardTensors(operands, results, saved))
        with Calls() as calls:
            run()
    return calls.names


@pytest.fixture(scope="module")
def graph() -> mp.Graph:
    made = mp.from_torch(Net(), (torch.randn(5, 6), torch.randint(4, (5,))))
    return apply_semantics(made, {"precision": "bf16"})


def test_a_value_that_only_a_product_reads_is_rounded_where_it_is_made(graph: mp.Graph) -> None:
    """And nobody rounds it again."""
    node = next(node for node in graph.nodes if node.name == "norm")
    assert graph.tensors[node.results[0]].dtype == "bfloat16"
    assert bound(graph, "norm") == ["cast", "cast"]  # of what it reads and gives; between them it is no call of torch's
    assert bound(graph, "last") == ["addmm"]


@pytest.mark.parametrize(
    ("name", "backward", "wanted", "calls"),
    [
        ("first", False, (), ["cast", "addmm"]),  # an input is float32
        ("first", True, (1, 2), ["cast", "cast"]),
        ("last", True, (0,), ["cast"]),
        ("last", True, (1, 2), ["cast"]),
        ("gelu", False, (), ["gelu"]),
        ("gelu", True, (0,), ["gelu_backward"]),
        ("relu", False, (), ["clamp_min"]),
        ("relu", True, (0,), ["threshold_backward"]),
        ("mul", False, (), ["mul"]),
        ("mul", True, (0, 1), ["mul", "mul"]),
        ("add", False, (), ["add"]),
    ],
)
def test_what_is_cast_on_a_device(
    graph: mp.Graph, name: str, backward: bool, wanted: tuple[int, ...], calls: list[str]
) -> None:
    """A product's gradient, once; element by element nothing: torch promotes within the kernel."""
    found = bound(graph, name, backward=backward, wanted=wanted)
    if backward and name in {"first", "last"}:
        # On memory of the host torch has no product of halves that gives float32: there its operands are cast.
        assert [each for each in found if each == "cast"] == calls
    else:
        assert found == calls


def test_what_computes_on_halves_and_what_does_not(graph: mp.Graph) -> None:
    near, here = lay((1,), HALF), torch.empty(1)
    found = {
        node.operator.name if node.operator.name in {"layer_norm", "cross_entropy"} else node.name: arithmetic_of(
            node.operator, (near,)
        )
        for node in graph.nodes
        if isinstance(node.operator, MixedPrecision)
    }
    assert found.pop("layer_norm") == found.pop("cross_entropy") == "singles"
    assert {name for name, kind in found.items() if kind == "halves"} == {"first", "last"}
    assert set(found.values()) == {"halves", "promoted"}
    assert {
        arithmetic_of(node.operator, (here,)) for node in graph.nodes if isinstance(node.operator, MixedPrecision)
    } == {"singles"}


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (torch.nn.LSTM(4, 6, num_layers=2), "halves"),
        (torch.nn.LSTM(4, 6, proj_size=3), "singles"),
        (torch.nn.GRU(4, 6, bidirectional=True), "halves"),
    ],
)
def test_recurrent_layers_multiply_halves(module: torch.nn.Module, wanted: str) -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layers(x)[0]
            return found.sum()

    made = apply_semantics(mp.from_torch(Last(), (torch.randn(3, 2, 4),)), {"precision": "bf16"})
    (operator,) = (node.operator for node in made.nodes if node.operator.name == "recurrent")
    assert isinstance(operator, MixedPrecision)
    assert arithmetic_of(operator, (lay((1,), HALF),)) == wanted
    assert arithmetic_of(operator, (torch.empty(1),)) == "singles"


def test_a_gradient_of_a_product_does_not_read_what_it_is_of(graph: mp.Graph) -> None:
    first = graph.node("first").operator
    assert isinstance(first, MixedPrecision)
    assert unread(first, [0]) == {0}
    assert unread(first, [1, 2]) == {1}
    assert unread(first, [0, 1]) == frozenset()
