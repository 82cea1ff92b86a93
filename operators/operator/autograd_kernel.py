"""Kernels of torch operators: forward as it is, backward by computing the tile again under autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.process.error import RunError
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from maniple.operators.operator.torch_operator import TorchOperator


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The operator's forward."""
    operands, results = tensors.operands, tensors.results
    forward = _forward(context)

    def run() -> None:
        found = forward(operands)
        _check(context, found, results)
        for target, value in zip(results, found, strict=True):
            target.copy_(value)

    return run


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradients by autograd."""
    operands, result_gradients = tensors.operands, tensors.result_gradients
    operand_gradients = tensors.operand_gradients
    forward = _forward(context)
    known = _with_zeros(context, operands, result_gradients)
    targets = gradient_targets(context, known, operand_gradients)

    def run() -> None:
        # Not detach(), whose version counter is the instance's: a task that writes other rows would look like a change.
        leaves = [
            value if value is None else value.data.requires_grad_(target is not None)
            for value, target in zip(known, targets, strict=True)
        ]
        with torch.enable_grad():
            found = forward(tuple(leaves))
        pairs = [
            (value, gradient)
            for value, gradient in zip(found, result_gradients, strict=True)
            if gradient is not None and value.requires_grad
        ]
        wanted = [leaf for leaf, target in zip(leaves, targets, strict=True) if target is not None and leaf is not None]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if pairs and wanted:
            values, given = zip(*pairs, strict=True)
            if cast("TorchOperator", context.operator).counts_storage:
                given = tuple(gradient.clone() for gradient in given)
            gradients = torch.autograd.grad(values, wanted, given, allow_unused=True)
        each = iter(gradients)
        for whole, target in zip(operand_gradients, targets, strict=True):
            if whole is None:
                continue
            gradient = None if target is None else next(each)
            if gradient is None or target is None:
                whole.zero_()
                continue
            if target.shape != whole.shape:
                whole.zero_()
            target.copy_(gradient)

    return run


def _forward(context: TileContext) -> Callable[[tuple[Tensor | None, ...]], tuple[Tensor, ...]]:
    """The operator's forward, whose results are a tuple."""
    operator = cast("TorchOperator", context.operator)

    def forward(operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        found = operator.forward(context, operands)
        return found if isinstance(found, tuple) else (found,)

    return forward


def _check(context: TileContext, found: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Refuse what is not the tile's results: a copy would broadcast or convert without a word.

    Raises:
        RunError: Another number of results, another shape or dtype.
    """
    name = type(context.operator).__name__
    if len(found) != len(results):
        raise RunError(f"{name}.forward: expected {len(results)} results, got {len(found)}")
    for place, (value, target) in enumerate(zip(found, results, strict=True)):
        if not isinstance(value, Tensor):
            way = "; does the body return it?" if value is None else "; give several as a tuple of tensors"
            raise RunError(
                f"{name}.forward: expected result {place} to be a torch.Tensor, got {type(value).__name__}{way}"
            )
        if value.shape != target.shape or value.dtype != target.dtype:
            raise RunError(
                f"{name}.forward: expected result {place} of shape {tuple(target.shape)}, {target.dtype}, for tile "
                f"{context.tile.index}, got {tuple(value.shape)}, {value.dtype}; the rule and the body do not agree"
            )


def _with_zeros(
    context: TileContext, operands: tuple[Tensor | None, ...], result_gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """The operands, with zeros for those whose values no gradient depends on."""
    read = context.operator.backward_reads.operand_places(len(operands))
    dtype = next(gradient.dtype for gradient in result_gradients if gradient is not None)
    known: list[Tensor | None] = []
    for place, (value, rect) in enumerate(zip(operands, context.tile.operand_rects, strict=True)):
        absent = rect is None or rect.is_empty
        known.append(value if place in read or rect is None or absent else torch.zeros(rect.shape, dtype=dtype))
    return tuple(known)


def gradient_targets(
    context: TileContext, operands: tuple[Tensor | None, ...], gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """For every operand, the part of the gradient to write that is the gradient of what the tile reads.

    Rows that a window steps over are in the gradient and not in the operand.
    """
    targets: list[Tensor | None] = []
    for operand, gradient, read, grown in zip(
        operands, gradients, context.tile.operand_rects, context.tile.gradient_rects, strict=True
    ):
        if operand is None or gradient is None or read is None or grown is None:
            targets.append(None)
        else:
            targets.append(gradient[_inside(read, grown)])
    return tuple(targets)


def _inside(read: Rect, grown: Rect) -> tuple[slice, ...]:
    """Where one rectangle lies in another."""
    return read.slices(grown.lo)


KERNELS = Kernels(bind_forward, bind_backward)
