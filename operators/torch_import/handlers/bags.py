"""Bags: the sum, the mean or the maximum of several rows of a table, for each sample of as many.

| torch's program | written here |
|---|---|
| ``i`` (b s) -> reshape (b*s) | ``i`` (b s) again, by a reshape |
| ``offsets`` 0, s, 2s, ... | the second dimension of ``i`` |
| ``offsets`` 0, s, ..., n with ``include_last_offset`` | the same |
| ``embedding_bag`` | one operator: the rows, then their sum over s |
"""

from __future__ import annotations

from typing import Any

import torch

from maniple.operators.library.elementwise.aten import Aten
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.pattern_text import text
from maniple.operators.torch_import.capture import source
from maniple.operators.torch_import.exported_call import Call, Known, with_arguments
from maniple.operators.torch_import.handler_table import handles
from maniple.operators.torch_import.handlers.layout import reshape
from maniple.operators.torch_import.translation import Translation
from maniple.process.error import RequestError

SUM, MEAN, MAX = 0, 1, 2
"""torch's numbers for what is made of a bag."""


@handles("embedding_bag")
def _embedding_bag(into: Translation, call: Call) -> Any:
    """Bags of equal size; others, whose sizes are values, are one task."""
    call = with_arguments(call, sparse=False)  # a dense gradient has the same values
    if call["include_last_offset"]:
        call = _without_last(call)
    size = _bag_size(call)
    if size is None or call["scale_grad_by_freq"]:
        return into.opaque(call)
    mode, padding, scale = call["mode"], call.arguments.get("padding_idx"), call["per_sample_weights"]
    padding = None if padding is None or padding < 0 else padding
    if mode == MAX and padding is not None:
        return into.opaque(call)
    table, indices = into.tensor(call["weight"]), into.tensor(call["indices"])
    bags = (indices.shape[0] // size, size)
    operands, rows = [table, reshape(into, indices, bags)], f"embedding(x0, x1, {-1 if padding is None else padding})"
    if scale is not None:
        operands.append(reshape(into, into.tensor(scale), bags))
        rows = f"mul.Tensor({rows}, unsqueeze(x2, -1))"
    counted = f"ne.Scalar(x1, {padding})"
    if padding is not None:
        rows = f"mul.Tensor({rows}, unsqueeze({counted}, -1))"
    if mode == MAX:
        written = f"amax({rows}, [1])"
    elif mode == SUM or padding is None:
        written = f"{'mean.dim' if mode == MEAN else 'sum.dim_IntList'}({rows}, [1])"
    else:
        written = f"div.Tensor(sum.dim_IntList({rows}, [1]), clamp_min(sum.dim_IntList({counted}, [1], True), 1))"
    rule = text([["v!", "d"], *[["b", "s!"]] * (len(operands) - 1)], [["b", "d"]])
    return [into.apply(Aten(written, rule, call.dtypes[:1]), operands)[0], None, None, None]


def _without_last(call: Call) -> Call:
    """The call whose offsets are where bags begin alone: the last one, where the last bag ends, is left out.

    Raises:
        RequestError: Where bags begin is not known before the step, or the last one does not end with the numbers: then
            torch's own kernels differ in what belongs to it.
    """
    offsets, numbers = call["offsets"], call["indices"]
    count = (numbers.value if isinstance(numbers, Known) else numbers).shape[0]
    if not isinstance(offsets, Known) or offsets.value[-1] != count:
        found = offsets.value[-1].item() if isinstance(offsets, Known) else "a value of the step"
        raise RequestError(
            f"from_torch: embedding_bag at {source(call.node)}: expected {count} as the last offset, for that many "
            f"numbers, got {found}; cut the numbers there, give a matrix of bags, or leave include_last_offset out"
        )
    return with_arguments(call, offsets=Known(offsets.value[:-1]), include_last_offset=False)


def _bag_size(call: Call) -> int | None:
    """How many numbers each bag has; None where that differs, or is not known before the step."""
    offsets, indices = call["offsets"], call["indices"]
    if not isinstance(offsets, Known) or not isinstance(indices, Tensor):
        return None
    count, numbers = offsets.value.numel(), indices.shape[0]
    if not count or numbers % count or not torch.equal(offsets.value, torch.arange(count) * (numbers // count)):
        return None
    return numbers // count or None
