"""Kernels of cross-entropy: a share of the mean over the whole batch."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maniple.operators.operator import Kernels, TileContext


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The tile's share of the loss; see ``maniple.operators.operator.BindForward``.

    A label that is no class raises torch's RuntimeError ("index .. is out of bounds").
    """
    (result,) = results
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
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """``(probability - [class is the label]) / N``; see ``maniple.operators.operator.BindBackward``."""
    (result_gradient,) = result_gradients
    _, labels = operands
    (logarithms,) = saved
    target = operand_gradients[0]
    if result_gradient is None or labels is None or target is None:
        raise TypeError("cross_entropy: backward needs the labels, the loss's gradient and a place for the logits'")
    column = labels.unsqueeze(1)
    minus = torch.full((labels.shape[0], 1), -1.0, dtype=target.dtype)
    share = 1.0 / context.extent("b")

    def run() -> None:
        torch.exp(logarithms, out=target)
        target.scatter_add_(1, column, minus)
        target.mul_(result_gradient * share)

    return run


KERNELS = Kernels(bind_forward, bind_backward)
