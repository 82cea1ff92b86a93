"""Kernels in mixed precision: what is rounded on its way to the inner operator's kernels and on its way back.

Values that stand for others lie in the scratchpad of the processor, from the start of a call to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast, final

import torch

from maniple.operators.operator import autograd_kernel
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.operators.operator.recorded_pass import HALVES
from maniple.operators.precision.arithmetic import Arithmetic, arithmetic_of, is_tape, unread
from maniple.runtime.devices.multiplication import MULTIPLICATION
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.runtime.storage.scratchpad import Scratchpad, ScratchTurn

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.precision.mixed_precision import MixedPrecision


@final
class _Exchange:
    """Values that stand for others while a kernel runs, and the copies between the two.

    Args:
        arithmetic: in what the kernel computes.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic
        self._wanted: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._copies: list[tuple[int, Tensor | int]] = []
        self._results: list[tuple[int, Tensor]] = []

    def read(self, tensor: Tensor | None, rounds: str, *, empty: bool = False) -> int | Tensor | None:
        """What stands for a tensor that is read: the tensor, or the number of a view of the scratchpad.

        Args:
            tensor: as it comes.
            rounds: the half that it is rounded to; "": none.
            empty: whether only its shape is looked at.
        """
        rounded = bool(rounds) and tensor is not None and tensor.dtype == torch.float32
        if tensor is None or not (rounded or (tensor.dtype in HALVES and self._arithmetic == "singles")):
            return tensor
        found: Tensor | int = tensor
        for dtype in ((torch_dtype(rounds),) if rounded else ()) + (
            (torch.float32,) if self._arithmetic == "singles" else ()
        ):
            stands = self._want(tensor, dtype)
            if not empty:
                self._copies.append((stands, found))
            found = stands
        return found

    def write(self, tensor: Tensor) -> int | Tensor:
        """What stands for a tensor that is written."""
        if tensor.dtype not in HALVES or self._arithmetic != "singles":
            return tensor
        single = self._want(tensor, torch.float32)
        self._results.append((single, tensor))
        return single

    def _want(self, tensor: Tensor, dtype: torch.dtype) -> int:
        self._wanted.append((tuple(tensor.shape), dtype))
        return len(self._wanted) - 1

    def settle(self, turn: ScratchTurn, near: Tensor) -> list[Tensor]:
        """Take the memory: the views, by number."""
        return turn.views(self._wanted, near) if self._wanted else []

    def before(self, views: Sequence[Tensor], calls: CallSequence) -> None:
        """Add the copies of what is read."""
        for stands, source in self._copies:
            calls.then(partial(views[stands].copy_, views[source] if isinstance(source, int) else source))

    def after(self, views: Sequence[Tensor], calls: CallSequence) -> None:
        """Add the copies of what was written."""
        for single, tensor in self._results:
            calls.then(partial(tensor.copy_, views[single]))


def _in_tf32(bind: Callable[[], Callable[[], None]], tensors: Sequence[Tensor | None]) -> Callable[[], None]:
    """A body whose products may be of TF32, on CUDA; elsewhere it is as it was.

    Args:
        bind: binds it; some bodies look at torch's switches then, and not as they run.
        tensors: what it uses.
    """
    if not any(tensor is not None and tensor.is_cuda for tensor in tensors):
        return bind()
    with MULTIPLICATION.tf32():
        run = bind()

    def rounded() -> None:
        with MULTIPLICATION.tf32():
            run()

    return rounded


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The inner operator's forward, of what is rounded as it is read, rounded as it is written."""
    mixed = cast("MixedPrecision", context.operator)
    everything = (*tensors.operands, *tensors.results)
    inner = replace(context, operator=mixed.inner)
    if mixed.tf32:
        return _in_tf32(partial(mixed.inner.variant(everything).bind_forward, inner, tensors), everything)
    arithmetic = arithmetic_of(mixed, everything)
    if arithmetic == "promoted" and is_tape(mixed):
        found = autograd_kernel.bind_promoted_forward(inner, tensors)
        if found is not None:
            return found
        arithmetic = "singles"
    exchange = _Exchange(arithmetic)
    operands = [exchange.read(tensor, mixed.reads_as(place)) for place, tensor in enumerate(tensors.operands)]
    # What torch makes is copied where it is wanted in any case.
    copied = mixed.inner.variant((*tensors.operands, *tensors.results)).bind_forward is autograd_kernel.bind_forward
    results = [tensor if copied else exchange.write(tensor) for tensor in tensors.results]
    views = exchange.settle(context.scratch or Scratchpad().turn(), tensors.results[0])
    given = ForwardTensors(
        tuple(_there(each, views) for each in operands),
        tuple(cast("Tensor", _there(each, views)) for each in results),
        tensors.saved,
    )
    calls = CallSequence()
    exchange.before(views, calls)
    calls.then(mixed.inner.variant((*given.operands, *given.results)).bind_forward(inner, given))
    exchange.after(views, calls)
    return calls.bind()


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The inner operator's backward; what it gives is float32."""
    mixed = cast("MixedPrecision", context.operator)
    everything = (*tensors.operand_gradients, *tensors.result_gradients, *tensors.operands)
    inner = replace(context, operator=mixed.inner)
    if mixed.tf32:
        return _in_tf32(partial(mixed.inner.variant(everything).bind_backward, inner, tensors), everything)
    arithmetic = arithmetic_of(mixed, everything)
    if arithmetic == "promoted" and is_tape(mixed):
        found = autograd_kernel.bind_promoted_backward(inner, tensors)
        if found is not None:
            return found
        arithmetic = "singles"
    exchange, half = _Exchange(arithmetic), _half_of(mixed, tensors) if arithmetic == "halves" else mixed.back
    skipped = unread(mixed, (place for place, target in enumerate(tensors.operand_gradients) if target is not None))
    arrived = [exchange.read(gradient, half) for gradient in tensors.result_gradients]
    operands = [
        exchange.read(tensor, mixed.reads_as(place), empty=place in skipped)
        for place, tensor in enumerate(tensors.operands)
    ]
    results = [exchange.read(tensor, "") for tensor in tensors.results]
    views = exchange.settle(
        context.scratch or Scratchpad().turn(), next(each for each in everything if each is not None)
    )
    given = BackwardTensors(
        tuple(_there(each, views) for each in arrived),
        tuple(_there(each, views) for each in operands),
        tuple(_there(each, views) for each in results),
        tensors.saved,
        tensors.operand_gradients,
        tensors.adds,
    )
    calls = CallSequence()
    exchange.before(views, calls)
    near = (*given.operand_gradients, *given.result_gradients, *given.operands)
    calls.then(mixed.inner.variant(near).bind_backward(inner, given))
    return calls.bind()


def _half_of(mixed: MixedPrecision, tensors: BackwardTensors) -> str:
    """The half in which a product computes."""
    found = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.operands if tensor is not None]
    return next(name for name in (mixed.back, *mixed.rounds, *found) if name in {"bfloat16", "float16"})


def _there(each: int | Tensor | None, views: Sequence[Tensor]) -> Tensor | None:
    return views[each] if isinstance(each, int) else each


KERNELS = Kernels(bind_forward, bind_backward)
