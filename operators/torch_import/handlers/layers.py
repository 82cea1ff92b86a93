"""Layers: operators that torch.nn's modules call, with the library's operator where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniple.operators.library.dense.attention import Attention
from maniple.operators.library.dense.embedding import Embedding
from maniple.operators.library.dense.linear import Linear
from maniple.operators.library.dense.recurrent import Recurrent, RecurrentCell
from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.library.norms.feature_norm import GroupNorm, RMSNorm
from maniple.operators.library.norms.normalization import BatchNorm, LayerNorm
from maniple.operators.library.norms.softmax import Softmax
from maniple.operators.library.randomness.dropout import Dropout, DropoutVariant
from maniple.operators.library.shapes.layout import Pad
from maniple.operators.library.windows.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    TransposedConvolution,
)
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.operator import FLOAT_DTYPES
from maniple.operators.operator.pattern_text import text, whole
from maniple.operators.torch_import.exported_call import Call, Known, spell, with_arguments
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.arithmetic import add, matmul
from maniple.operators.torch_import.handlers.layout import axes, dimension, permute
from maniple.operators.torch_import.translation import Translation

CONVOLUTIONS: dict[str, type[Convolution]] = {kind.name: kind for kind in (Conv1d, Conv2d, Conv3d)}
TRANSPOSED: dict[str, type[TransposedConvolution]] = {
    kind.name: kind for kind in (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
}


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
    return product if bias is None else add(into, product, into.broadcastable(bias))


@handles(*CONVOLUTIONS)
def _convolution(into: Translation, call: Call) -> Any:
    x, weight, bias = into.tensor(call["input"]), into.tensor(call["weight"]), call["bias"]
    dimensions = len(weight.shape) - 2
    padding = call["padding"]
    if padding == "valid":
        padding = 0
    owned = is_parameter(into, weight) and is_parameter(into, bias)
    if len(x.shape) != dimensions + 2 or isinstance(padding, str) or not owned:
        return batchwise(into, call, call["input"])
    outputs, inputs, *kernel = weight.shape
    stride, dilation = several(call["stride"], dimensions), several(call["dilation"], dimensions)
    operator = CONVOLUTIONS[call.packet](
        inputs * call["groups"],
        outputs,
        tuple(kernel),
        stride,
        several(padding, dimensions),
        dilation,
        bias is not None,
        call["groups"],
    )
    return into.apply(operator, (x,), (weight,) if bias is None else (weight, bias))[0]


@handles(*TRANSPOSED)
def _transpose(into: Translation, call: Call) -> Any:
    x, weight, bias = into.tensor(call["input"]), into.tensor(call["weight"]), call["bias"]
    dimensions = len(weight.shape) - 2
    if len(x.shape) != dimensions + 2 or not (is_parameter(into, weight) and is_parameter(into, bias)):
        return batchwise(into, call, call["input"])
    inputs, outputs, *kernel = weight.shape
    stride, padding = several(call["stride"], dimensions), several(call["padding"], dimensions)
    operator = TRANSPOSED[call.packet](
        inputs,
        outputs * call["groups"],
        tuple(kernel),
        stride,
        padding,
        several(call["output_padding"], dimensions),
        several(call["dilation"], dimensions),
        bias is not None,
        call["groups"],
    )
    return into.apply(operator, (x,), (weight,) if bias is None else (weight, bias))[0]


@handles("embedding")
def _embedding(into: Translation, call: Call) -> Any:
    """Rows of a table; a gradient that torch would make sparse is dense, and has the same values."""
    weight, indices = into.tensor(call["weight"]), into.tensor(call["indices"])
    if call["scale_grad_by_freq"]:
        return into.opaque(with_arguments(call, sparse=False))
    padding = call["padding_idx"]
    if is_parameter(into, weight):
        rows, columns = weight.shape
        return into.apply(Embedding(rows, columns, None if padding < 0 else padding), (indices,), (weight,))[0]
    names = axes(indices)
    rule = text([["v!", "d"], names], [[*names, "d"]])
    return into.apply(Aten(f"embedding(x0, x1, {padding})", rule, call.dtypes), (weight, indices))[0]


@handles("dropout")
def _dropout(into: Translation, call: Call) -> Any:
    x = into.tensor(call["input"])
    return into.apply(Dropout(call["p"]), (x,))[0] if call["train"] and call["p"] and x.shape else x


@handles("native_dropout")
def _native_dropout(into: Translation, call: Call) -> Any:
    return [_dropout(into, call)]  # the mask is torch's backward's


@handles("feature_dropout", "alpha_dropout", "feature_alpha_dropout", "maniple::dropout_variant")
def _dropout_variant(into: Translation, call: Call) -> Any:
    x, name = into.tensor(call["input"]), call.arguments.get("name", call.packet)
    channels = name.startswith("feature")
    if not call["train"] or not call["p"]:
        return x
    operator = DropoutVariant(call["p"], channels, "alpha" in name)
    return into.apply(operator, (x,))[0] if len(x.shape) > channels else None


@handles("layer_norm")
def _layer_norm(into: Translation, call: Call) -> Any:
    x, weight, bias = into.tensor(call["input"]), call["weight"], call["bias"]
    shape = tuple(call["normalized_shape"])
    if (weight is None and bias is not None) or not (is_parameter(into, weight) and is_parameter(into, bias)):
        return None
    operator = LayerNorm(shape, len(x.shape), call["eps"], weight is not None, bias is not None)
    return into.apply(operator, (x,), [item for item in (weight, bias) if item is not None])[0]


@handles("group_norm")
def _group_norm(into: Translation, call: Call) -> Any:
    x, affine = into.tensor(call["input"]), [item for item in (call["weight"], call["bias"]) if item is not None]
    if len(x.shape) < 2 or len(affine) == 1 or not all(is_parameter(into, item) for item in affine):
        return batchwise(into, call, call["input"])
    operator = GroupNorm(call["num_groups"], x.shape[1], len(x.shape), call["eps"], bool(affine))
    return into.apply(operator, (x,), affine)[0]


@handles("rms_norm")
def _rms_norm(into: Translation, call: Call) -> Any:
    x, weight = into.tensor(call["input"]), call["weight"]
    if not is_parameter(into, weight):
        return None
    operator = RMSNorm(tuple(call["normalized_shape"]), len(x.shape), call["eps"], weight is not None)
    return into.apply(operator, (x,), () if weight is None else (weight,))[0]


@handles("batch_norm")
def _batch_norm(into: Translation, call: Call) -> Any:
    found = normalize(into, call)
    if found is not None and call["training"]:
        for argument, value in zip(("running_mean", "running_var"), found[1:], strict=True):
            into.assign(call, argument, value)
    return None if found is None else found[0]


@handles("_native_batch_norm_legit_functional")
def _functional_batch_norm(into: Translation, call: Call) -> Any:
    """Of a functionalised program: the statistics in between are torch's backward's."""
    found = normalize(into, call)
    return None if found is None else [found[0], None, None, *found[1:]]


@handles("_native_batch_norm_legit_no_training")
def _fixed_batch_norm(into: Translation, call: Call) -> Any:
    """Of a functionalised program, by the running statistics; torch's backward has no others to keep."""
    found = normalize(into, with_arguments(call, training=False))
    return None if found is None else [found[0], None, None]


