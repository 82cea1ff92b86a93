"""Dropout on CUDA: the same bits as on the CPU, drawn and applied in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maniple.operators.library.randomness.dropout_kernels import (
    Mask,
    Word,
    choose_word,
    drawn_of,
    make_key,
    masking,
    philox,
    runs,
)
from maniple.operators.operator.kernel_scratch import CallSequence, in_row, out_row
from maniple.operators.operator.operator import TileContext
from maniple.regions.rectangle import Rect
from maniple.runtime.devices.cuda_kernels import DeviceArray, bind_launch, cuda, current_stream, flat


@cuda.jit
def _dropout(
    source: Any, target: Any, starts: Any, length: int, clock: Any, operator: Word, threshold: Word, scale: float
) -> None:
    """A thread takes one group of four elements of one run; the first and last group of a run may reach beyond it."""
    first, second = make_key(clock[0], operator)
    groups = length // 4 + 2
    zero = scale - scale
    for i in range(cuda.grid(1), starts.size * groups, cuda.gridsize(1)):
        run = i // groups
        begin = np.int64(starts[run])
        group = begin // 4 + i % groups
        words = philox(np.uint64(group), clock[1], first, second)
        for place in range(4):
            at = 4 * group + place - begin
            if 0 <= at < length:
                factor = scale if choose_word(words, place) >= threshold else zero
                target[run * length + at] = source[run * length + at] * factor


def starts_of(shape: tuple[int, ...], rect: Rect) -> tuple[Any, int]:
    """What ``dropout_kernels.runs`` gives, on the device: brought there once, so that no later body waits for it."""
    return _brought(torch.cuda.current_device() if torch.cuda.is_available() else -1, shape, rect)


@lru_cache(maxsize=1024)
def _brought(device: int, shape: tuple[int, ...], rect: Rect) -> tuple[Any, int]:
    del device  # which is the current one: a key
    starts, length = runs(shape, rect)
    return cuda.to_device(starts), length


def bind_dropout(
    mask: Mask,
    shape: tuple[int, ...],
    rect: Rect,
    clock: DeviceArray,
    source: DeviceArray,
    target: DeviceArray,
    stream: object = 0,
) -> Callable[[], None]:
    """A function that writes what dropout leaves of a tile; see ``dropout_kernels.bind_dropout``.

    Args:
        mask: Which elements stay.
        shape: Of the whole tensor.
        rect: The tile.
        clock: (2,) int64 on the device: the seed and the step, read at each call.
        source: Contiguous.
        target: Contiguous; written.
        stream: Of numba.
    """
    starts, length = starts_of(shape, rect)
    written = flat(target)
    numbers = (*(np.uint64(word) for word in (mask.operator, mask.threshold)), written.dtype.type(mask.scale))
    arguments = (flat(source), written, starts, length, flat(clock), *numbers)
    return bind_launch(_dropout, rect.volume // max(1, length) * (length // 4 + 2), arguments, stream)


def _bind(context: TileContext, source: Tensor, target: Tensor) -> Callable[[], None]:
    mask, shape, clock = drawn_of(context)
    before, after = CallSequence(), CallSequence()
    given, made = in_row(source, before), out_row(target, after)
    rect = context.tile.result_rects[0]
    return before.then(bind_dropout(mask, shape, rect, clock, given, made, current_stream())).then(after).bind()


KERNELS = masking(_bind)
