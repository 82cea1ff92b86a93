"""Random streams: what the random numbers of one operator in one step are a function of.

    number = f(seed, step, operator, index of the element in the whole tensor)

Nothing of a tile, a processor or a rank is in it, so every plan draws the same numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class RandomStream:
    """The random numbers of one operator, whatever tile of it.

    Args:
        operator: A number of 64 bits for the operator's name: the same in every process.
        clock: (2,) int64: the seed, as its 64 bits, and the step. A region that the program writes when a step begins:
            a body that is bound once reads the step that it is part of, though two steps may be under way.
    """

    operator: int
    clock: Tensor

    @staticmethod
    def of(name: str, clock: Tensor) -> RandomStream:
        """The stream of the operator of that name."""
        return RandomStream(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"), clock)

    def now(self) -> tuple[int, int]:
        """The seed (0 <= seed < 2^64) and the step that runs; to be asked each time that a body runs."""
        seed, step = self.clock.tolist()
        return seed & 0xFFFFFFFFFFFFFFFF, step
