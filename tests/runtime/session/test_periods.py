"""Repetition: suffix arrays against sorting, and the words that are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.session.periods import find_repeats, suffix_array

sequences = st.lists(st.integers(0, 3), max_size=40)


@given(sequences)
def test_suffixes_are_sorted_and_what_neighbours_share_is_counted(tokens: list[int]) -> None:
    order, shared = suffix_array(tokens)
    assert order == sorted(range(len(tokens)), key=lambda start: tokens[start:])
    for place in range(len(order) - 1):
        one, other = tokens[order[place] :], tokens[order[place + 1] :]
        common = next((i for i in range(min(len(one), len(other))) if one[i] != other[i]), min(len(one), len(other)))
        assert shared[place] == common


def occurrences(tokens: list[int], word: tuple[int, ...]) -> int:
    """How often a word occurs without overlap, taken from the left."""
    found, start = 0, 0
    while start + len(word) <= len(tokens):
        if tuple(tokens[start : start + len(word)]) == word:
            found, start = found + 1, start + len(word)
        else:
            start += 1
    return found


@given(sequences, st.integers(1, 4))
def test_every_word_is_long_enough_and_occurs_twice(tokens: list[int], shortest: int) -> None:
    words = find_repeats(tokens, shortest)
    assert len(set(words)) == len(words)
    for word in words:
        assert len(word) >= shortest
        # A loop that is cut to its body may have been found only once at that length.
        assert occurrences(tokens, word) >= 2 or occurrences(tokens, word * 2) >= 1


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8, unique=True), st.integers(4, 9))
def test_a_loop_gives_its_body_or_a_turn_of_it(body: list[int], times: int) -> None:
    (word,) = find_repeats(body * times, 2)
    turns = {tuple(body[i:] + body[:i]) for i in range(len(body))}
    assert word in turns


@pytest.mark.parametrize(
    ("tokens", "shortest", "words"),
    [
        ([1, 2, 3, 1, 2, 3], 2, [(1, 2, 3)]),
        ([1, 1, 1, 1, 1, 1], 2, [(1, 1)]),
        ([1, 2, 9, 1, 2, 8], 2, [(1, 2)]),
        ([1, 2, 3, 4], 2, []),
        ([], 1, []),
        ([5], 1, []),
    ],
)
def test_the_table(tokens: list[int], shortest: int, words: list[tuple[int, ...]]) -> None:
    assert find_repeats(tokens, shortest) == words
