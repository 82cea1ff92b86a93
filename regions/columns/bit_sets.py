"""Sets of small numbers for compiled code: rows of a table, 32 numbers to a word."""

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf

# Words are signed, and their upper halves stay zero: with the sign in use, the loop below that shifts a word to the
# right until nothing is left would shift ones in and never end.
Bits = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]


@inner
def empty(sets: int, size: int) -> Bits:
    """So many empty sets of numbers below `size`."""
    return np.zeros((sets, (size + 31) >> 5), dtype=np.int64)


@leaf
def add(bits: Bits, row: int, number: int) -> None:
    """Put a number into a set."""
    bits[row, number >> 5] |= 1 << (number & 31)


@leaf
def has(bits: Bits, row: int, number: int) -> bool:
    """Whether a number is in a set."""
    return (bits[row, number >> 5] >> (number & 31)) & 1 == 1


@inner
def members(bits: Bits, row: int) -> Column:
    """The numbers of a set, ascending."""
    words = bits.shape[1]
    count = 0
    for word in range(words):
        left = bits[row, word]
        while left:
            # Takes the lowest bit away, so the loop runs once for each member and not for each bit.
            left &= left - 1
            count += 1
    result = np.empty(count, dtype=np.int64)
    count = 0
    for word in range(words):
        left = bits[row, word]
        number = word << 5
        while left:
            if left & 1:
                result[count] = number
                count += 1
            left >>= 1
            number += 1
    return result


@leaf
def equal(a: Bits, i: int, b: Bits, j: int) -> bool:
    """Whether two sets are equal."""
    for word in range(a.shape[1]):
        if a[i, word] != b[j, word]:
            return False
    return True


@leaf
def is_empty(bits: Bits, row: int) -> bool:
    """Whether a set has no member."""
    for word in range(bits.shape[1]):
        if bits[row, word]:
            return False
    return True


@leaf
def within(a: Bits, i: int, b: Bits, j: int) -> bool:
    """Whether every member of the first set is in the second."""
    for word in range(a.shape[1]):
        if a[i, word] & ~b[j, word]:
            return False
    return True


@leaf
def mix(code: int, bits: Bits, row: int) -> int:
    """A number that depends on `code` and on the set; equal sets give equal numbers."""
    # The factor is odd, so that no bit is lost, and below 2 ** 63, so that it is a signed word; the product wraps.
    # Tables look at low bits alone, and a product brings nothing down to them: the shift does.
    for word in range(bits.shape[1]):
        code = (code ^ bits[row, word]) * 0x9E3779B97F4A7C1
        code ^= code >> 29
    return code
