"""Kernels of cross-entropy: a share of the mean over the whole batch."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from maniple.operators.kernels import cross_entropy
from maniple.operators.kernels.compiled import compiled
from maniple.operators.kernels.scratch import Steps
from maniple.operators.operator import Kernels, TileContext

_NO_LABEL = np.iinfo(np.int64).min  # the label to ignore where none is


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], result: Tensor, saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The tile's share of the loss; see ``maniple.operators.operator.BindForward``.

    A label that is no class raises an error ("index .. out of bounds"). One fused pass where the processor has one
    core; torch's operations, which may use several, otherwise.
    """
    logits, labels = operands
    (logarithms,) = saved
    if logits is None or labels is None:
        raise TypeError("cross_entropy: forward needs logits and labels")
    if context.cores == 1:
        return compiled(
            cross_entropy.forward, (*_arguments(context, logits, labels), logarithms.numpy(), result.view(1).numpy())
        )
    column = labels.unsqueeze(1)
    chosen = torch.empty((logits.shape[0], 1), dtype=result.dtype)
    weights = torch.full((logits.shape[0],), 1.0 / context.extent("b"), dtype=result.dtype)

    def run() -> None:
        torch.logsumexp(logits, 1, out=logarithms)
        torch.gather(logits, 1, column, out=chosen)
        torch.dot(logarithms - chosen.view(-1), weights, out=result)

    return run


def bind_backward(
    context: TileContext,
    result_gradient: Tensor | None,
    operands: tuple[Tensor | None, ...],
    result: Tensor | None,
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """``(probability - [class is the label]) / N``; see ``maniple.operators.operator.BindBackward``."""
    logits, labels = operands
    (logarithms,) = saved
    target = operand_gradients[0]
    if logits is None or labels is None or target is None:
        raise TypeError("cross_entropy: backward needs logits, labels and a place for the logits' gradient")
    gradient = torch.ones((), dtype=target.dtype) if result_gradient is None else result_gradient
    if context.cores == 1:
        read = (*_arguments(context, logits, labels), logarithms.numpy(), gradient.view(1).numpy())
        return compiled(cross_entropy.backward, (*read, target.numpy()))
    steps = Steps()
    column = labels.unsqueeze(1)
    minus = torch.full((labels.shape[0], 1), -1.0, dtype=target.dtype)
    share = 1.0 / context.extent("b")
    steps.then(lambda: torch.sub(logits, logarithms.unsqueeze(1), out=target))
    steps.then(target.exp_)
    steps.then(lambda: target.scatter_add_(1, column, minus))
    steps.then(lambda: target.mul_(gradient * share))
    return steps.bound()


def _arguments(context: TileContext, logits: Tensor, labels: Tensor) -> tuple[object, ...]:
    """What both kernels read before the logarithms."""
    values = logits.numpy()
    kind = values.dtype.type
    share = np.array([1.0 / context.extent("b")], kind)
    return values, labels.numpy(), share, np.ones(values.shape[1], kind), _NO_LABEL, kind(0)


KERNELS = Kernels(bind_forward, bind_backward)
