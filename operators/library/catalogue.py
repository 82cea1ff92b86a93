"""The catalogue: every operator of the library by name."""

from __future__ import annotations

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
from maniple.regions.error import RequestError, nearest

CATALOGUE: dict[str, type[AbstractOperator]] = {
    operator.name: operator
    for operator in (
        Linear,
        Embedding,
        Conv1d,
        Conv2d,
        Conv3d,
        ConvTranspose1d,
        ConvTranspose2d,
        ConvTranspose3d,
        MaxPool2d,
        AvgPool2d,
        WindowPool,
        AdaptivePool,
        ReLU,
        Add,
        Flatten,
        Reshape,
        Pad,
        Triangle,
        Extremum,
        Dropout,
        DropoutVariant,
        Draw,
        Attention,
        Recurrent,
        RecurrentCell,
        CrossEntropy,
        NegativeLogLikelihood,
        PointwiseLoss,
        Softmax,
        LayerNorm,
        BatchNorm,
        RMSNorm,
        GroupNorm,
        Opaque,
        Aten,
        AtenLinear,
        AtenContraction,
        AtenDetached,
    )
}


def operator_class(name: str) -> type[AbstractOperator]:
    """The operator of that name.

    Raises:
        RequestError: There is none; lists them and the nearest.
    """
    if name not in CATALOGUE:
        raise RequestError(f"unknown operator '{name}'{nearest(name, sorted(CATALOGUE))}")
    return CATALOGUE[name]


def register_operator(kind: type[AbstractOperator]) -> None:
    """Add an operator, or replace the one of its name: running a notebook's cell again is no error."""
    CATALOGUE[kind.name] = kind
