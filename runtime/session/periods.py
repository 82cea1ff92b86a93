"""Periods: the repeated parts of a sequence of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

Word = tuple[int, ...]


def find_repeats(tokens: Sequence[int], shortest: int) -> list[Word]:
    """Find words that occur more than once without overlap, and together cover much of a sequence.

    The method of Yadav et al., "Automatic Tracing in Task-Based Runtime Systems" (ASPLOS 2025, section 4.1): neighbours
    in the suffix array name the candidates, two overlapping occurrences stand for a word next to itself, and longer
    candidates are chosen first. A word that is itself a repetition is cut down to the fewest repeats that are long
    enough, so that a loop gives its body and not a number of iterations.

        tokens         shortest  words
        1 2 3 1 2 3    2         1 2 3
        1 1 1 1 1 1    2         1 1
        1 2 9 1 2 8    2         1 2
        1 2 3 4        2

    Args:
        tokens: the sequence.
        shortest: tokens that a word must have.

    Returns:
        The words, longest first.
    """
    length = len(tokens)
    order, common = suffix_array(tokens)
    candidates: list[tuple[int, int]] = []
    for place in range(length - 1):
        shared = common[place]
        if shared < shortest:
            continue
        first, second = sorted((order[place], order[place + 1]))
        apart = second - first
        if shared <= apart:
            candidates += [(shared, first), (shared, second)]
            continue
        size = (shared + apart) // 2
        size -= size % apart
        if size >= shortest:
            candidates += [(size, first), (size, first + size)]
    taken = [False] * length
    words: dict[Word, None] = {}
    for size, start in sorted(candidates, key=lambda found: (-found[0], found[1])):
        if not taken[start] and not taken[start + size - 1]:
            taken[start : start + size] = [True] * size
            words[_cut(tuple(tokens[start : start + size]), shortest)] = None
    return sorted(words, key=lambda word: (-len(word), word))


def _cut(word: Word, shortest: int) -> Word:
    size = len(word)
    for period in range(1, size // 2 + 1):
        if size % period == 0 and word == word[:period] * (size // period):
            repeats = -(-shortest // period)
            return word[: period * repeats]
    return word


def suffix_array(tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    """Sort the suffixes of a sequence, and count the tokens that each shares with the next one.

    Prefix doubling (Manber and Myers, SIAM J. Comput. 22, 1993) and the linear-time algorithm of Kasai et al. (CPM
    2001) for the shared prefixes.
    """
    length = len(tokens)
    if not length:
        return [], []
    rank = np.unique(np.asarray(tokens, dtype=np.int64), return_inverse=True)[1].astype(np.int64)
    width = 1
    while True:
        later = np.full(length, -1, dtype=np.int64)
        if width < length:
            later[:-width] = rank[width:]
        order = np.lexsort((later, rank))
        fresh = np.ones(length, dtype=np.int64)
        fresh[1:] = (rank[order][1:] != rank[order][:-1]) | (later[order][1:] != later[order][:-1])
        rank = np.empty(length, dtype=np.int64)
        rank[order] = np.cumsum(fresh) - 1
        if rank[order[-1]] == length - 1:
            break
        width *= 2
    return order.tolist(), _common_prefixes(tokens, order.tolist(), rank.tolist())


def _common_prefixes(tokens: Sequence[int], order: Sequence[int], rank: Sequence[int]) -> list[int]:
    length = len(tokens)
    shared = [0] * length
    run = 0
    for start in range(length):
        if rank[start] == length - 1:
            run = 0
            continue
        other = order[rank[start] + 1]
        while start + run < length and other + run < length and tokens[start + run] == tokens[other + run]:
            run += 1
        shared[rank[start]] = run
        run = max(0, run - 1)
    return shared
