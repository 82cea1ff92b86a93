"""Indexing: operators by which values of one tensor pick elements of another."""

from __future__ import annotations

from typing import Any

import torch

from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.pattern_text import text
from maniple.operators.torch_import.exported_call import Call, Known, spell
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.layout import axes, dimension, permute, reshape
from maniple.operators.torch_import.translation import Translation, compact


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


@handles(
    *("gather", "scatter", "scatter_add", "scatter_reduce", "take_along_dim", "index_add", "index_copy", "index_fill"),
)
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


@handles("fill_diagonal")
def _fill_diagonal(into: Translation, call: Call) -> Any:
    places = Known(torch.zeros(call.shape).fill_diagonal_(1, wrap=call["wrap"]).bool())
    given = [into.tensor(call["self"]), into.tensor(places)]
    names = axes(given[0])
    written = f"masked_fill.Scalar(x0, x1, {call['fill_value']!r})"
    return into.apply(Aten(written, text([names, names], [names]), call.dtypes), given)[0]


@handles("one_hot")
def _one_hot(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    names = axes(tensor)
    rule = text([names], [[*names, str(call.shape[-1])]])
    return into.apply(Aten(f"one_hot(x0, {call.shape[-1]})", rule, call.dtypes), (tensor,))[0]


@handles("index.Tensor")
def _index(into: Translation, call: Call) -> Any:
    """Elements of a tensor at indices that repeat along each other.

    An index that names all of a dimension in its order is no operand: that dimension and the result's are cut alike. So
    ``h[torch.arange(len(h)), last]`` is ``"b p!, b -> b"``, of any number of samples. Where all indices are such, the
    result is the tensor in another order.
    """
    tensor, indices = into.tensor(call["self"]), call["indices"]
    rank, there = len(tensor.shape), [item for item in indices if item is not None]
    known = [item.value for item in there if isinstance(item, Known)]
    if len(known) == len(indices) == rank and (order := _ranges(known, tensor.shape)) is not None:
        return reshape(into, permute(into, tensor, order), call.shape)
    given = [item if isinstance(item, Tensor) else Known(compact(item.value), item.name) for item in there]
    if any(_dtype(item) not in {"int64", "int32"} for item in given):
        return None
    places = [axis for axis, item in enumerate(indices) if item is not None]
    first = places[0] if places == [*range(places[0], places[-1] + 1)] else 0  # torch has the picked ones first, else
    width = max(len(_shape(item)) for item in there)
    picked, shape = [f"i{axis}" for axis in range(width)], call.shape[first : first + width]
    source = [f"r{axis}" for axis in range(rank)]
    patterns, operands, written = [], [tensor], ["None"] * len(indices)
    for axis, item, small in zip(places, there, given, strict=True):
        along = _along_all(item, tensor.shape[axis], shape)
        if along is not None and picked[along] not in source:
            source[axis], written[axis] = picked[along], _range_of(picked[along], width - 1 - along)
            continue
        source[axis], written[axis] = f"p{axis}!", f"x{len(operands)}"
        operands.append(into.tensor(small))
        patterns.append(
            [
                name if extent == size else "1"
                for name, size, extent in zip(
                    picked[width - len(operands[-1].shape) :],
                    shape[width - len(operands[-1].shape) :],
                    operands[-1].shape,
                    strict=True,
                )
            ]
        )
    if not {*source}.union(*patterns).issuperset(picked):
        return None
    rest = [name for axis, name in enumerate(source) if axis not in places]
    rule = text([source, *patterns], [[*rest[:first], *picked, *rest[first:]]])
    return into.apply(Aten(f"index.Tensor(x0, [{', '.join(written)}])", rule, call.dtypes), operands)[0]


def _shape(index: Tensor | Known) -> tuple[int, ...]:
    return index.shape if isinstance(index, Tensor) else tuple(index.value.shape)


def _dtype(index: Tensor | Known) -> str:
    return index.dtype if isinstance(index, Tensor) else str(index.value.dtype).removeprefix("torch.")


def _along_all(index: Tensor | Known, extent: int, shape: tuple[int, ...]) -> int | None:
    """The dimension of the result along which an index is 0 .. n-1, of n elements that there are; None: it is not."""
    if not isinstance(index, Known) or index.value.numel() != extent:
        return None
    offset = len(shape) - index.value.ndim
    long = [axis for axis, size in enumerate(index.value.shape, offset) if size == shape[axis] == extent]
    if len(long) != 1 or not torch.equal(index.value.reshape(-1), torch.arange(extent, dtype=index.value.dtype)):
        return None
    return long[0]


def _range_of(factor: str, behind: int) -> str:
    """0 .. n-1 along a factor of a tile, where its tensors lie, with so many dimensions of one element behind."""
    counted = f"sub.Scalar(cumsum(new_ones(x0, [{factor}], dtype=int64), 0), 1)"
    return f"{'unsqueeze(' * behind}{counted}{', -1)' * behind}"


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
