"""The order of samples: a function of the seed and the epoch alone, whatever reads them, on whatever ranks.

    samples 0 to 5, seed 7, batch 4    epoch 0: [5 4 2 1] [3 0]    epoch 1: [5 0 4 2] [3 1]

Each sample gets 64 bits, mixed (splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014, section 4) from its number, the seed and the epoch; the order is that of these, ties by number. So it is
the same with every version of every library.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__: list[str] = []

_STEP, _FIRST, _SECOND = (np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The numbers of all samples in the order of an epoch.

    Args:
        samples: how many there are.
        seed: any integer.
        epoch: from 0.
    """
    key = blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest()
    state = np.arange(1, samples + 1, dtype=np.uint64) * _STEP + np.frombuffer(key, dtype="<u8")[0]
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable").astype(np.int64)
