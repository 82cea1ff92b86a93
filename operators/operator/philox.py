"""Philox4x32-10: random bits as a pure function of a counter and a key.

Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011), section 4.3; tested against the known answers of
the authors' Random123 library.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Counter = tuple[Words, Words, Words, Words]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def philox(counter: Counter, key: tuple[int, int]) -> Counter:
    """Four random 32-bit words per counter.

    Args:
        counter: Four arrays of 32-bit words (held in uint64) that broadcast together.
        key: Two 32-bit words.
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (
            (high >> _WORD) ^ b ^ np.uint64(first),
            high & _MASK,
            (low >> _WORD) ^ d ^ np.uint64(second),
            low & _MASK,
        )
        first, second = (first + _WEYL[0]) & 0xFFFFFFFF, (second + _WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d


def uniform(counter: Counter, key: tuple[int, int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per counter: a multiple of 2^-53, from the first two words.

    Args:
        counter: See ``philox``.
        key: See ``philox``.
    """
    high, low, _, _ = philox(counter, key)
    bits = ((high << _WORD) | low) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