def normalize(into: Translation, call: Call) -> list[Tensor] | None:
    """What a batch norm gives, and the next running statistics."""
    x, affine = into.tensor(call["input"]), [item for item in (call["weight"], call["bias"]) if item is not None]
    if call["running_mean"] is None or len(x.shape) < 2 or len(affine) == 1:
        return None
    if not all(is_parameter(into, item) for item in affine):
        return None
    mean, variance = into.tensor(call["running_mean"]), into.tensor(call["running_var"])
    if not call["training"]:
        given = [x, *affine, mean, variance]
        parts = ["x1", "x2"] if affine else ["None", "None"]
        parts += [f"x{len(given) - 2}", f"x{len(given) - 1}"]
        written = f"batch_norm(x0, {', '.join(parts)}, False, {call['momentum']}, {call['eps']}, False)"
        names = axes(x)
        rule = text([names, *[[names[1]]] * (len(given) - 1)], [names])
        return [into.apply(Aten(written, rule, call.dtypes[:1]), given)[0], mean, variance]
    operator = BatchNorm(x.shape[1], len(x.shape), call["eps"], call["momentum"], bool(affine))
    return list(into.apply(operator, (x, mean, variance), affine))


@handles("softmax.int", "log_softmax.int", "_softmax", "_log_softmax")
def _softmax(into: Translation, call: Call) -> Any:
    x = into.tensor(call["self"])
    if not x.shape or x.dtype != call.dtypes[0]:
        return None
    operator = Softmax(dimension(call["dim"], len(x.shape)), len(x.shape), log="log" in call.packet)
    return into.apply(operator, (x,))[0]


