"""Indexing: operators by which values of one tensor pick elements of another."""

from __future__ import annotations

from typing import Any

import torch

from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.pattern_text import text
from maniple.operators.torch_import.exported_call import Call, Known, spell
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.layout import axes, dimension, permute, reshape
from maniple.operators.torch_import.translation import Translation


@handles("index_select")
def _index_select(into: Translation, call: Call) -> Any:
    tensor, index = into.tensor(call["self"]), into.tensor(call["index"])
    if not tensor.shape or not index.shape:
        return None
    axis = dimension(call["dim"], len(tensor.shape))
    names = axes(tensor)
    before = [f"{name}!" if place == axis else name for place, name in enumerate(names)]
    after = ["i" if place == axis else name for place, name in enumerate(names)]
    written = f"index_select(x0, {axis}, x1)"
    return into.apply(Aten(written, text([before, ["i"]], [after]), call.dtypes), (tensor, index))[0]


@handles("gather", "scatter", "scatter_add", "take_along_dim", "index_add", "index_copy", "index_fill")
def _along(into: Translation, call: Call) -> Any:
    """Elements picked or written along one dimension; the others go side by side where they are equally long."""
    written, operands = spell(call)
    given = [into.tensor(operand) for operand in operands]
    rank = len(call.shape)
    axis = call.arguments.get("dim")
    if axis is None or any(len(tensor.shape) != rank for tensor in given) or not rank:
        return None
    axis = dimension(axis, rank)
    names = axes(given[0])

    def pattern(shape: tuple[int, ...]) -> list[str]:
        return [
            name
            if place != axis and all(tensor.shape[place] == given[0].shape[place] for tensor in given)
            else str(shape[place])
            for place, name in enumerate(names)
        ]

    rule = text([pattern(tensor.shape) for tensor in given], [pattern(call.shape)])
    return into.results(call, Aten(written, rule, call.dtypes), given)


@handles("select_scatter", "slice_scatter")
def _insert(into: Translation, call: Call) -> Any:
    """A tensor with other values in some places along one dimension."""
    given = [into.tensor(call["self"]), into.tensor(call["src"])]
    written, _ = spell(call)
    axis = dimension(call["dim"], len(call.shape))
    names = axes(given[0])
    whole = [f"{name}!" if place == axis else name for place, name in enumerate(names)]
    rows = [str(given[1].shape[axis])] if call.packet == "slice_scatter" else []
    rule = text([whole, [*names[:axis], *rows, *names[axis + 1 :]]], [whole])
    return into.apply(Aten(written, rule, call.dtypes), given)[0]


@handles("one_hot")
def _one_hot(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    names = axes(tensor)
    rule = text([names], [[*names, str(call.shape[-1])]])
    return into.apply(Aten(f"one_hot(x0, {call.shape[-1]})", rule, call.dtypes), (tensor,))[0]


@handles("index.Tensor")
def _index(into: Translation, call: Call) -> Any:
    """Elements of a tensor at indices that repeat along each other; a range of all indices is only another order."""
    tensor, indices = into.tensor(call["self"]), call["indices"]
    known = [item.value for item in indices if isinstance(item, Known)]
    if len(known) == len(indices) == len(tensor.shape) and (found := _ranges(known, tensor.shape)) is not None:
        return reshape(into, permute(into, tensor, found), call.shape)
    given = [into.broadcastable(item) for item in indices if item is not None]
    if any(item is None for item in indices) or any(item.dtype not in {"int64", "int32"} for item in given):
        return None
    count = len(given)
    width = max(len(item.shape) for item in given)
    picked = list(activation_axes(width))[:width] if width else []
    rest = [f"r{axis}" for axis in range(count, len(tensor.shape))]
    shape = call.shape[:width]
    patterns = [
        [
            name if extent == shape[place] else "1"
            for place, (name, extent) in enumerate(
                zip(picked[width - len(item.shape) :], item.shape, strict=True), start=width - len(item.shape)
            )
        ]
        for item in given
    ]
    source = [f"p{axis}!" for axis in range(count)]
    named = {name for pattern in patterns for name in pattern}
    listed = ", ".join(f"x{place + 1}" for place in range(count))
    rule = text([[*source, *rest], *patterns], [[*picked, *rest]])
    if not named.issuperset(picked):
        return None
    return into.apply(Aten(f"index.Tensor(x0, [{listed}])", rule, call.dtypes), (tensor, *given))[0]


def _ranges(indices: list[torch.Tensor], shape: tuple[int, ...]) -> list[int] | None:
    """The order of the tensor's dimensions in the result, where index i is 0 .. n-1 along a dimension of its own."""
    places: dict[int, int] = {}
    for axis, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        long = [place - index.ndim for place, size in enumerate(index.shape) if size > 1]
        if index.numel() != extent or len(long) > 1:
            return None
        if not torch.equal(index.reshape(-1), torch.arange(extent, dtype=index.dtype)):
            return None
        place = long[0] if long else None
        if place is None or place in places:
            return None
        places[place] = axis
    return [places[place] for place in sorted(places)]
