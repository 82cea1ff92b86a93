"""Distances: two tensors compared along one dimension, which stays whole."""

from __future__ import annotations

from typing import Any

from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.pattern_text import text
from maniple.operators.torch_import.exported_call import Call, spell
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.layout import dimension
from maniple.operators.torch_import.translation import Translation


@handles("cosine_similarity", "pairwise_distance", "linalg_vecdot")
def _distance(into: Translation, call: Call) -> Any:
    """Of each vector of one tensor from that of another in the same place."""
    written, operands = spell(call)
    given = [into.tensor(operand) for operand in operands]
    shape = given[0].shape
    if len(shape) < 2 or any(tensor.shape != shape for tensor in given):
        return None
    along = dimension(call.arguments.get("dim", -1), len(shape))
    names = [f"{name}!" if axis == along else name for axis, name in enumerate(activation_axes(len(shape)))]
    kept = ["1" if axis == along else name for axis, name in enumerate(names)]
    result = kept if len(call.shape) == len(shape) else [*kept[:along], *kept[along + 1 :]]
    return into.results(call, Aten(written, text([names, names], [result]), call.dtypes), given)


@handles("cdist")
def _pair_distance(into: Translation, call: Call) -> Any:
    """Of each vector of one tensor from each of another."""
    written, operands = spell(call)
    given = [into.tensor(operand) for operand in operands]
    one, other = (tensor.shape for tensor in given)
    if len(one) != len(other) or one[:-2] != other[:-2]:
        return None
    *batch, rows, columns, feature = activation_axes(len(one) + 1)
    patterns = [[*batch, rows, f"{feature}!"], [*batch, columns, f"{feature}!"]]
    return into.results(call, Aten(written, text(patterns, [[*batch, rows, columns]]), call.dtypes), given)
