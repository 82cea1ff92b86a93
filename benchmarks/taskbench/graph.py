"""Task graphs of Task Bench: a grid of tasks, steps high and points wide, where a step depends on the one before."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

from maniple.process.error import RequestError, nearest

PATTERNS = (
    "trivial",
    "no_comm",
    "stencil_1d",
    "stencil_1d_periodic",
    "dom",
    "tree",
    "fft",
    "all_to_all",
    "nearest",
    "spread",
    "random_nearest",
)
PAIR_BYTES = 16
FRACTION = 0.25  # of the pairs that random_nearest connects: Task Bench's default
LONGEST_PERIOD = 3  # of spread and random_nearest: Task Bench's default
Span = tuple[int, int]
"""Points of one step: first, and one past the last."""


@final
@dataclass(frozen=True)
class TaskGraph:
    """One task graph; widths, offsets and dependences are those of Task Bench's core library.

    Width 4, radix 5: what point i of step t reads of step t - 1.

        pattern              reads
        trivial              nothing
        no_comm              i
        stencil_1d           i-1 .. i+1, as far as there are such points
        stencil_1d_periodic  i-1, i, i+1, around the ends
        dom                  i-1, i; the grid widens by a point each step, and narrows at the end
        tree                 i // 2; the grid doubles until it is as wide as it gets
        fft                  i - 2^d, i, i + 2^d, with d = (t - 1) mod ceil(log2 width)
        all_to_all           every point
        nearest              i - radix//2 .. i + (radix-1)//2
        spread               i + k * width // radix + (t mod period where k > 0), for k < radix, around the ends
        random_nearest       of nearest's points itself and a quarter of the others, by hash

    `spread` names every point once only while radix and period fit the width, and Task Bench refuses others; here they
    are cut down to what fits, and `radix` tells.

    Args:
        pattern: a name of the table.
        width: points of a step, at most.
        steps: how many.
        radix: dependences per point of nearest, spread and random_nearest.
        payload: bytes that a task gives to each that reads it, a multiple of 16.
        imbalance: 0 to 2; a task computes (1 + (u - 0.5) * imbalance) times as long, u uniform by hash.

    Raises:
        RequestError: there is no such graph.
    """

    pattern: str
    width: int = 4
    steps: int = 200
    radix: int = 5
    payload: int = PAIR_BYTES
    imbalance: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no graph; cut the radix of spread down to the width."""
        if self.pattern not in PATTERNS:
            raise RequestError(f"there is no pattern {self.pattern!r}{nearest(self.pattern, PATTERNS)}")
        for name, value in (("--width", self.width), ("--steps", self.steps), ("--radix", self.radix)):
            if value < 1:
                raise RequestError(f"{name}: expected at least 1, got {value}")
        if self.payload < PAIR_BYTES or self.payload % PAIR_BYTES:
            raise RequestError(f"--payload: expected a multiple of {PAIR_BYTES} bytes, got {self.payload}")
        if not 0 <= self.imbalance <= 2:
            raise RequestError(f"--imbalance: expected 0 to 2, got {self.imbalance}")
        if self.pattern == "spread":
            object.__setattr__(self, "radix", min(self.radix, self.width))

    @property
    def pairs(self) -> int:
        """How many (step, point) pairs fill a payload."""
        return self.payload // PAIR_BYTES

    @cached_property
    def period(self) -> int:
        """After how many steps the dependences repeat."""
        if self.pattern == "fft":
            return max(1, math.ceil(math.log2(self.width)))
        if self.pattern == "spread":
            return min(LONGEST_PERIOD, -(-self.width // self.radix))
        return LONGEST_PERIOD if self.pattern == "random_nearest" else 1

    def points(self, step: int) -> Span:
        """The points of a step."""
        if step < 0:
            return 0, 0
        if self.pattern == "dom":
            first = max(0, step + self.width - self.steps)
            return first, first + min(self.width, step + 1, self.steps - step)
        if self.pattern == "tree":
            return 0, min(self.width, 1 << min(step, 62))
        return 0, self.width

    def tasks(self) -> Iterator[tuple[int, int]]:
        """All (step, point), step by step."""
        return ((step, point) for step in range(self.steps) for point in range(*self.points(step)))

    def spans(self, step: int, point: int) -> tuple[Span, ...]:
        """What a task reads of the step before, as runs of points in Task Bench's order."""
        first, end = self.points(step - 1)
        clipped = ((max(low, first), min(high, end)) for low, high in self._spans(step, point))
        return tuple((low, high) for low, high in clipped if low < high)

    def inputs(self, step: int, point: int) -> tuple[int, ...]:
        """What a task reads of the step before, point by point."""
        return tuple(source for span in self.spans(step, point) for source in range(*span))

    def _spans(self, step: int, i: int) -> list[Span]:
        """The runs of points, not yet clipped to those that the step before has."""
        width, radix = self.width, self.radix
        phase = step % self.period
        match self.pattern:
            case "trivial":
                return []
            case "no_comm":
                return [(i, i + 1)]
            case "stencil_1d":
                return [(i - 1, i + 2)]
            case "stencil_1d_periodic":
                around = [(width - 1, width)] * (i == 0) + [(0, 1)] * (i == width - 1)
                return [(max(0, i - 1), min(i + 2, width)), *(around if width > 2 else [])]
            case "dom":
                return [(i - 1, i + 1)]
            case "tree":
                return [(i // 2, i // 2 + 1)]
            case "fft":
                reach = 1 << ((step + self.period - 1) % self.period)
                return [(j, j + 1) for j in (i - reach, i, i + reach)]
            case "all_to_all":
                return [(0, width)]
            case "nearest":
                return [(i - radix // 2, i + (radix - 1) // 2 + 1)]
            case "spread":
                sources = [(i + k * width // radix + (phase if k else 0)) % width for k in range(radix)]
                return [(j, j + 1) for j in sources]
        near = range(max(0, i - radix // 2), min(i + (radix - 1) // 2 + 1, width))
        return runs([j for j in near if j == i or uniform(0, radix, phase, j, i) < FRACTION])

    @cached_property
    def sinks(self) -> tuple[tuple[int, int], ...]:
        """The tasks that no task reads: when these are done, all are."""
        read = {(step - 1, source) for step, point in self.tasks() for source in self.inputs(step, point)}
        return tuple(task for task in self.tasks() if task not in read)

    @cached_property
    def factors(self) -> dict[tuple[int, int], float]:
        """How many times the given iterations each task does."""
        if not self.imbalance:
            return dict.fromkeys(self.tasks(), 1.0)
        return {task: 1 + (uniform(0, *task) - 0.5) * self.imbalance for task in self.tasks()}

    def iterations(self, step: int, point: int, base: int) -> int:
        """How many iterations of the kernel a task does."""
        return round(self.factors[step, point] * base)

    def flops(self, base: int) -> int:
        """What all kernels together compute: 2 * 64 per iteration and 64 to end, as Task Bench counts."""
        return sum(2 * 64 * self.iterations(*task, base) + 64 for task in self.tasks())


def runs(points: list[int]) -> list[Span]:
    """Join ascending points to runs."""
    found: list[Span] = []
    for point in points:
        if found and found[-1][1] == point:
            found[-1] = (found[-1][0], point + 1)
        else:
            found.append((point, point + 1))
    return found


def uniform(*words: int) -> float:
    """A number of [0, 1) that is a hash of whole numbers, as Task Bench draws it."""
    return murmur3(struct.pack(f"<{len(words)}q", *words), 1234567)[0] * 2.0**-64


_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _rotated(x: int, by: int) -> int:
    return ((x << by) | (x >> (64 - by))) & _MASK


def _mixed(x: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = ((x ^ (x >> 33)) * factor) & _MASK
    return x ^ (x >> 33)


def murmur3(data: bytes, seed: int) -> tuple[int, int]:
    """MurmurHash3's x64 variant of 128 bits (Appleby, in the public domain)."""
    h1 = h2 = seed
    whole = len(data) // 16 * 16
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 ^= _rotated(k1 * _C1 & _MASK, 31) * _C2 & _MASK
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotated(k2 * _C2 & _MASK, 33) * _C1 & _MASK
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    k1, k2 = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    h2 ^= _rotated(k2 * _C2 & _MASK, 33) * _C1 & _MASK
    h1 ^= _rotated(k1 * _C1 & _MASK, 31) * _C2 & _MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h2 + h1) & _MASK
