"""Every operator of the library passes the prover: whole and split in every legal way, composites included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from maniple.operators.library.catalogue import OPERATORS
from maniple.operators.library.dense.attention import Attention
from maniple.operators.library.dense.embedding import Embedding
from maniple.operators.library.dense.linear import Linear
from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell
from maniple.operators.library.elementwise.aten import Aten, AtenContraction, AtenDetached, AtenLinear
from maniple.operators.library.elementwise.extremum import Extremum
from maniple.operators.library.elementwise.pointwise import Add, ReLU
from maniple.operators.library.losses.loss import CrossEntropy
from maniple.operators.library.losses.pointwise_loss import NegativeLogLikelihood, PointwiseLoss
from maniple.operators.library.norms.feature_norm import GroupNorm, RMSNorm
from maniple.operators.library.norms.normalization import BatchNorm, LayerNorm
from maniple.operators.library.norms.softmax import Softmax
from maniple.operators.library.randomness.draw import Draw
from maniple.operators.library.randomness.dropout import Dropout, DropoutVariant
from maniple.operators.library.shapes.layout import Pad, Triangle
from maniple.operators.library.shapes.opaque import Opaque
from maniple.operators.library.shapes.shape import Flatten, Reshape
from maniple.operators.library.windows.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from maniple.operators.library.windows.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.windows.window_pooling import AdaptivePool, WindowPool
from maniple.operators.operator.operator import AbstractOperator
from maniple.operators.proving.prover import prove

Operands = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Case:
    """An operator and operands for it.

    Args:
        operator: What is proved.
        shapes: Of its operands, parameters last; a float tensor is drawn for each, None is absent.
        labels: Operands that hold class numbers, with the number of classes.
        allowed: The splits that the prover finds right and the rule does not allow.
    """

    operator: AbstractOperator
    shapes: Sequence[tuple[int, ...] | None]
    labels: tuple[tuple[int, int], ...] = ()
    allowed: str = ""

    def operands(self) -> Operands:
        chance = torch.Generator().manual_seed(0)
        classes = dict(self.labels)
        found: list[Tensor | None] = []
        for place, shape in enumerate(self.shapes):
            if shape is None:
                found.append(None)
            elif place in classes:
                found.append(torch.randint(classes[place], shape, generator=chance))
            else:
                found.append(torch.randn(shape, generator=chance, dtype=torch.float64))
        return tuple(found)


def twice(x: Tensor) -> Tensor:
    return x * 2


def running(case: Case) -> Operands:
    """A running variance above zero."""
    x, mean, variance, *rest = case.operands()
    return (x, mean, None if variance is None else variance.abs() + 0.5, *rest)


CASES: dict[str, Case] = {
    "linear": Case(Linear(5, 3), ((4, 5), (3, 5), (3,))),
    "conv2d": Case(Conv2d(2, 1, (3, 3), (1, 1), (1, 1)), ((1, 2, 4, 3), (1, 2, 3, 3), (1,))),
    "max_pool2d": Case(MaxPool2d((2, 2), (2, 2)), ((2, 2, 5, 4),)),
    "avg_pool2d": Case(AvgPool2d((3, 2), (2, 1), (1, 0)), ((2, 2, 5, 4),)),
    "relu": Case(ReLU(), ((5, 3, 2),)),
    "add": Case(Add(), ((4, 3), (4, 3))),
    "flatten": Case(Flatten(), ((3, 4, 2),)),
    "reshape": Case(Reshape((6, 2)), ((3, 3, 4),)),
    "cross_entropy": Case(CrossEntropy(1, "mean", 0.2), ((5, 4), (5,), (5,), (4,)), ((1, 4), (2, 4))),
    "cross_entropy of images": Case(CrossEntropy(), ((3, 4, 2), (3, 2), (3, 2), None), ((1, 4), (2, 4))),
    "softmax": Case(Softmax(1, 3), ((2, 5, 3),)),
    "softmax logarithm": Case(Softmax(1, 2, log=True), ((4, 5),)),
    "layer_norm": Case(LayerNorm((4, 3), 3), ((2, 4, 3), (4, 3), (4, 3))),
    "batch_norm": Case(BatchNorm(3, 3), ((4, 3, 2), (3,), (3,), (3,), (3,))),
    "conv2d of groups": Case(Conv2d(4, 4, (2, 1), groups=2, bias=False), ((1, 4, 3, 2), (4, 2, 2, 1))),
    "conv1d": Case(Conv1d(2, 2, (3,), (2,), (1,), (1,)), ((2, 2, 7), (2, 2, 3), (2,))),
    "conv3d": Case(
        Conv3d(2, 1, (2, 1, 2), (1, 1, 2), (0, 0, 1), (1, 1, 1), bias=False), ((1, 2, 3, 2, 4), (1, 2, 2, 1, 2))
    ),
    "conv_transpose1d": Case(ConvTranspose1d(2, 2, (3,), (2,), (1,), (1,), (2,)), ((2, 2, 4), (2, 2, 3), (2,))),
    "conv_transpose2d": Case(
        ConvTranspose2d(2, 1, (3, 2), (2, 3), (1, 0), (0, 0), (1, 1)), ((1, 2, 2, 2), (2, 1, 3, 2), (1,))
    ),
    "conv_transpose3d": Case(
        ConvTranspose3d(1, 2, (1, 2, 2), (1, 2, 1), (0, 1, 0), (0, 0, 0), (1, 1, 1), bias=False),
        ((1, 1, 2, 2, 3), (1, 2, 1, 2, 2)),
    ),
    "window_pool": Case(
        WindowPool("avg", (3, 3), (2, 2), (1, 1), (1, 1), ceil_mode=True, count_include_pad=False), ((2, 1, 6, 5),)
    ),
    "window_pool of maxima": Case(WindowPool("max", (2,), (2,), (1,), (2,), ceil_mode=True), ((2, 2, 7),)),
    "adaptive_pool": Case(AdaptivePool("avg", (3, 2)), ((2, 2, 7, 5),)),
    "embedding": Case(Embedding(5, 3), ((4, 2), (5, 3)), ((0, 5),)),
    "dropout of channels": Case(DropoutVariant(0.4, channels=True), ((3, 4, 5),)),
    "dropout to SELU's bound": Case(DropoutVariant(0.3, alpha=True), ((3, 4),)),
    "draw": Case(Draw("normal", "b 1, -> b c", "float64", (("c", 3),)), ((4, 1), ())),
    "draw of bits": Case(Draw("bernoulli", "b c -> b c", "float64"), ((4, 3),)),
    "dropout": Case(Dropout(0.4), ((3, 4, 5),)),
    "scaled_dot_product_attention": Case(
        Attention(is_causal=True, enable_gqa=True), ((1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), (1, 1, 3, 3))
    ),
    "scaled_dot_product_attention with dropout": Case(
        # Every part of the values' features would save the same weights.
        Attention(dropout_p=0.4),
        ((1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 2), None),
        allowed="e",
    ),
    "recurrent": Case(
        Recurrent("lstm", 3, 2, 2, dropout=0.3),
        ((2, 4, 3), (2, 4, 2), (2, 4, 2), (8, 3), (8, 2), (8,), (8,), (8, 2), (8, 2), (8,), (8,)),
    ),
    "recurrent with projections": Case(
        Recurrent("lstm", 3, 4, bidirectional=True, bias=False, proj_size=2),
        ((2, 3, 3), (2, 3, 2), (2, 3, 4), *((16, 3), (16, 2), (2, 4)) * 2),
    ),
    "recurrent_cell": Case(RecurrentCell("gru", 3, 2), ((4, 3), (4, 2), (6, 3), (6, 2), (6,), (6,))),
    "rms_norm": Case(RMSNorm((4,), 3), ((2, 3, 4), (4,))),
    "group_norm": Case(GroupNorm(2, 4, 4), ((2, 4, 3, 2), (4,), (4,))),
    "nll_loss": Case(NegativeLogLikelihood(1), ((4, 3, 2), (4, 2), (4, 2), (3,)), ((1, 3), (2, 3))),
    "pointwise_loss": Case(PointwiseLoss("huber", threshold=0.5), ((3, 4), (3, 4))),
    "pointwise_loss of elements": Case(PointwiseLoss("mse", "none"), ((3, 4), (3, 4))),
    "cross-entropy with probabilities": Case(
        PointwiseLoss("soft_cross_entropy", threshold=0.1), ((3, 4, 2), (3, 4, 2), (4,))
    ),
    "pad": Case(Pad(((1, 2), (0, 0), (-1, 1)), "float64", 2.0), ((2, 3, 4),)),
    "triangle": Case(Triangle(3, -1), ((2, 4, 3),)),
    "triangle above": Case(Triangle(2, 1, upper=True), ((3, 5),)),
    "extremum": Case(Extremum((1, 2), 3), ((2, 3, 4),)),
    "extremum that stays": Case(Extremum((0,), 2, keepdim=True, least=True), ((4, 3),)),
    "aten": Case(Aten("gelu(x0)", "b c -> b c", ("float64",)), ((4, 3),)),
    "aten_linear": Case(AtenLinear("permute(x0, [1, 0])", "b c -> c b", ("float64",)), ((4, 3),)),
    "aten_contraction": Case(AtenContraction("mm(x0, x1)", "b k, k n -> b n", ("float64",)), ((4, 3), (3, 2))),
    "aten_detached": Case(AtenDetached("detach(x0)", "b c -> b c", ("float64",)), ((4, 3),)),
    "opaque": Case(Opaque(twice, (((2, 3), "float64"),), ""), ((2, 3),)),
}
PREPARED: dict[str, Callable[[Case], Operands]] = {"batch_norm": running}


def prepared(name: str) -> Operands:
    case = CASES[name]
    operands = PREPARED.get(name, Case.operands)(case)
    if name.startswith(("cross_entropy", "nll_loss")):
        # The labels come twice, as a tile's own and as the whole batch's, and weights are above zero.
        logits, labels, _, weights = operands
        return logits, labels, labels, None if weights is None else weights.abs()
    return operands


@pytest.mark.parametrize("name", CASES)
def test_the_prover_finds_nothing_wrong(name: str) -> None:
    found = prove(CASES[name].operator, [prepared(name)])
    assert found.counterexample is None, str(found.counterexample)
    assert found.splits >= 1
    assert " ".join(found.allowed) == CASES[name].allowed


def test_every_operator_of_the_library_is_proved() -> None:
    library = {name for name in OPERATORS.names() if "maniple" in OPERATORS.packages(name)}
    assert library == {case.operator.name for case in CASES.values()}


def test_the_library_is_what_the_package_announces() -> None:
    for name in OPERATORS.names():
        if "maniple" in OPERATORS.packages(name):
            assert OPERATORS.lookup(name).name == name
