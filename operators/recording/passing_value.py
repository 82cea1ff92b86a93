"""Passing values: what a tape makes and reads again, in places of scratch memory that others take when it is gone.

    call                       reads     gone after      place, MiB
    2  exp(0)                  0         3               0..4
    3  sub(2, 1)               2         5               4..8        (2 is read while 3 is written)
    4  mul(1, 1)                         5               0..4        (2 is gone)
    5  mm(3, 4)                3, 4                      where it is wanted

Where an equal block was, the C library (glibc 2.36) finds no hole for an aligned one once something small lies beside
it. So what bodies take and free in turn, in pieces of some MiB, took two or three times what is there at once.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from maniple.runtime.storage.scratchpad import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from maniple.operators.recording.tape import Call
    from maniple.runtime.storage.scratchpad import ScratchTurn

__all__: list[str] = []

LEAST = 1 << 16
"""Bytes of values that are worth a place of their own; smaller ones find their holes."""


def passing(
    calls: Sequence[Call], able: Collection[int], wanted: Sequence[int], scratch: ScratchTurn, near: Tensor
) -> dict[int, Tensor]:
    """The memory of large values that are made on the way.

    Args:
        calls: in order.
        able: those that can write all they make to dense memory that they are given, by place.
        wanted: the values that are read when all calls are made.
        scratch: where they lie.
        near: what they lie beside.
    """
    last = _last_reads(calls, wanted)
    forms: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}
    places: dict[int, int] = {}
    there: list[tuple[int, int, int]] = []  # where what is there begins and ends, and after which call it is gone
    for at, call in enumerate(calls):
        there = [each for each in there if each[2] >= at]
        made = [each for each in call.made if each is not None] if at in able else []
        if sum(prod(shape) * dtype.itemsize for shape, dtype, _ in made) < LEAST:
            continue
        for number, (shape, dtype, _) in zip(call.results, made, strict=True):
            if number is not None:
                forms[number] = tuple(shape), dtype
                size = -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
                places[number] = _lowest(there, size)
                there.append((places[number], places[number] + size, last.get(number, at)))
    if not places:
        return {}
    sizes = {number: prod(shape) * dtype.itemsize for number, (shape, dtype) in forms.items()}
    block = scratch.view((max(place + sizes[number] for number, place in places.items()),), torch.uint8, near)
    return {
        number: block[place : place + sizes[number]].view(forms[number][1]).view(forms[number][0])
        for number, place in places.items()
    }


def _lowest(there: Sequence[tuple[int, int, int]], size: int) -> int:
    """The lowest place that is free."""
    place = 0
    for begin, end, _ in sorted(there):
        if begin - place >= size:
            break
        place = max(place, end)
    return place


def _last_reads(calls: Sequence[Call], wanted: Sequence[int]) -> dict[int, int]:
    """After which call nobody reads a value, nor a view of it, any more."""
    source: dict[int, int] = {}
    last: dict[int, int] = {}

    def read(number: int, at: int) -> None:
        last[number] = max(at, last.get(number, at))
        if number in source:
            read(source[number], at)

    for at, call in enumerate(calls):
        for number in call.reads():
            read(number, at)
            if call.is_view or call.changes is not None:
                source.update((result, number) for result in call.results if result is not None)
    for number in wanted:
        read(number, len(calls))
    return last
