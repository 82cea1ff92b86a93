"""The dropout kernel: a mask drawn by counter and applied in one pass, the same for any tile and on any device.

Element ``e`` of the whole tensor, counted row-major, is kept or dropped by word ``e % 4`` of the Philox4x32-10 block
whose counter is (``e // 4``, step) and whose key is the seed xor the operator's number (``RandomStream``). A tile
therefore draws what the whole tensor has at its place. Nothing is saved for backward: it draws the same mask again.

A tile is handled as runs, the longest stretches of it that are contiguous in the whole tensor:

    tile [1:3, 2:4, 0:5] of (4, 6, 5)      2 runs of 10 elements, starting at elements 40 and 70
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, cast, final

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from maniple.operators.library.randomness.dropout import Dropout

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes
Words = npt.NDArray[np.uint64]
Word = np.uint64
Clock = npt.NDArray[np.int64]


@numba.njit(nogil=True)
def philox(group: Word, step: Word, first: Word, second: Word) -> tuple[Word, Word, Word, Word]:
    """Four 32-bit words of Philox4x32-10; see ``operator.philox`` for the source and for the same in numpy.

    Also a device function: numba compiles it for CUDA where a CUDA kernel calls it.

    Args:
        group: The low half of the counter.
        step: The high half of the counter.
        first: The low word of the key.
        second: The high word of the key.
    """
    mask, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = np.uint64(group) & mask, np.uint64(group) >> word
    c, d = np.uint64(step) & mask, np.uint64(step) >> word
    k, m = np.uint64(first), np.uint64(second)
    for _ in range(10):
        low, high = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (high >> word) ^ b ^ k, high & mask, (low >> word) ^ d ^ m, low & mask
        k, m = (k + np.uint64(0x9E3779B9)) & mask, (m + np.uint64(0xBB67AE85)) & mask
    return a, b, c, d


@numba.njit(nogil=True)
def make_key(seed: int, operator: Word) -> tuple[Word, Word]:
    """The two words of the key of an operator's stream."""
    key = np.uint64(seed) ^ operator
    return key & np.uint64(0xFFFFFFFF), key >> np.uint64(32)


@numba.njit(nogil=True)
def choose_word(words: tuple[Word, Word, Word, Word], place: int) -> Word:
    """The word of a group that belongs to its element ``place``."""
    if place < 2:
        return words[0] if place == 0 else words[1]
    return words[2] if place == 2 else words[3]


