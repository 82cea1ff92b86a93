"""Layers: operators that torch.nn's modules call, with the library's operator where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniple.operators.builder import Tensor
from maniple.operators.library.aten import Aten
from maniple.operators.library.convolution import Conv2d
from maniple.operators.library.linear import Linear
from maniple.operators.library.normalization import BatchNorm, LayerNorm
from maniple.operators.library.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.softmax import Softmax
from maniple.operators.torch_import.arithmetic import added, matmul
from maniple.operators.torch_import.call import Call, Known, spelled
from maniple.operators.torch_import.layout import axes, dimension, permute
from maniple.operators.torch_import.pattern_text import text, whole
from maniple.operators.torch_import.table import handles
from maniple.operators.torch_import.translation import Translation


def is_parameter(into: Translation, value: Any) -> bool:
    """Whether a value is a parameter, or absent."""
    return value is None or (isinstance(value, Tensor) and into.graph.tensor(value.name).kind == "parameter")


@handles("linear")
def _linear(into: Translation, call: Call) -> Any:
    x, weight, bias = into.tensor(call["input"]), into.tensor(call["weight"]), call["bias"]
    if len(x.shape) > 1 and len(weight.shape) == 2 and is_parameter(into, weight) and is_parameter(into, bias):
        operator = Linear(x.shape[-1], weight.shape[0], bias is not None)
        return into.apply(operator, (x,), (weight,) if bias is None else (weight, bias))[0]
    product = matmul(into, x, permute(into, weight, [1, 0]) if len(weight.shape) == 2 else weight)
    return product if bias is None else added(into, product, into.broadcastable(bias))


@handles("conv2d")
def _conv2d(into: Translation, call: Call) -> Any:
    x, weight, bias = into.tensor(call["input"]), into.tensor(call["weight"]), call["bias"]
    if len(x.shape) != 4 or call["groups"] != 1 or not (is_parameter(into, weight) and is_parameter(into, bias)):
        return batchwise(into, call, call["input"])
    padding = call["padding"]
    if isinstance(padding, str):
        return batchwise(into, call, call["input"])
    outputs, inputs, *kernel = weight.shape
    operator = Conv2d(
        inputs,
        outputs,
        pair(kernel),
        pair(call["stride"]),
        pair(padding),
        pair(call["dilation"]),
        bias is not None,
    )
    return into.apply(operator, (x,), (weight,) if bias is None else (weight, bias))[0]


@handles("max_pool2d")
def _max_pool2d(into: Translation, call: Call) -> Any:
    x = into.tensor(call["self"])
    if len(x.shape) != 4 or pair(call["dilation"]) != (1, 1) or call["ceil_mode"]:
        return batchwise(into, call, call["self"])
    kernel = pair(call["kernel_size"])
    stride = pair(call["stride"]) if call["stride"] else kernel
    return into.apply(MaxPool2d(kernel, stride, pair(call["padding"])), (x,))[0]


@handles("avg_pool2d")
def _avg_pool2d(into: Translation, call: Call) -> Any:
    x = into.tensor(call["self"])
    plain = call["count_include_pad"] and not call["ceil_mode"] and call["divisor_override"] is None
    if len(x.shape) != 4 or not plain:
        return batchwise(into, call, call["self"])
    kernel = pair(call["kernel_size"])
    stride = pair(call["stride"]) if call["stride"] else kernel
    return into.apply(AvgPool2d(kernel, stride, pair(call["padding"])), (x,))[0]


@handles("embedding")
def _embedding(into: Translation, call: Call) -> Any:
    weight, indices = into.tensor(call["weight"]), into.tensor(call["indices"])
    if call["scale_grad_by_freq"] or call["sparse"]:
        return None
    names = axes(indices)
    rule = text([["v!", "d"], names], [[*names, "d"]])
    written = f"embedding(x0, x1, {call['padding_idx']})"
    return into.apply(Aten(written, rule, call.dtypes), (weight, indices))[0]


@handles("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")
def _dropout(into: Translation, call: Call) -> Any:
    if not call["train"] or call["p"] == 0.0:
        return into.tensor(call["input"])
    return None


@handles("layer_norm")
def _layer_norm(into: Translation, call: Call) -> Any:
    x, weight, bias = into.tensor(call["input"]), call["weight"], call["bias"]
    shape = tuple(call["normalized_shape"])
    if (weight is None and bias is not None) or not (is_parameter(into, weight) and is_parameter(into, bias)):
        return None
    operator = LayerNorm(shape, len(x.shape), call["eps"], weight is not None, bias is not None)
    return into.apply(operator, (x,), [item for item in (weight, bias) if item is not None])[0]


@handles("batch_norm")
def _batch_norm(into: Translation, call: Call) -> Any:
    x, affine = into.tensor(call["input"]), [item for item in (call["weight"], call["bias"]) if item is not None]
    mean, variance = call["running_mean"], call["running_var"]
    if mean is None or len(x.shape) < 2 or len(affine) == 1 or not all(is_parameter(into, item) for item in affine):
        return None
    if not call["training"]:
        written, operands = spelled(call)
        names = axes(x)
        rule = text([names, *[[names[1]]] * (len(operands) - 1)], [names])
        return into.results(call, Aten(written, rule, call.dtypes), [into.tensor(operand) for operand in operands])
    operator = BatchNorm(x.shape[1], len(x.shape), call["eps"], call["momentum"], bool(affine))
    found, *following = into.apply(operator, (x, into.tensor(mean), into.tensor(variance)), affine)
    for argument, value in zip(("running_mean", "running_var"), following, strict=True):
        into.assign(call, argument, value)
    return found


@handles("softmax.int", "log_softmax.int", "_softmax", "_log_softmax")
def _softmax(into: Translation, call: Call) -> Any:
    x = into.tensor(call["self"])
    if not x.shape or x.dtype != call.dtypes[0]:
        return None
    operator = Softmax(dimension(call["dim"], len(x.shape)), len(x.shape), log="log" in call.packet)
    return into.apply(operator, (x,))[0]


@handles("scaled_dot_product_attention")
def _attention(into: Translation, call: Call) -> Any:
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    given = [into.tensor(item) for item in (query, key, value)]
    if call["dropout_p"] or call["enable_gqa"] or len({len(item.shape) for item in given}) > 1:
        return None
    outer = axes(given[0])[:-2]
    outer = ["b", "h", *(f"h{axis}" for axis in range(2, len(outer)))][: len(outer)]
    if any(item.shape[:-2] != given[0].shape[:-2] for item in given):
        return None
    rows = "q!" if call["is_causal"] else "q"
    patterns = [[*outer, rows, "e!"], [*outer, "t!", "e!"], [*outer, "t!", "v"]]
    written, _ = spelled(call)
    if mask is not None:
        shown = into.broadcastable(mask)
        full = [*outer, rows, "t!"]
        offset = len(full) - len(shown.shape)
        extents = (*given[0].shape[:-1], given[1].shape[-2])
        patterns.append(
            [
                full[offset + axis] if extent == extents[offset + axis] else "1"
                for axis, extent in enumerate(shown.shape)
            ]
        )
        given.append(shown)
    found = Aten(written, text(patterns, [[*outer, rows, "v"]]), call.dtypes)
    return into.apply(found, given)[0]


@handles("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def _recurrent(into: Translation, call: Call) -> Any:
    if call["dropout"] and call["train"]:
        return None
    written, operands = spelled(call)
    given = [into.tensor(operand) for operand in operands]
    states = len(call["hx"]) if isinstance(call["hx"], list) else 1
    axis = 0 if call["batch_first"] else 1
    along = [axis, *[1] * states, *[None] * (len(given) - 1 - states)]
    results = [axis, *[1] * (len(call.shapes) - 1)]
    return cut(into, call, written, given, along, results)


@handles(
    *("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "max_pool1d"),
    *("max_pool3d", "avg_pool1d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "group_norm", "instance_norm", "pad"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("upsample_linear1d", "upsample_trilinear3d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "lp_pool2d"),
    *("max_pool2d_with_indices", "max_pool1d_with_indices", "max_pool3d_with_indices", "im2col", "col2im"),
)
def _batchwise(into: Translation, call: Call) -> Any:
    return batchwise(into, call, call.arguments.get("input", call.arguments.get("self")))


def batchwise(into: Translation, call: Call, sample: Tensor | Known) -> Any:
    """An operator of independent samples; only these are split."""
    written, operands = spelled(call)
    given = [into.tensor(operand) for operand in operands]
    batch = into.tensor(sample).shape[:1]
    if not batch or any(shape[:1] != batch for shape in call.shapes):
        return None
    along = [0 if operand is sample else None for operand in operands]
    return cut(into, call, written, given, along, [0] * len(call.shapes))


def cut(
    into: Translation,
    call: Call,
    written: str,
    operands: Sequence[Tensor],
    along: Sequence[int | None],
    results: Sequence[int],
) -> Any:
    """An operator that is split along one dimension of some operands and of every result, and whole otherwise."""

    def pattern(shape: tuple[int, ...], axis: int | None) -> list[str]:
        found = whole(shape)
        if axis is not None:
            found[axis] = "b"
        return found

    before = [pattern(tensor.shape, axis) for tensor, axis in zip(operands, along, strict=True)]
    after = [pattern(shape, axis) for shape, axis in zip(call.shapes, results, strict=True)]
    return into.results(call, Aten(written, text(before, after), call.dtypes), operands)


def pair(value: Any) -> tuple[int, int]:
    """Two integers from one or two."""
    return (value[0], value[-1]) if isinstance(value, list | tuple) else (value, value)
