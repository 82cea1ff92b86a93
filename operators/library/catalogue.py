"""The catalogue: every operator of the library by name."""

from __future__ import annotations

from maniple.operators.library.aten import Aten, AtenContraction, AtenDetached, AtenLinear
from maniple.operators.library.convolution import Conv2d
from maniple.operators.library.linear import Linear
from maniple.operators.library.loss import CrossEntropy
from maniple.operators.library.normalization import BatchNorm, LayerNorm
from maniple.operators.library.opaque import Opaque
from maniple.operators.library.pointwise import Add, ReLU
from maniple.operators.library.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.shape import Flatten, Reshape
from maniple.operators.library.softmax import Softmax
from maniple.operators.operator import AbstractOperator
from maniple.regions.error import RequestError, nearest

CATALOGUE: dict[str, type[AbstractOperator]] = {
    operator.name: operator
    for operator in (
        Linear,
        Conv2d,
        MaxPool2d,
        AvgPool2d,
        ReLU,
        Add,
        Flatten,
        Reshape,
        CrossEntropy,
        Softmax,
        LayerNorm,
        BatchNorm,
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
