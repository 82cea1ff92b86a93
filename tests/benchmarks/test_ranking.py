"""Rankings: the module's table, and what luck makes of equal plans."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from ranking import kendall, middle, noise, order, over_fastest, over_luckiest, pairs

FIRST = [9.0, 9.1, 9.9, 9.2, 9.0, 9.3, 9.1, 9.0, 9.2]
SECOND = [9.3, 9.4, 9.8, 9.5, 9.2, 9.6, 9.5, 9.3, 9.4]
THIRD = [9.3, 8.9, 9.4, 9.1, 9.5, 9.0, 9.6, 9.2, 9.1]


def test_the_table() -> None:
    assert [middle(rounds) for rounds in (FIRST, SECOND, THIRD)] == [9.1, 9.4, 9.2]
    assert (order(FIRST, SECOND, 0.0), order(SECOND, FIRST, 0.0), order(FIRST, THIRD, 0.0)) == (-1, 1, 0)
    # By the noise alone the middles decide, whatever the rounds say.
    assert (order(FIRST, THIRD, 0.0, odd=9), pairs([FIRST, SECOND, THIRD], 0.0), order(FIRST, FIRST, 0.0)) == (-1, 1, 0)
    # 3 % apart, so no pair where 4 % is noise.
    assert order(FIRST, SECOND, 0.04) == 0
    assert noise(FIRST) == pytest.approx(0.1 / 9.1)


def test_tau_counts_pairs_that_are_told_apart() -> None:
    slow = [2 * one for one in FIRST]
    measured = [FIRST, THIRD, slow]
    found = {order: kendall(order, measured, 0.0) for order in permutations((1.0, 2.0, 3.0))}
    # The first two are a tie, so only the slow one's place counts.
    assert found[1.0, 2.0, 3.0] == found[2.0, 1.0, 3.0] == 1.0
    assert found[2.0, 3.0, 1.0] == found[3.0, 2.0, 1.0] == -1.0
    assert found[1.0, 3.0, 2.0] == 0.0
    assert kendall((1.0, 1.0, 1.0), measured, 0.0) == 0.0
    assert kendall((2.0, 1.0), [FIRST, THIRD], 0.0) is None  # nothing to be right about


def test_luck_is_not_held_against_a_choice() -> None:
    """Of ten equal plans the fastest by all rounds is 1 % faster by luck alone; the answer is 1 in the mean."""
    chance, found, lucky = Random(5), [], []
    for _ in range(300):
        measured = [[chance.gauss(1.0, 0.02) for _ in range(9)] for _ in range(10)]
        found.append(over_fastest(range(10), measured))
        lucky.append(over_luckiest(range(10), measured))
    assert sum(lucky) / 300 > 1.01
    assert sum(found) / 300 == pytest.approx(1.0, abs=0.002)
    slower = [[1.1 * one for one in FIRST], FIRST, SECOND]
    assert over_fastest((1.0, 2.0, 3.0), slower) == pytest.approx(1.1)
