"""Recurrent layers and cells: law 1 for what they keep, of drawn layers and parts; backward computes nothing again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maniple.operators.library.dense import cell_kernels, gate_kernels, recurrent_gradients, recurrent_kernels
from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell
from maniple.operators.library.dense.torch_recurrent import TorchRecurrent, TorchRecurrentCell
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.rules.rule import BoundRule
from maniple.operators.rules.tile import Tile

TOLERANCE = 1e-10  # of float64: |a - b| <= TOLERANCE * max(1, max|b|)
STREAM = RandomStream.of("it", torch.tensor([3, 4]))


@dataclass
class Parts:
    """An operator whose samples are cut; forward and backward of each part, in parts of whole tensors.

    Args:
        operator: The operator.
        operands: Whole.
        parts: How many.
        absent: The results that have no gradient.
    """

    operator: Recurrent | RecurrentCell
    operands: list[Tensor | None]
    parts: int
    absent: tuple[int, ...] = ()

    def bound(self) -> BoundRule:
        shapes = tuple(None if each is None else tuple(each.shape) for each in self.operands)
        return self.operator.rule(shapes).bind(shapes)

    def run(self, slopes: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None], list[str]]:
        """Results, gradients, and what backward called."""
        bound = self.bound()
        results = [torch.full(shape, float("nan"), dtype=torch.float64) for shape in bound.result_shapes]
        saved = [torch.full(shape, float("nan"), dtype=torch.float64) for shape in bound.saved_shapes]
        gradients = [None if each is None else torch.zeros_like(each) for each in self.operands]
        tiles = [tile for tile in bound.tiles({"b": self.parts}) if not tile.is_empty]
        bodies = self.operator.kernels()
        for tile in tiles:
            context = TileContext(tile, bound.extents(), self.operator, stream=STREAM)
            tensors = ForwardTensors(self._operands(tile), *self._made(tile, results, saved))
            bodies.bind_forward(context, tensors)()
        called: list[str] = []
        for tile in tiles:
            context = TileContext(tile, bound.extents(), self.operator, stream=STREAM)
            found = [
                None if whole is None or rect is None else torch.full(rect.shape, float("nan"), dtype=torch.float64)
                for whole, rect in zip(gradients, tile.gradient_rects, strict=True)
            ]
            given_results, kept = self._made(tile, results, saved)
            given_slopes = tuple(
                None if place in self.absent else slope[rect.slices((0,) * slope.ndim)]
                for place, (slope, rect) in enumerate(zip(slopes, tile.result_rects, strict=True))
            )
            tensors = BackwardTensors(given_slopes, self._operands(tile), given_results, kept, tuple(found))
            run = bodies.bind_backward(context, tensors)
            with Calls() as calls:
                run()
            called += calls.names
            for whole, part, rect in zip(gradients, found, tile.gradient_rects, strict=True):
                if whole is not None and part is not None and rect is not None:
                    whole[rect.slices((0,) * whole.ndim)] += part
        return results, gradients, called

    def _operands(self, tile: Tile) -> tuple[Tensor | None, ...]:
        return tuple(
            None if whole is None or rect is None else whole[rect.slices((0,) * whole.ndim)]
            for whole, rect in zip(self.operands, tile.operand_rects, strict=True)
        )

    @staticmethod
    def _made(tile: Tile, results: list[Tensor], saved: list[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The parts of results and of what is saved: they lie between those of other tiles."""
        pairs = zip(results, tile.result_rects, strict=True), zip(saved, tile.saved_rects, strict=True)
        first, second = (tuple(whole[rect.slices((0,) * whole.ndim)] for whole, rect in each) for each in pairs)
        return first, second


class Calls(TorchDispatchMode):
    """The names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


FORWARD_ONLY = {"sigmoid", "sigmoid_", "tanh", "tanh_", "mkldnn_rnn_layer", "lerp"}


def by_torch(operator: Recurrent | RecurrentCell, operands: list[Tensor | None], slopes: list[Tensor]) -> list[Tensor]:
    """Results and gradients by torch's own functions."""
    leaves = [None if each is None else each.clone().requires_grad_() for each in operands]
    torch_own = TorchRecurrent(operator) if isinstance(operator, Recurrent) else TorchRecurrentCell(operator)
    shapes = tuple(None if each is None else tuple(each.shape) for each in operands)
    bound = operator.rule(shapes).bind(shapes)
    context = TileContext(bound.tiles({})[0], bound.extents(), torch_own, stream=STREAM)
    found = torch_own.compute(context, tuple(leaves))
    torch.autograd.backward(found, slopes)
    return [value.detach() for value in found] + [
        leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in leaves if leaf is not None
    ]


def near(found: Tensor, wanted: Tensor) -> bool:
    bound = TOLERANCE * max(1.0, float(wanted.abs().max()))
    return found.shape == wanted.shape and bool(((found - wanted).abs() <= bound).all())


