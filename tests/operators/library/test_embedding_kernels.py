"""Embeddings on devices: numbers that are no row are lost in NaN, for nobody there can look; and few launches do it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import maniple as mp
from maniple.operators.library.dense.embedding_kernels import KERNELS
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.runtime.devices.body_watch import BodyWatch
from maniple.runtime.devices.null_tensor import NullTensor, inside, lies_on_a_device

ROWS, WIDTH = 7, 3
NUMBERS = torch.tensor([[6, 0, 3], [-1, 5, 7]])
"""Two of them are no row."""


def tiles(padding_idx: int | None = None) -> list[TileContext]:
    """The table whole, and its two parts."""
    graph = mp.Graph("words")
    numbers = graph.input("numbers", (2, 3), dtype="int64")
    graph.loss(
        graph.mse_loss(graph.embedding(numbers, ROWS, WIDTH, padding_idx=padding_idx), graph.input("y", (2, 3, 3)))
    )
    node = next(node for node in graph.nodes if node.operator.name == "embedding")
    rule = graph.bound(node)
    cut = tuple(2 if factor.name == "v" else 1 for factor in rule.factors)
    found = [*rule.table((1,) * len(rule.factors)).tiles([0]), *rule.table(cut).tiles([0, 1])]
    return [TileContext(tile, rule.extents(), node.operator) for tile in found]


def near(values: torch.Tensor) -> torch.Tensor:
    return values.clone().as_subclass(NullTensor)


def ran(bind: Callable[[], Callable[[], object]]) -> int:
    """Run a body on a device; gives how many calls it made that were no views."""
    with inside("device"):
        run = bind()
        with BodyWatch(lies_on_a_device, pytest.fail) as watch:
            run()
    views = ("aten.view", "aten.unsqueeze", "aten.reshape")
    return sum(not str(call[0]).startswith(views) for call in watch.calls)


@pytest.mark.parametrize(("part", "launches"), [(0, 4), (1, 11), (2, 11)])
def test_rows_are_looked_up_and_what_is_none_is_nan(part: int, launches: int) -> None:
    context, table = tiles()[part], torch.randn(ROWS, WIDTH)
    low, high = context.tile.range("v")
    result = near(torch.full((2, 3, WIDTH), 9.0))
    given = ForwardTensors((near(NUMBERS), near(table[low:high])), (result,), ())
    assert ran(lambda: KERNELS.bind_forward(context, given)) <= launches
    for number, found in zip(NUMBERS.flatten().tolist(), result.as_subclass(torch.Tensor).view(-1, WIDTH), strict=True):
        wanted = table[number] if low <= number < high else torch.zeros(WIDTH)
        assert torch.equal(found, wanted) if 0 <= number < ROWS else bool(found.isnan().all())


@pytest.mark.parametrize("padding_idx", [None, 5])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_gradient_has_nothing_of_what_is_no_row(part: int, padding_idx: int | None) -> None:
    context, gradient = tiles(padding_idx)[part], torch.randn(2, 3, WIDTH)
    low, high = context.tile.range("v")
    target = near(torch.full((high - low, WIDTH), 9.0))
    given = BackwardTensors((near(gradient),), (near(NUMBERS), None), (None,), (), (None, target))
    assert ran(lambda: KERNELS.bind_backward(context, given)) <= (7 if part == 0 and padding_idx is None else 15)
    wanted = torch.zeros(high - low, WIDTH)
    for number, slope in zip(NUMBERS.flatten().tolist(), gradient.view(-1, WIDTH), strict=True):
        if low <= number < high and number != padding_idx:
            wanted[number - low] += slope
    assert torch.equal(target.as_subclass(torch.Tensor), wanted)
