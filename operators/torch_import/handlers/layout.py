"""Layout: operators that give their operand's elements in another shape or order, or some of them."""

from __future__ import annotations

from typing import Any

import torch

from maniple.operators.library.elementwise.aten import AtenLinear
from maniple.operators.library.shapes.layout import concatenate, permute_axes, slice_axis
from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.pattern_text import Pattern, reshape_rule, text
from maniple.operators.torch_import.exported_call import Call, Known
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.translation import Translation


def axes(tensor: Tensor) -> Pattern:
    """A factor for every dimension."""
    return list(activation_axes(len(tensor.shape))) if tensor.shape else []


def reshape(into: Translation, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in another shape."""
    if tensor.shape == shape:
        return tensor
    rule, sizes = reshape_rule(tensor.shape, shape)
    return into.apply(AtenLinear("reshape(x0, shape0)", rule, (tensor.dtype,), sizes), (tensor,))[0]


def permute(into: Translation, tensor: Tensor, order: list[int]) -> Tensor:
    """The dimensions in another order."""
    return tensor if order == sorted(order) else into.apply(permute_axes(order, tensor.dtype), (tensor,))[0]


def part(into: Translation, tensor: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Every step-th element of a range along one dimension."""
    if (start, stop, step) == (0, tensor.shape[axis], 1):
        return tensor
    return into.apply(slice_axis(tensor.shape, axis, start, stop, step, tensor.dtype), (tensor,))[0]


def join(into: Translation, tensors: list[Tensor], axis: int) -> Tensor:
    """Tensors one after the other along a dimension, which may be split anywhere."""
    if len(tensors) == 1:
        return tensors[0]
    return into.apply(concatenate([tensor.shape for tensor in tensors], axis, tensors[0].dtype), tensors)[0]


def dimension(value: int, rank: int) -> int:
    """A dimension counted from the front."""
    return value % rank if rank else 0


# -- handlers -------------------------------------------------------------------------------------------------------


@handles("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as")
def _reshape(into: Translation, call: Call) -> Any:
    return reshape(into, into.tensor(call["self"]), call.shape)


@handles("ravel", "atleast_1d", "atleast_2d", "atleast_3d")
def _ravel(into: Translation, call: Call) -> Any:
    return None if call.many else reshape(into, into.tensor(call["self"]), call.shape)


@handles("permute", "transpose.int", "t", "movedim.int", "swapaxes", "swapdims", "numpy_T", "mT", "matrix_H", "adjoint")
def _permute(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    rank = len(tensor.shape)
    order = list(range(rank))
    match call.packet:
        case "permute":
            order = [dimension(axis, rank) for axis in call["dims"]]
        case "numpy_T":
            order.reverse()
        case "movedim":
            order.insert(dimension(call["destination"], rank), order.pop(dimension(call["source"], rank)))
        case "t":
            order = order[::-1]
        case "mT" | "matrix_H" | "adjoint":  # real numbers are their own conjugates
            order[-2:] = order[:-3:-1]
        case _:
            first, second = [dimension(axis, rank) for name, axis in call.arguments.items() if name != "self"]
            order[first], order[second] = order[second], order[first]
    return permute(into, tensor, order)


@handles("expand", "expand_as", "expand_copy", "broadcast_to")
def _expand(into: Translation, call: Call) -> Any:
    return into.expand(into.tensor(call["self"]), call.shape)


@handles("repeat_interleave.self_int")
def _repeat_interleave(into: Translation, call: Call) -> Any:
    """Every element of a dimension several times in a row: a new dimension behind it, along which it repeats."""
    tensor, repeats = into.tensor(call["self"]), call["repeats"]
    if call["dim"] is None or not tensor.shape or not isinstance(repeats, int) or repeats < 1:
        return None
    after = dimension(call["dim"], len(tensor.shape)) + 1
    single = reshape(into, tensor, (*tensor.shape[:after], 1, *tensor.shape[after:]))
    repeated = into.expand(single, (*tensor.shape[:after], repeats, *tensor.shape[after:]))
    return reshape(into, repeated, call.shape)


@handles("repeat", "tile")
def _repeat(into: Translation, call: Call) -> Any:
    """All of a tensor several times in a row: a new dimension before each, along which it repeats."""
    tensor, times = into.tensor(call["self"]), list(call["repeats"] if call.packet == "repeat" else call["dims"])
    shape = (*(1,) * (len(call.shape) - len(tensor.shape)), *tensor.shape)
    times = [*(1,) * (len(shape) - len(times)), *times]
    pairs = list(zip(times, shape, strict=True))
    single = tuple(extent for often, size in pairs for extent in ((1, size) if often > 1 else (size,)))
    repeated = tuple(extent for often, size in pairs for extent in ((often, size) if often > 1 else (size,)))
    return reshape(into, into.expand(reshape(into, tensor, single), repeated), call.shape)


@handles("broadcast_tensors")
def _broadcast(into: Translation, call: Call) -> Any:
    return [into.expand(into.tensor(item), shape) for item, shape in zip(call["tensors"], call.shapes, strict=True)]


@handles("contiguous", "alias", "clone", "lift_fresh_copy", "lift_fresh", "positive", "resolve_conj", "resolve_neg")
def _same(into: Translation, call: Call) -> Any:
    return into.tensor(call["self"])


@handles("real")
def _real(into: Translation, call: Call) -> Any:
    return into.tensor(call["self"])


@handles("detach", "detach_copy")
def _detach(into: Translation, call: Call) -> Any:
    return into.detach(into.tensor(call["self"]))


@handles("slice.Tensor")
def _slice(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    axis = dimension(call["dim"], len(tensor.shape))
    start, stop, step = slice(call["start"], call["end"], call["step"]).indices(tensor.shape[axis])
    return part(into, tensor, axis, start, stop, step)


@handles("narrow")
def _narrow(into: Translation, call: Call) -> Any:
    if not isinstance(call["start"], int):
        return None
    tensor = into.tensor(call["self"])
    axis = dimension(call["dim"], len(tensor.shape))
    start = call["start"] % max(1, tensor.shape[axis])
    return part(into, tensor, axis, start, start + call["length"])


@handles("select.int")
def _select(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    axis = dimension(call["dim"], len(tensor.shape))
    index = call["index"] % tensor.shape[axis]
    return reshape(into, part(into, tensor, axis, index, index + 1), call.shape)


@handles("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "hsplit", "vsplit")
def _split(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    rank = len(tensor.shape)
    default = {"hsplit": 1 if rank > 1 else 0, "vsplit": 0}.get(call.packet, 0)
    axis = dimension(call.arguments.get("dim", default), rank)
    found = []
    start = 0
    for shape in call.shapes:
        # Of a piece without elements all is known.
        empty = Known(torch.empty(shape, dtype=call.dtype))
        found.append(part(into, tensor, axis, start, start + shape[axis]) if shape[axis] else empty)
        start += shape[axis]
    return found


@handles("unbind")
def _unbind(into: Translation, call: Call) -> Any:
    tensor = into.tensor(call["self"])
    axis = dimension(call["dim"], len(tensor.shape))
    return [reshape(into, part(into, tensor, axis, place, place + 1), shape) for place, shape in enumerate(call.shapes)]


@handles("cat", "concat", "concatenate")
def _cat(into: Translation, call: Call) -> Any:
    # What has no elements adds none: the empty cache that language models begin with, for one.
    full = [item for item in call["tensors"] if not (isinstance(item, Known) and not item.value.numel())]
    given = [into.tensor(item) for item in full]
    axis = dimension(call["dim"], len(call.shape))
    if any(len(tensor.shape) != len(call.shape) or tensor.dtype != call.dtypes[0] for tensor in given):
        return None
    return join(into, given, axis)


@handles("stack")
def _stack(into: Translation, call: Call) -> Any:
    given = [into.tensor(item) for item in call["tensors"]]
    if any(tensor.dtype != call.dtypes[0] for tensor in given):
        return None
    axis = dimension(call["dim"], len(call.shape))
    single = (*call.shape[:axis], 1, *call.shape[axis + 1 :])
    if not given[0].shape:  # of scalars there is nothing to split
        return join(into, [reshape(into, tensor, single) for tensor in given], axis)
    names = axes(given[0])
    result = [*names[:axis], str(len(given)), *names[axis:]]
    operands = ", ".join(f"x{place}" for place in range(len(given)))
    found = AtenLinear(f"stack([{operands}], {axis})", text([names] * len(given), [result]), call.dtypes)
    return into.apply(found, given)[0]


@handles("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_empty", "empty_like")
def _fill(into: Translation, call: Call) -> Any:
    """Values that do not depend on the operand's."""
    value = 1 if "ones" in call.packet else call.arguments.get("fill_value", 0)
    return None if isinstance(value, Tensor | Known) else Known(torch.full(call.shape, value, dtype=call.dtype))
