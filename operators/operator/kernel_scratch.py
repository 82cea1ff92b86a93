"""Scratch memory of kernels and the steps that fill and empty it, decided once when a kernel is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

Step = Callable[[], object]


@final
class Steps:
    """Calls in order, joined into one function when all are known."""

    def __init__(self) -> None:
        self.calls: list[Step] = []

    def then(self, step: Step | Steps) -> Steps:
        """Add a call, or all calls of other steps. Returns the steps themselves."""
        if isinstance(step, Steps):
            self.calls += step.calls
        else:
            self.calls.append(step)
        return self

    def bind(self) -> Callable[[], None]:
        """One function that makes all the calls."""
        calls = tuple(self.calls)
        if len(calls) == 1:
            (only,) = calls
            return only  # type: ignore[return-value]  # what a body returns is not looked at
        if len(calls) == 2:
            first, second = calls

            def pair() -> None:
                first()
                second()

            return pair

        def run() -> None:
            for call in calls:
                call()

        return run


def in_matrix(tensor: Tensor, steps: Steps) -> Tensor:
    """The tensor as a matrix of its last dimension: a view where its strides allow, else a copy made by ``steps``.

    Args:
        tensor: At least 2 dimensions.
        steps: Gets the copy, where one is needed.
    """
    matrix = _flat_view(tensor)
    if matrix is not None:
        return matrix
    scratch = torch.empty(tensor.shape, dtype=tensor.dtype)
    steps.then(lambda: scratch.copy_(tensor))
    return scratch.view(-1, tensor.shape[-1])


def out_matrix(tensor: Tensor, steps: Steps) -> Tensor:
    """A matrix to write ``tensor`` through: a view where its strides allow, else scratch that ``steps`` copies out.

    Args:
        tensor: At least 2 dimensions.
        steps: Gets the copy, where one is needed; to be run after the matrix is written.
    """
    matrix = _flat_view(tensor)
    if matrix is not None:
        return matrix
    scratch = torch.empty(tensor.shape, dtype=tensor.dtype)
    steps.then(lambda: tensor.copy_(scratch))
    return scratch.view(-1, tensor.shape[-1])


def in_row(tensor: Tensor, steps: Steps) -> Tensor:
    """The elements in one dimension: a view where the strides allow, else a copy made by ``steps``."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    scratch = torch.empty(tensor.shape, dtype=tensor.dtype)
    steps.then(lambda: scratch.copy_(tensor))
    return scratch.view(-1)


def out_row(tensor: Tensor, after: Steps) -> Tensor:
    """One dimension to write ``tensor`` through: a view where the strides allow, else scratch that ``after`` copies."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    scratch = torch.empty(tensor.shape, dtype=tensor.dtype)
    after.then(lambda: tensor.copy_(scratch))
    return scratch.view(-1)


def _flat_view(tensor: Tensor) -> Tensor | None:
    """The leading dimensions joined without a copy, or None."""
    if tensor.ndim == 2:
        return tensor
    try:
        return tensor.view(-1, tensor.shape[-1])
    except RuntimeError:  # torch's answer where the strides do not allow it
        return None