@handles("scaled_dot_product_attention")
def _attention(into: Translation, call: Call) -> Any:
    query, key, value = (into.tensor(call[name]) for name in ("query", "key", "value"))
    if not call["enable_gqa"]:  # one head of keys and values, for one, serves all heads of queries
        shared = call.shape[:-2]
        query, key, value = (
            tensor if tensor.shape[:-2] == shared else into.expand(tensor, (*shared, *tensor.shape[-2:]))
            for tensor in (query, key, value)
        )
    outer = [tensor.shape[: -3 if call["enable_gqa"] else -2] for tensor in (query, key, value)]
    if len(query.shape) < 3 or len(set(outer)) > 1 or key.shape[:-1] != value.shape[:-1]:
        return None
    mask = None if call["attn_mask"] is None else into.broadcastable(call["attn_mask"])
    scale = None if call["scale"] is None else float(call["scale"])
    operator = Attention(float(call["dropout_p"]), call["is_causal"], scale, call["enable_gqa"])
    return into.apply(operator, (query, key, value, mask))[0]


@handles("lstm.input", "gru.input")
def _write_recurrent(into: Translation, call: Call) -> Any:
    x, weights = into.tensor(call["input"]), call["params"]
    states = call["hx"] if isinstance(call["hx"], list) else [call["hx"]]
    sizes = [state.value.shape[-1] if isinstance(state, Known) else state.shape[-1] for state in states]
    projected = len(set(sizes)) > 1
    each = (4 if call["has_biases"] else 2) + projected
    directions = 2 if call["bidirectional"] else 1
    owned = all(is_parameter(into, weight) for weight in weights)
    if len(x.shape) != 3 or len(weights) != each * directions * call["num_layers"] or not owned:
        return _recurrent(into, call)
    operator = Recurrent(
        call.packet,
        x.shape[2],
        sizes[-1],
        call["num_layers"],
        call["has_biases"],
        call["batch_first"],
        float(call["dropout"]) if call["train"] else 0.0,
        call["bidirectional"],
        sizes[0] if projected else 0,
    )
    first = [None if is_zero(state) else into.tensor(state) for state in states]
    return list(into.apply(operator, (x, *first), weights))


def is_zero(value: Tensor | Known) -> bool:
    """Whether a value is known to be zero everywhere."""
    return isinstance(value, Known) and not bool(value.value.any())


