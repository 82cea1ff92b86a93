"""Kernels of cross-entropy: a share of the loss of the whole batch."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from maniple.operators.library.losses import cross_entropy_kernels
from maniple.operators.operator.compiled_kernel import compiled
from maniple.operators.operator.kernel_scratch import Steps, in_matrix, in_row, out_matrix, out_row
from maniple.operators.operator.operator import Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.losses.loss import CrossEntropy


BindShare = Callable[[Tensor, Tensor, int, Tensor], Callable[[], object]]
"""Binds the sum of the weights of the labels of a batch: labels, weights, the label that is ignored, the result."""


def _bind_share(every: Tensor, weights: Tensor, ignored: int, share: Tensor) -> Callable[[], object]:
    return compiled(cross_entropy_kernels.share_of, (every.numpy(), weights.numpy(), ignored, share.numpy()))


class Tensors:
    """What both kernels read, as rows of classes.

    Args:
        context: The tile.
        operands: Of the operator.
        steps: Get the copies that the rows need.
        bind_share: Binds what a loss counts for in the mean.
    """

    def __init__(
        self, context: TileContext, operands: tuple[Tensor | None, ...], steps: Steps, bind_share: BindShare
    ) -> None:
        logits, labels, every, weights = operands
        if logits is None or labels is None:
            raise TypeError("cross_entropy: needs logits and labels")
        self.operator = cast("CrossEntropy", context.operator)
        self.rows = in_matrix(logits.movedim(1, -1), steps)
        self.labels = in_row(labels, steps)
        classes = self.rows.shape[1]
        self.weights = torch.ones(classes, dtype=logits.dtype) if weights is None else in_row(weights, steps)
        self.share = torch.ones(1, dtype=logits.dtype)
        if every is not None:
            ignored, batch = self.operator.ignore_index, in_row(every, steps)
            steps.then(bind_share(batch, self.weights, ignored, self.share))

    def arrays(self) -> tuple[object, ...]:
        """The arguments that the fused kernels begin with."""
        rows = self.rows.numpy()
        numbers = (self.operator.ignore_index, rows.dtype.type(self.operator.label_smoothing))
        return (rows, self.labels.numpy(), self.share.numpy(), self.weights.numpy(), *numbers)

    def loss(self, rows: Tensor) -> Tensor:
        """The tile's share of the loss by torch."""
        operator = self.operator
        total = F.cross_entropy(
            rows,
            self.labels,
            self.weights,
            ignore_index=operator.ignore_index,
            reduction="sum",
            label_smoothing=operator.label_smoothing,
        )
        return total * self.share[0]


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The tile's share of the loss; see ``maniple.operators.operator.operator.BindForward``.

    A label that is no class raises an error ("out of bounds"). One fused pass where the processor has one core; torch's
    operations, which may use several, otherwise.
    """
    (result,) = results
    steps, after = Steps(), Steps()
    read = Tensors(context, operands, steps, _bind_share)
    logarithms = out_row(saved[0], after)
    if context.cores == 1:
        steps.then(
            compiled(cross_entropy_kernels.forward, (*read.arrays(), logarithms.numpy(), result.view(1).numpy()))
        )
    else:
        steps.then(lambda: torch.logsumexp(read.rows, 1, out=logarithms))
        steps.then(lambda: result.copy_(read.loss(read.rows)))
    return steps.then(after).bound()


def bind_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """The gradient of the logits; see ``maniple.operators.operator.operator.BindBackward``."""
    (gradient,) = result_gradients
    target = operand_gradients[0]
    if gradient is None or target is None:
        raise TypeError("cross_entropy: backward needs the loss's gradient and a place for the logits'")
    steps, after = Steps(), Steps()
    read = Tensors(context, operands, steps, _bind_share)
    rows = out_matrix(target.movedim(1, -1), after)
    if context.cores == 1:
        logarithms = in_row(saved[0], steps)
        arrays = (*read.arrays(), logarithms.numpy(), gradient.view(1).numpy(), rows.numpy())
        return steps.then(compiled(cross_entropy_kernels.backward, arrays)).then(after).bound()

    def by_torch() -> None:
        leaf = read.rows.data.requires_grad_()
        with torch.enable_grad():
            loss = read.loss(leaf)
        (found,) = torch.autograd.grad(loss, leaf, gradient)
        rows.copy_(found)

    return steps.then(by_torch).then(after).bound()


KERNELS = Kernels(bind_forward, bind_backward)
