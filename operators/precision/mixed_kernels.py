"""Kernels in mixed precision: halves become float32 as they are read, results are rounded as they are written.

The float32 values lie in the scratchpad of the processor, from the start of a call to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast, final

import torch

from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.operators.operator.scratchpad import Scratchpad
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.precision.mixed_precision import MixedPrecision

HALVES = (torch.bfloat16, torch.float16)


@final
class _Exchange:
    """Float32 values that stand for halves, and the copies between the two."""

    def __init__(self) -> None:
        self._wanted: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._copies: list[tuple[int, int, Tensor]] = []
        self._results: list[tuple[int, Tensor]] = []

    def read(self, tensor: Tensor | None, rounds: str) -> int | Tensor | None:
        """What stands for a tensor that is read: the tensor, or the number of a view of the scratchpad.

        Args:
            tensor: as it comes.
            rounds: the half that it is rounded to; "": none.
        """
        if tensor is None or not (tensor.dtype in HALVES or (rounds and tensor.dtype == torch.float32)):
            return tensor
        half = self._want(tensor, torch_dtype(rounds)) if tensor.dtype == torch.float32 else -1
        single = self._want(tensor, torch.float32)
        self._copies.append((half, single, tensor))
        return single

    def write(self, tensor: Tensor) -> int | Tensor:
        """What stands for a tensor that is written."""
        if tensor.dtype not in HALVES:
            return tensor
        single = self._want(tensor, torch.float32)
        self._results.append((single, tensor))
        return single

    def _want(self, tensor: Tensor, dtype: torch.dtype) -> int:
        self._wanted.append((tuple(tensor.shape), dtype))
        return len(self._wanted) - 1

    def settle(self, pad: Scratchpad, device: torch.device) -> list[Tensor]:
        """Take the memory: the views, by number."""
        return pad.views(self._wanted, device)

    def before(self, views: Sequence[Tensor], calls: CallSequence) -> None:
        """Add the copies of what is read."""
        for half, single, tensor in self._copies:
            target = views[single]
            if half < 0:
                calls.then(partial(target.copy_, tensor))
            else:
                rounded = views[half]
                calls.then(partial(rounded.copy_, tensor))
                calls.then(partial(target.copy_, rounded))

    def after(self, views: Sequence[Tensor], calls: CallSequence) -> None:
        """Add the copies of what was written."""
        for single, tensor in self._results:
            calls.then(partial(tensor.copy_, views[single]))


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The inner operator's forward, on float32 values."""
    mixed, exchange = cast("MixedPrecision", context.operator), _Exchange()
    operands = [exchange.read(tensor, mixed.reads_as(place)) for place, tensor in enumerate(tensors.operands)]
    results = [exchange.write(tensor) for tensor in tensors.results]
    views = exchange.settle(context.scratchpad or Scratchpad(), tensors.results[0].device)
    given = ForwardTensors(
        tuple(_there(each, views) for each in operands),
        tuple(cast("Tensor", _there(each, views)) for each in results),
        tensors.saved,
    )
    calls = CallSequence()
    exchange.before(views, calls)
    inner = replace(context, operator=mixed.inner)
    calls.then(mixed.inner.variant((*given.operands, *given.results)).bind_forward(inner, given))
    exchange.after(views, calls)
    return calls.bind()


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The inner operator's backward: the gradient of a half is rounded as it is read, what it gives is float32."""
    mixed, exchange = cast("MixedPrecision", context.operator), _Exchange()
    halves = [dtype if dtype in {"bfloat16", "float16"} else "" for dtype in mixed.gives]
    arrived = [exchange.read(gradient, half) for gradient, half in zip(tensors.result_gradients, halves, strict=True)]
    operands = [exchange.read(tensor, mixed.reads_as(place)) for place, tensor in enumerate(tensors.operands)]
    results = [exchange.read(tensor, "") for tensor in tensors.results]
    everything = (*tensors.operand_gradients, *tensors.result_gradients, *tensors.operands)
    device = next(tensor.device for tensor in everything if tensor is not None)
    views = exchange.settle(context.scratchpad or Scratchpad(), device)
    given = BackwardTensors(
        tuple(_there(each, views) for each in arrived),
        tuple(_there(each, views) for each in operands),
        tuple(_there(each, views) for each in results),
        tensors.saved,
        tensors.operand_gradients,
    )
    calls = CallSequence()
    exchange.before(views, calls)
    inner = replace(context, operator=mixed.inner)
    near = (*given.operand_gradients, *given.result_gradients, *given.operands)
    calls.then(mixed.inner.variant(near).bind_backward(inner, given))
    return calls.bind()


def _there(each: int | Tensor | None, views: Sequence[Tensor]) -> Tensor | None:
    return views[each] if isinstance(each, int) else each


KERNELS = Kernels(bind_forward, bind_backward)
