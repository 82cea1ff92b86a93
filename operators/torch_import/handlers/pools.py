"""Pools: the library's operators, whose windows are halos, wherever torch's arguments are theirs."""

from __future__ import annotations

from typing import Any

from maniple.operators.library.windows.pooling import AvgPool2d, MaxPool2d
from maniple.operators.library.windows.window_pooling import AdaptivePool, WindowPool
from maniple.operators.operator.operator import AbstractOperator
from maniple.operators.torch_import.exported_call import Call
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.layers import batchwise, pair, several
from maniple.operators.torch_import.translation import Translation


@handles("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def _pool(into: Translation, call: Call) -> Any:
    count = int(call.packet[-2])
    x = into.tensor(call["self"])
    if len(x.shape) != 2 + count:
        return batchwise(into, call, call["self"])
    kernel = several(call["kernel_size"], count)
    stride = several(call["stride"], count) if call["stride"] else kernel
    window = (kernel, stride, several(call["padding"], count))
    if call.packet.startswith("max"):
        dilation = several(call["dilation"], count)
        plain = set(dilation) == {1} and not call["ceil_mode"]
        operator: AbstractOperator = WindowPool("max", *window, dilation, call["ceil_mode"])
        if count == 2 and plain:
            operator = MaxPool2d(*(pair(value) for value in window))
        return into.apply(operator, (x,))[0]
    divisor = call.arguments.get("divisor_override")
    operator = WindowPool("avg", *window, (1,) * count, call["ceil_mode"], call["count_include_pad"], divisor)
    if count == 2 and call["count_include_pad"] and not call["ceil_mode"] and divisor is None:
        operator = AvgPool2d(*(pair(value) for value in window))
    return into.apply(operator, (x,))[0]


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive(into: Translation, call: Call) -> Any:
    count = int(call.packet[-2])
    x, size = into.tensor(call["self"]), several(call["output_size"], count)
    if len(x.shape) != 2 + count:
        return batchwise(into, call, call["self"])
    if any(extent % wanted for extent, wanted in zip(x.shape[2:], size, strict=True)):
        return into.apply(AdaptivePool("avg", size), (x,))[0]
    # Windows of one size: a pool, whose windows are halos.
    window = tuple(extent // wanted for extent, wanted in zip(x.shape[2:], size, strict=True))
    none, one = (0,) * count, (1,) * count
    operator = AvgPool2d(pair(window), pair(window)) if count == 2 else WindowPool("avg", window, window, none, one)
    return into.apply(operator, (x,))[0]
