"""Kernels of cross-entropy: a share of the loss of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from maniple.operators.library.losses import cross_entropy_kernels
from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.kernel_scratch import CallSequence, in_matrix, in_row, out_matrix, out_row
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.process.torch_internals import gradients_of
from maniple.runtime.storage.scratchpad import Scratchpad

if TYPE_CHECKING:
    from maniple.operators.library.losses.loss import CrossEntropy
    from maniple.runtime.storage.scratchpad import ScratchTurn


BindShare = Callable[[Tensor, Tensor, int, Tensor], Callable[[], object]]
"""Binds the sum of the weights of the labels of a batch: labels, weights, the label that is ignored, the result."""


class Read:
    """What both kernels read, as rows of classes.

    Args:
        context: The tile.
        operands: Of the operator.
        steps: Get the copies that the rows need.
        bind_share: Binds what a loss counts for in the mean.
        turn: What the kernel has of scratch memory.
    """

    def __init__(
        self,
        context: TileContext,
        operands: tuple[Tensor | None, ...],
        steps: CallSequence,
        bind_share: BindShare,
        turn: ScratchTurn,
    ) -> None:
        logits, labels, every, weights = operands
        if logits is None or labels is None:
            raise TypeError("cross_entropy: needs logits and labels")
        self.operator = cast("CrossEntropy", context.operator)
        self.rows = in_matrix(logits.movedim(1, -1), steps, turn)
        self.labels = in_row(labels, steps, turn)
        classes = self.rows.shape[1]
        self.weights = torch.ones(classes, dtype=logits.dtype) if weights is None else in_row(weights, steps, turn)
        self.share = torch.ones(1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if every is not None:
            ignored, batch = self.operator.ignore_index, in_row(every, steps, turn)
            steps.then(bind_share(batch, self.weights, ignored, self.share))

    def arrays(self) -> tuple[object, ...]:
        """The arguments that the fused kernels begin with."""
        rows = self.rows.numpy()
        numbers = (self.operator.ignore_index, rows.dtype.type(self.operator.label_smoothing))
        return (rows, self.labels.numpy(), self.share.numpy(), self.weights.numpy(), *numbers)

    def loss(self, rows: Tensor) -> Tensor:
        """The tile's share of the loss by torch."""
        operator = self.operator
        # Not the views themselves: whoever writes anything else in their block would look like a change to autograd.
        total = F.cross_entropy(
            rows,
            self.labels.data,
            self.weights.data,
            ignore_index=operator.ignore_index,
            reduction="sum",
            label_smoothing=operator.label_smoothing,
        )
        return total * self.share.data[0]


Forward = Callable[[TileContext, Read, Tensor, Tensor], Callable[[], object]]
"""Binds the tile's share of the loss: what is read, the logarithms and the result, both written."""
Backward = Callable[[TileContext, Read, Tensor, Tensor, Tensor], Callable[[], object]]
"""Binds the logits' gradient: what is read, the logarithms, the loss's gradient, and the rows that are written."""


def kernels_of(bind_share: BindShare, forward: Forward, backward: Backward) -> Kernels:
    """Cross-entropy's kernels on a kind of device, of what computes on rows of classes there.

    A label that is no class raises an error ("out of bounds") on the CPU, and gives a NaN elsewhere.
    """

    def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
        steps, after, turn = CallSequence(), CallSequence(), context.scratch or Scratchpad().turn()
        read = Read(context, tensors.operands, steps, bind_share, turn)
        logarithms = out_row(tensors.saved[0], after, turn)
        steps.then(forward(context, read, logarithms, tensors.results[0]))
        return steps.then(after).bind()

    def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
        gradient, target = tensors.gradient(), tensors.target()
        steps, after, turn = CallSequence(), CallSequence(), context.scratch or Scratchpad().turn()
        read = Read(context, tensors.operands, steps, bind_share, turn)
        rows, logarithms = out_matrix(target.movedim(1, -1), after, turn), in_row(tensors.saved[0], steps, turn)
        steps.then(backward(context, read, logarithms, gradient, rows))
        return steps.then(after).bind()

    return Kernels(bind_forward, bind_backward)


def _share(every: Tensor, weights: Tensor, ignored: int, share: Tensor) -> Callable[[], object]:
    return compile_kernel(cross_entropy_kernels.share_of, (every.numpy(), weights.numpy(), ignored, share.numpy()))


def _forward(context: TileContext, read: Read, logarithms: Tensor, result: Tensor) -> Callable[[], object]:
    """One fused pass where the processor has one core; torch's operations, which may use several, otherwise."""
    if context.cores == 1:
        arrays = (*read.arrays(), logarithms.numpy(), result.view(1).numpy())
        return compile_kernel(cross_entropy_kernels.forward, arrays)

    def by_torch() -> None:
        torch.logsumexp(read.rows, 1, out=logarithms)
        result.copy_(read.loss(read.rows))

    return by_torch


def _backward(
    context: TileContext, read: Read, logarithms: Tensor, gradient: Tensor, rows: Tensor
) -> Callable[[], object]:
    """As forward."""
    if context.cores == 1:
        arrays = (*read.arrays(), logarithms.numpy(), gradient.view(1).numpy(), rows.numpy())
        return compile_kernel(cross_entropy_kernels.backward, arrays)

    def by_torch() -> None:
        leaf = read.rows.data.requires_grad_()
        with torch.enable_grad():
            loss = read.loss(leaf)
        (found,) = gradients_of((loss,), (leaf,), (gradient,))
        rows.copy_(cast("Tensor", found))

    return by_torch


KERNELS = kernels_of(_share, _forward, _backward)
