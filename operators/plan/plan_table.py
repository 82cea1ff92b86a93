"""Plan tables: rows of operators as people read them, with processors as ranges and equal layers told once.

    =================  =======  =========================     ====================  =======  ==========
    operator           degrees  processors                    folded                degrees  processors
    =================  =======  =========================     ====================  =======  ==========
    embedding          b=4      0 1 2 3                       embedding             b=4      0-3
    blocks.0.linear    n=2      0 2                           blocks.0-2.linear     n=2      0 2
    blocks.0.relu      whole    0                             blocks.0-2.relu       whole    0
    blocks.1.linear    n=2      0 2
    blocks.1.relu      whole    0
    blocks.2.linear    n=2      0 2
    blocks.2.relu      whole    0
    =================  =======  =========================     ====================  =======  ==========

Nothing is lost but the sight of it: `Plan.table` and the plan's file have every operator and every processor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__: list[str] = []

LEAST = 3
"""So many numbers are told as one range, or more."""
MOST = 6
"""So many ranges are told; of more, the first, the last, and how many numbers there are."""
_NUMBER = re.compile(r"(0|[1-9][0-9]*)")


def ranges(numbers: Sequence[int]) -> str:
    """Tell numbers in their order: ``0-63``; ``0-56:8`` for every eighth; ``3 x4`` for a 3 four times.

    Args:
        numbers: at least 0 each.
    """
    told = list(_runs(numbers))
    if len(told) > MOST:
        told = [*told[: MOST // 2], "...", told[-1], f"({len(numbers)} in all)"]
    return " ".join(told)


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """The longest runs of equal steps, the first ones first."""
    at = 0
    while at < len(numbers):
        end, step = at + 1, numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        while end < len(numbers) and step >= 0 and numbers[end] - numbers[end - 1] == step:
            end += 1
        if end - at < LEAST:
            yield str(numbers[at])
            at += 1
            continue
        yield f"{numbers[at]} x{end - at}" if not step else _range(numbers[at], numbers[end - 1], step)
        at = end


def _range(first: int, last: int, step: int) -> str:
    return f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"


def fold_rows(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Tell rows once that repeat, in blocks, but for numbers in their names that count on evenly.

    Args:
        rows: a name and further cells, which must be equal in what is folded.
    """
    parts = [_NUMBER.split(row[0]) for row in rows]
    alike = [(tuple(part[::2]), row[1:]) for part, row in zip(parts, rows, strict=True)]
    found: list[tuple[str, ...]] = []
    at = 0
    while at < len(rows):
        length, times = _block(alike, parts, at)
        for row in range(at, at + length):
            name = _merge_names([parts[row + turn * length] for turn in range(times)])
            found.append((name, *rows[row][1:]))
        at += length * times
    return found


def _block(alike: Sequence[object], parts: Sequence[list[str]], at: int) -> tuple[int, int]:
    """How many rows from one on repeat, and how often they are there: what saves the most rows, the shortest first."""
    best = (1, 1)
    for length in range(1, (len(alike) - at) // 2 + 1):
        if alike[at] != alike[at + length]:
            continue
        times = 1
        while _continues(alike, parts, at, length, times):
            times += 1
        if length * (times - 1) > best[0] * (best[1] - 1):
            best = (length, times)
    return best


def _continues(alike: Sequence[object], parts: Sequence[list[str]], at: int, length: int, times: int) -> bool:
    """Whether the block is there once more, its numbers further by what they were further the first time."""
    first = at + length * times
    if first + length > len(alike):
        return False
    for row in range(length):
        here, there = at + row, first + row
        if alike[here] != alike[there]:
            return False
        steps = _steps(parts[here], parts[here + length])
        if min(steps, default=0) < 0 or not any(steps) or _steps(parts[there - length], parts[there]) != steps:
            return False
    return True


def _steps(one: Sequence[str], other: Sequence[str]) -> list[int]:
    return [int(b) - int(a) for a, b in zip(one[1::2], other[1::2], strict=True)]


def _merge_names(names: Sequence[list[str]]) -> str:
    """One name for several, with ranges for numbers."""
    found = list(names[0])
    for place in range(1, len(found), 2):
        numbers = [int(name[place]) for name in names]
        if len(names) > 1 and numbers[0] != numbers[-1]:
            found[place] = _range(numbers[0], numbers[-1], numbers[1] - numbers[0])
    return "".join(found)
