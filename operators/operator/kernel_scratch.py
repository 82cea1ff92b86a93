"""Scratch memory of kernels and the calls that fill and empty it, decided once when a kernel is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.runtime.storage.scratchpad import ScratchTurn

Call = Callable[[], object]


@final
class CallSequence:
    """Calls in order, joined into one function when all are known."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def then(self, call: Call | CallSequence) -> CallSequence:
        """Add a call, or all calls of another sequence. Returns the sequence itself."""
        if isinstance(call, CallSequence):
            self.calls += call.calls
        else:
            self.calls.append(call)
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


def in_matrix(tensor: Tensor, calls: CallSequence, turn: ScratchTurn) -> Tensor:
    """The tensor as a matrix of its last dimension: a view where its strides allow, else a copy made by ``calls``.

    Args:
        tensor: At least 2 dimensions.
        calls: Gets the copy, where one is needed.
        turn: What the kernel has of scratch memory.
    """
    matrix = _flat_view(tensor)
    if matrix is not None:
        return matrix
    scratch = turn.view(tensor.shape, tensor.dtype, tensor)
    calls.then(lambda: scratch.copy_(tensor))
    return scratch.view(-1, tensor.shape[-1])


def out_matrix(tensor: Tensor, calls: CallSequence, turn: ScratchTurn) -> Tensor:
    """A matrix to write ``tensor`` through: a view where its strides allow, else scratch that ``calls`` copies out.

    Args:
        tensor: At least 2 dimensions.
        calls: Gets the copy, where one is needed; to be run after the matrix is written.
        turn: What the kernel has of scratch memory.
    """
    matrix = _flat_view(tensor)
    if matrix is not None:
        return matrix
    scratch = turn.view(tensor.shape, tensor.dtype, tensor)
    calls.then(lambda: tensor.copy_(scratch))
    return scratch.view(-1, tensor.shape[-1])


def in_row(tensor: Tensor, calls: CallSequence, turn: ScratchTurn) -> Tensor:
    """The elements in one dimension: a view where the strides allow, else a copy made by ``calls``."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    scratch = turn.view(tensor.shape, tensor.dtype, tensor)
    calls.then(lambda: scratch.copy_(tensor))
    return scratch.view(-1)


def out_row(tensor: Tensor, after: CallSequence, turn: ScratchTurn) -> Tensor:
    """One dimension to write ``tensor`` through: a view where the strides allow, else scratch that ``after`` copies."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    scratch = turn.view(tensor.shape, tensor.dtype, tensor)
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