@handles("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def _cell(into: Translation, call: Call) -> Any:
    """One step of one layer; of other weights than parameters, or of a plain cell, only samples are split."""
    x, weights = into.tensor(call["input"]), [call[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
    states = call["hx"] if isinstance(call["hx"], list) else [call["hx"]]
    given, own = [x, *map(into.tensor, states)], [weight for weight in weights if weight is not None]
    if len(x.shape) != 2:
        return None
    if call.packet.startswith("rnn") or not all(is_parameter(into, weight) for weight in weights):
        written, operands = spell(call)
        along = [0] * len(given) + [None] * len(own)
        return cut(into, call, written, [*map(into.tensor, operands)], along, [0] * len(call.shapes))
    operator = RecurrentCell(call.packet.partition("_")[0], x.shape[1], given[1].shape[1], len(own) == 4)
    found = into.apply(operator, given, own)
    return list(found) if call.many else found[0]


@handles("rnn_tanh.input", "rnn_relu.input")
def _recurrent(into: Translation, call: Call) -> Any:
    if call["dropout"] and call["train"]:
        return None
    written, operands = spell(call)
    given = [into.tensor(operand) for operand in operands]
    states = len(call["hx"]) if isinstance(call["hx"], list) else 1
    axis = 0 if call["batch_first"] else 1
    along = [axis, *[1] * states, *[None] * (len(given) - 1 - states)]
    results = [axis, *[1] * (len(call.shapes) - 1)]
    return cut(into, call, written, given, along, results)


@handles(
    *("convolution", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "instance_norm"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("upsample_linear1d", "upsample_trilinear3d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "lp_pool2d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("max_pool2d_with_indices", "max_pool1d_with_indices", "max_pool3d_with_indices", "im2col", "col2im"),
)
def _batchwise(into: Translation, call: Call) -> Any:
    return batchwise(into, call, call.tensors()[0])


@handles("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(into: Translation, call: Call) -> Any:
    written, operands = spell(call)
    return cut(into, call, written, [into.tensor(operand) for operand in operands], [0, 0], [0])


@handles("affine_grid_generator")
def _affine_grid(into: Translation, call: Call) -> Any:
    theta, (_, *sizes) = into.tensor(call["theta"]), call["size"]
    written = f"affine_grid_generator(x0, [b, {', '.join(map(str, sizes))}], {call['align_corners']})"
    return cut(into, call, written, [theta], [0], [0])


@handles("pad", "constant_pad_nd")
def _pad(into: Translation, call: Call) -> Any:
    """A constant around a tensor; a border that repeats what is inside is none of one element each."""
    tensor, value = into.tensor(call["self"]), call.arguments.get("value") or 0.0
    if call.arguments.get("mode", "constant") != "constant" or not tensor.shape or tensor.dtype not in FLOAT_DTYPES:
        return batchwise(into, call, call["self"])
    edges = list(call["pad"])
    pairs = [(edges[place], edges[place + 1]) for place in range(0, len(edges), 2)]
    pads = (*[(0, 0)] * (len(tensor.shape) - len(pairs)), *reversed(pairs))
    return into.apply(Pad(pads, tensor.dtype, float(value)), (tensor,))[0] if any(map(any, pads)) else tensor


@handles("_weight_norm", "_weight_norm_interface")
def _weight_norm(into: Translation, call: Call) -> Any:
    """A weight as a direction and a length along one dimension, which may be split."""
    given, axis = [into.tensor(call["v"]), into.tensor(call["g"])], call["dim"]
    if not 0 <= axis < len(given[0].shape) or len(given[1].shape) != len(given[0].shape):
        return None
    return cut(into, call, f"_weight_norm(x0, x1, {axis})", given, [axis, axis], [axis])


def batchwise(into: Translation, call: Call, sample: Tensor | Known) -> Any:
    """An operator of independent samples; only these are split."""
    written, operands = spell(call)
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


def several(value: Any, count: int) -> tuple[int, ...]:
    """As many integers, from one or from all."""
    given = tuple(value) if isinstance(value, list | tuple) else (value,)
    return given * count if len(given) == 1 else given


def pair(value: Any) -> tuple[int, int]:
    """Two integers from one or two."""
    first, second = several(value, 2)
    return first, second
