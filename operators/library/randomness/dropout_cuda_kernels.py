"""Dropout on CUDA: the same bits as on the CPU, drawn and applied in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from maniple.operators.library.randomness.dropout_kernels import (
    Mask,
    Word,
    drawn_of,
    make_key,
    masking,
    runs,
)
from maniple.operators.operator.kernel_scratch import CallSequence, in_row, out_row
from maniple.operators.operator.operator import TileContext
from maniple.regions.rectangle import Rect
from maniple.runtime.devices.cuda_kernels import (
    EVERY_BLOCK,
    FORMS,
    DeviceArray,
    address_of,
    bind_launch,
    cuda,
    current_stream,
    dtype_of,
    flat,
    kind_of,
    load_four,
    store_four,
)
from maniple.runtime.storage.scratchpad import Scratchpad

_MASK, _WORD = 0xFFFFFFFF, np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
GROUP = 4
"""Elements that one block of Philox decides on."""


@cuda.jit(device=True)
def philox_words(group: Any, step: Any, first: Any, second: Any) -> tuple[Any, Any, Any, Any]:
    """``dropout_kernels.philox`` in words of 32 bits, whose products a GPU has in one instruction."""
    a, b = np.uint32(group & _MASK), np.uint32(group >> _WORD)
    c, d = np.uint32(step & _MASK), np.uint32(step >> _WORD)
    k, m = np.uint32(first), np.uint32(second)
    for _ in range(10):
        low, high = _MULTIPLIERS[0] * np.uint64(a), _MULTIPLIERS[1] * np.uint64(c)
        a, b = np.uint32(np.uint32(high >> _WORD) ^ b ^ k), np.uint32(high & _MASK)
        c, d = np.uint32(np.uint32(low >> _WORD) ^ d ^ m), np.uint32(low & _MASK)
        k, m = np.uint32((np.uint64(k) + _WEYL[0]) & _MASK), np.uint32((np.uint64(m) + _WEYL[1]) & _MASK)
    return a, b, c, d


@lru_cache(maxsize=16)
def dropout_kernel(dtype: torch.dtype, *, aligned: bool) -> Any:
    """The kernel: a thread takes one group of four elements of one run, whose first and last may reach beyond it.

    Args:
        dtype: Of the elements.
        aligned: Whether groups lie so that one load takes four elements.
    """
    load, store = FORMS[dtype].load, FORMS[dtype].store

    def dropout(
        source: Any, target: Any, starts: Any, length: int, clock: Any, operator: Word, threshold: Word, scale: float
    ) -> None:
        first, second = make_key(clock[0], operator)
        step, least, zero = np.uint64(clock[1]), np.int64(threshold), scale - scale
        groups = length // GROUP + 2
        count = starts.size * groups
        for i in range(cuda.grid(1), count, cuda.gridsize(1)):
            run = np.int64(0) if starts.size == 1 else i // groups
            begin = np.int64(starts[run])
            group = begin // GROUP + (i - run * groups)
            at, shift = GROUP * group - begin, run * length
            if at <= -GROUP or at >= length:
                continue
            if aligned and at >= 0 and at + GROUP <= length:
                w, x, y, z = load_four(source, np.uint64(shift + at))
                a, b, c, d = philox_words(np.uint64(group), step, first, second)
                w = store(load(w) * (scale if np.int64(a) >= least else zero))
                x = store(load(x) * (scale if np.int64(b) >= least else zero))
                y = store(load(y) * (scale if np.int64(c) >= least else zero))
                z = store(load(z) * (scale if np.int64(d) >= least else zero))
                store_four(target, np.uint64(shift + at), (w, x, y, z))
            else:
                words = philox_words(np.uint64(group), step, first, second)
                for place in range(GROUP):
                    if 0 <= at + place < length:
                        factor = scale if np.int64(words[place]) >= least else zero
                        index = np.uint64(shift + at + place)
                        target[index] = store(load(source[index]) * factor)

    return cuda.jit(dropout)


class Runs(NamedTuple):
    """What ``dropout_kernels.runs`` gives, on the device.

    Args:
        starts: Of the runs.
        length: Of each.
        aligned: Whether every group of four elements that lies in a run begins at a multiple of four there.
    """

    starts: Any
    length: int
    aligned: bool


def runs_of(shape: tuple[int, ...], rect: Rect) -> Runs:
    """The runs of a tile: brought to the device once, so that no later body waits for it."""
    return _brought(torch.cuda.current_device() if torch.cuda.is_available() else -1, shape, rect)


@lru_cache(maxsize=1024)
def _brought(device: int, shape: tuple[int, ...], rect: Rect) -> Runs:
    del device  # which is the current one: a key
    starts, length = runs(shape, rect)
    aligned = not (starts % GROUP).any() and (len(starts) == 1 or length % GROUP == 0)
    return Runs(cuda.to_device(starts), length, bool(aligned))


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
    starts, length, aligned = runs_of(shape, rect)
    dtype = dtype_of(target)
    numbers = (*(np.uint64(word) for word in (mask.operator, mask.threshold)), kind_of(dtype)(mask.scale))
    arguments = (flat(source), flat(target), starts, length, flat(clock), *numbers)
    aligned = aligned and not any(address_of(array) % (GROUP * dtype.itemsize) for array in (source, target))
    work = rect.volume // max(1, length) * (length // GROUP + 2)
    return bind_launch(dropout_kernel(dtype, aligned=aligned), work, arguments, stream, most=EVERY_BLOCK)


def _bind(context: TileContext, source: Tensor, target: Tensor) -> Callable[[], None]:
    mask, shape, clock = drawn_of(context)
    before, after, turn = CallSequence(), CallSequence(), context.scratch or Scratchpad().turn()
    given, made = in_row(source, before, turn), out_row(target, after, turn)
    rect = context.tile.result_rects[0]
    return before.then(bind_dropout(mask, shape, rect, clock, given, made, current_stream())).then(after).bind()


KERNELS = masking(_bind)
