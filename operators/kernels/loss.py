"""Kernels of cross-entropy: a share of the mean over the whole batch."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maniple.operators.operator import Kernels, TileContext


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], result: Tensor, saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The tile's share of the loss; see ``maniple.operators.operator.BindForward``.

    A label that is no class raises torch's RuntimeError ("index .. is out of bounds").
    """
    logits, labels = operands
    (logarithms,) = saved
    if logits is None or labels is None:
        raise TypeError("cross_entropy: forward needs logits and labels")
    samples = logits.shape[0]
    column = labels.unsqueeze(1)
    chosen = torch.empty((samples, 1), dtype=result.dtype)
    flat = chosen.view(-1)
    weights = torch.full((samples,), -1.0 / context.extent("b"), dtype=result.dtype)

    def run() -> None:
        torch.log_softmax(logits, 1, out=logarithms)
        torch.gather(logarithms, 1, column, out=chosen)
        torch.dot(flat, weights, out=result)

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
    _, labels = operands
    (logarithms,) = saved
    target = operand_gradients[0]
    if labels is None or target is None:
        raise TypeError("cross_entropy: backward needs the labels and a place for the logits' gradient")
    column = labels.unsqueeze(1)
    minus = torch.full((labels.shape[0], 1), -1.0, dtype=target.dtype)
    share = 1.0 / context.extent("b")

    def run() -> None:
        torch.exp(logarithms, out=target)
        target.scatter_add_(1, column, minus)
        target.mul_(share)
        if result_gradient is not None:
            target.mul_(result_gradient)

    return run


KERNELS = Kernels(bind_forward, bind_backward)