@numba.njit(cache=True, nogil=True)
def _dropout(
    source: Floats, target: Floats, starts: Words, clock: Clock, operator: Word, threshold: Word, scale: float
) -> None:
    first, second = make_key(clock[0], operator)
    time = np.uint64(clock[1])
    zero = scale - scale
    four = np.uint64(4)
    length = np.uint64(source.shape[1])  # unsigned places spare numba its test for negative ones
    for run in range(source.shape[0]):
        begin = starts[run]
        lead = min((four - begin % four) % four, length)  # elements before the first whole group of four
        whole = (length - lead) // four
        for i in range(lead):
            place = begin + np.uint64(i)
            words = philox(place // four, time, first, second)
            target[run, np.uint64(i)] = source[run, np.uint64(i)] * (
                scale if choose_word(words, place % four) >= threshold else zero
            )
        for i in range(whole):
            at = lead + four * np.uint64(i)
            a, b, c, d = philox((begin + at) // four, time, first, second)
            target[run, at] = source[run, at] * (scale if a >= threshold else zero)
            at += np.uint64(1)
            target[run, at] = source[run, at] * (scale if b >= threshold else zero)
            at += np.uint64(1)
            target[run, at] = source[run, at] * (scale if c >= threshold else zero)
            at += np.uint64(1)
            target[run, at] = source[run, at] * (scale if d >= threshold else zero)
        for i in range(lead + four * whole, length):
            place = begin + np.uint64(i)
            words = philox(place // four, time, first, second)
            target[run, np.uint64(i)] = source[run, np.uint64(i)] * (
                scale if choose_word(words, place % four) >= threshold else zero
            )


@final
@dataclass(frozen=True, slots=True)
class Mask:
    """Which elements a dropout keeps.

    Args:
        operator: The number of the operator that drops; see ``RandomStream``.
        p: The probability of zero, 0 <= p <= 1.
    """

    operator: int
    p: float

    @property
    def threshold(self) -> int:
        """An element is kept if its word is at least this."""
        return round(self.p * 2**32)

    @property
    def scale(self) -> float:
        """What a kept element is multiplied by, so that the expectation stays."""
        return 0.0 if self.p == 1 else 1.0 / (1.0 - self.p)


def runs(shape: tuple[int, ...], rect: Rect) -> tuple[Words, int]:
    """The starts of a tile's runs in the flattened whole tensor, and the length of each run.

    Args:
        shape: Of the whole tensor.
        rect: The tile; not empty.
    """
    axis = len(shape) - 1  # the runs go along this dimension and all after it
    while axis > 0 and rect.shape[axis] == shape[axis]:
        axis -= 1
    starts = np.zeros(1, np.uint64)
    for place, (low, high) in enumerate(zip(rect.lo, rect.hi, strict=True)):
        stride = np.uint64(prod(shape[place + 1 :]))
        along = np.arange(low, high if place < axis else low + 1, dtype=np.uint64) * stride
        starts = (starts[:, None] + along).reshape(-1)
    return starts, prod(rect.shape[axis:]) if shape else 1


def bind_dropout(
    mask: Mask, shape: tuple[int, ...], rect: Rect, clock: Clock, source: Tensor, target: Tensor
) -> Callable[[], None]:
    """A function that writes what dropout leaves of a tile each time that it is called; forward and backward are alike.

    Args:
        mask: Which elements stay.
        shape: Of the whole tensor.
        rect: The tile.
        clock: The seed and the step, read at each call.
        source: The tile's values (or the result's gradients).
        target: Written entirely.
    """
    starts, length = runs(shape, rect)
    before, after = CallSequence(), CallSequence()
    if (rows := _as_runs(source, length)) is None:
        kept = torch.empty(source.shape, dtype=source.dtype)
        before.then(lambda: kept.copy_(source))
        rows = kept.view(-1, length)
    if (places := _as_runs(target, length)) is None:
        made = torch.empty(target.shape, dtype=target.dtype)
        after.then(lambda: target.copy_(made))
        places = made.view(-1, length)
    scale = places.numpy().dtype.type(mask.scale)
    numbers = (np.uint64(mask.operator), np.uint64(mask.threshold), scale)
    arguments = (rows.numpy(), places.numpy(), starts, clock, *numbers)
    return before.then(compile_kernel(_dropout, arguments)).then(after).bind()


def _as_runs(tensor: Tensor, length: int) -> Tensor | None:
    """The tile as one row per run, without a copy, or None."""
    try:
        return tensor.view(-1, length)
    except RuntimeError:  # torch's answer where the strides do not allow it
        return None


Masked = Callable[[TileContext, Tensor, Tensor], Callable[[], None]]
"""Binds the mask of a tile to what it is applied to and where the result goes."""


def masking(bind: Masked) -> Kernels:
    """Dropout's kernels on a kind of device: the same mask on the operand and on the gradient."""

    def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
        x, (result,) = tensors.operand(0), tensors.results
        if not context.training:
            return lambda: result.copy_(x)  # type: ignore[return-value]
        return bind(context, x, result)

    def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
        return bind(context, tensors.gradient(), tensors.target())

    return Kernels(bind_forward, bind_backward)


def _bind(context: TileContext, source: Tensor, target: Tensor) -> Callable[[], None]:
    """The kernel bound to the operator's stream."""
    mask, shape, clock = drawn_of(context)
    return bind_dropout(mask, shape, context.tile.result_rects[0], clock.numpy(), source, target)


def drawn_of(context: TileContext) -> tuple[Mask, tuple[int, ...], Tensor]:
    """What is drawn for a tile: which elements stay, the shape of the whole tensor, and the seed and step."""
    if context.stream is None:
        raise TypeError("dropout: needs a random stream")
    mask = Mask(context.stream.operator, cast("Dropout", context.operator).p)
    return mask, tuple(extent for _, extent in context.extents), context.stream.clock


KERNELS = masking(_bind)
