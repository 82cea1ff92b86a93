"""Branching: every plan that no bound excludes is found, wherever the search pauses."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from maniple.strategies.exhaustive.branch_kernels import ENDED, FOUND, advance

LAYERS, CHOICES = 4, 3


def find(terms: np.ndarray[tuple[int, int], np.dtype[np.float64]], most: int, tries: int) -> list[tuple[int, ...]]:
    """The plans whose terms add up to less, in the order in which they are found.

    Args:
        terms: of each choice, by layer.
        most: what they stay below.
        tries: after so many choices the search pauses.
    """
    tables = (
        np.arange(LAYERS + 1),
        np.arange(LAYERS) * CHOICES,
        np.eye(LAYERS, dtype=np.int64),
        np.ones(LAYERS, dtype=np.bool_),
    )
    grid = np.zeros((1, 8), dtype=np.int64)
    # One group, whose fragment is not known: each plan that is complete is handed out.
    index = (np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros((1, LAYERS), dtype=np.int64))
    fragments = (index, (grid, grid, grid, grid, grid), (0, 0, 0))
    place, found = np.full(LAYERS, -1), []
    sizes, images = np.full(LAYERS, CHOICES), np.zeros((LAYERS, 0, CHOICES), dtype=np.int64)
    while True:
        limits = (most, 0, tries)
        state, _ = advance(place, np.zeros(1), terms.reshape(-1), tables, sizes, images, fragments, limits)
        if state == ENDED:
            return found
        if state == FOUND:
            found.append(tuple(place.tolist()))


@pytest.mark.parametrize("tries", [1, 2, 3, 7, 10**6])
@pytest.mark.parametrize("most", [60, 90, 10**6])
def test_a_pause_leaves_no_plan_out(tries: int, most: int) -> None:
    terms = np.random.default_rng(0).integers(0, 40, (LAYERS, CHOICES)).astype(np.float64)
    below = [plan for plan in product(range(CHOICES), repeat=LAYERS) if terms[range(LAYERS), plan].sum() < most]
    assert 0 < len(below) <= CHOICES**LAYERS
    assert find(terms, most, tries) == below