def check(operator: Recurrent | RecurrentCell, given: list[Tensor | None], parts: int, absent: tuple[int, ...]) -> None:
    chance = torch.Generator().manual_seed(5)
    own = [torch.randn(spec.shape, generator=chance, dtype=torch.float64) / 2 for spec in operator.parameters()]
    shapes = tuple(None if each is None else tuple(each.shape) for each in (*given, *own))
    pad: list[Tensor | None] = [None] * (len(operator.rule(shapes).operands) - len(shapes))
    cut = Parts(operator, [*given, *own, *pad], parts, absent)
    slopes = [torch.randn(shape, generator=chance, dtype=torch.float64) for shape in cut.bound().result_shapes]
    for place in absent:
        slopes[place].zero_()
    results, gradients, called = cut.run(slopes)
    wanted = by_torch(operator, cut.operands, slopes)
    found = [*results, *(each for each in gradients if each is not None)]
    assert all(near(mine, its) for mine, its in zip(found, wanted, strict=True))
    assert FORWARD_ONLY.isdisjoint(called), "backward computes again what forward has computed"


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(["lstm", "gru"]),
    layers=st.integers(1, 3),
    steps=st.sampled_from((1, 2, 3, 4, 9)),  # of nine steps a copy of the state's weight pays
    batch=st.integers(1, 5),
    parts=st.integers(1, 3),
    flags=st.tuples(*[st.booleans()] * 5),
    dropout=st.sampled_from([0.0, 0.4]),
    absent=st.sampled_from([(), (0,), (1,)]),
)
def test_layers_in_parts_train_as_torch_s(
    mode: str,
    layers: int,
    steps: int,
    batch: int,
    parts: int,
    flags: tuple[bool, ...],
    dropout: float,
    absent: tuple[int, ...],
) -> None:
    bias, first, both, stated, projected = flags
    size = 2 if projected and mode == "lstm" else 0
    operator = Recurrent(mode, 3, 4, layers, bias, first, dropout, both, size)
    chance = torch.Generator().manual_seed(2)
    shape = (batch, steps, 3) if first else (steps, batch, 3)
    count = layers * (2 if both else 1)
    states = [(count, batch, size or 4), (count, batch, 4)][: operator.states]
    given: list[Tensor | None] = [torch.randn(shape, generator=chance, dtype=torch.float64)]
    given += [torch.randn(state, generator=chance, dtype=torch.float64) if stated else None for state in states]
    check(operator, given, min(parts, batch), absent)


@settings(max_examples=20, deadline=None)
@given(
    mode=st.sampled_from(["lstm", "gru"]),
    batch=st.integers(1, 5),
    parts=st.integers(1, 3),
    bias=st.booleans(),
    absent=st.sampled_from([(), (0,)]),
)
def test_cells_in_parts_train_as_torch_s(
    mode: str, batch: int, parts: int, absent: tuple[int, ...], *, bias: bool
) -> None:
    operator = RecurrentCell(mode, 3, 4, bias)
    chance = torch.Generator().manual_seed(2)
    shapes = [(batch, 3), *[(batch, 4)] * operator.states]
    given: list[Tensor | None] = [torch.randn(shape, generator=chance, dtype=torch.float64) for shape in shapes]
    check(operator, given, min(parts, batch), absent if mode == "lstm" else ())


@pytest.mark.parametrize("kernel", [gate_kernels.lstm_gradients, gate_kernels.gru_gradients])
def test_a_gradient_of_gates_is_one_pass_of_arithmetic(kernel: Any) -> None:
    """The compiled kernels call no function: all exponentials were forward's."""
    assert set(kernel.py_func.__code__.co_names) <= {"dtype", "type", "shape", "range"}


def test_an_evaluation_gives_what_training_gives_without_dropout() -> None:
    operator = Recurrent("lstm", 3, 4, 2)
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    own = [torch.randn(spec.shape, dtype=torch.float64) for spec in operator.parameters()]
    cut = Parts(operator, [x, None, None, *own], 1)
    bound = cut.bound()
    context = TileContext(bound.tiles({})[0], bound.extents(), operator, training=False)
    results = tuple(torch.empty(shape, dtype=torch.float64) for shape in bound.result_shapes)
    saved = tuple(torch.empty(shape, dtype=torch.float64) for shape in bound.saved_shapes)
    recurrent_kernels.bind_forward(context, ForwardTensors(tuple(cut.operands), results, saved))()
    assert near(
        results[0], torch.lstm(x, (torch.zeros(2, 3, 4).double(),) * 2, own, True, 2, 0.0, False, False, False)[0]
    )
    assert operator.kernels().bind_backward is recurrent_gradients.bind_backward
    assert RecurrentCell("gru", 3, 4).kernels() is cell_kernels.KERNELS
