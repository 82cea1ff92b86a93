"""Rankings: whether predictions order what was measured in several rounds, as far as the rounds order it themselves.

round       1    2    3    4    5    6    7    8    9     middle
first plan  9.0  9.1  9.9  9.2  9.0  9.3  9.1  9.0  9.2   9.1
second      9.3  9.4  9.8  9.5  9.2  9.6  9.5  9.3  9.4   9.4    slower in all rounds but one: told apart
third       9.3  8.9  9.4  9.1  9.5  9.0  9.6  9.2  9.1   9.2    slower than the first in 5, faster in 4: a tie
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

ODD = 1
"""So many rounds may say otherwise; of nine, that happens to equal plans with a probability of 4 %."""


def middle(rounds: Sequence[float]) -> float:
    """The median of some rounds."""
    return statistics.median(rounds)


def noise(rounds: Sequence[float]) -> float:
    """How far rounds are from their middle one, in the median, as a share of it."""
    return statistics.median(abs(one - middle(rounds)) for one in rounds) / middle(rounds)


def order(first: Sequence[float], second: Sequence[float], least: float, odd: int = ODD) -> int:
    """1 where the first takes longer than the second, -1 where the second does, 0 where they are not told apart.

    Args:
        first: its times, round by round.
        second: the times of the same rounds.
        least: the share by which their middles have to differ.
        odd: so many rounds may say otherwise.
    """
    if middle(first) == middle(second):
        return 0
    longer = sum(one > other for one, other in zip(first, second, strict=True))
    shorter = sum(one < other for one, other in zip(first, second, strict=True))
    gap = abs(middle(first) - middle(second))
    if min(longer, shorter) > odd or gap <= least * min(middle(first), middle(second)):
        return 0
    return 1 if middle(first) > middle(second) else -1


def pairs(measured: Sequence[Sequence[float]], least: float, odd: int = ODD) -> int:
    """How many pairs of plans are told apart; for the arguments see ``order``."""
    return sum(order(*both, least, odd) != 0 for both in combinations(measured, 2))


def kendall(
    predicted: Sequence[float], measured: Sequence[Sequence[float]], least: float, odd: int = ODD
) -> float | None:
    """Kendall's tau over the pairs that are told apart; a pair that is predicted alike agrees and disagrees by half.

    Args:
        predicted: of each plan.
        measured: the rounds of each.
        least: as ``order`` has it.
        odd: likewise.

    Returns:
        Agreeing less disagreeing pairs, as a share of all; None where no pair is told apart.
    """
    agree = 0
    for one, other in combinations(range(len(predicted)), 2):
        found = order(measured[one], measured[other], least, odd)
        agree += found * ((predicted[one] > predicted[other]) - (predicted[one] < predicted[other]))
    total = pairs(measured, least, odd)
    return agree / total if total else None


def over_luckiest(predicted: Sequence[float], measured: Sequence[Sequence[float]]) -> float:
    """How much longer the plan takes that is predicted fastest than the fastest by the same rounds."""
    chosen = min(range(len(predicted)), key=lambda plan: predicted[plan])
    return middle(measured[chosen]) / min(map(middle, measured))


def over_fastest(predicted: Sequence[float], measured: Sequence[Sequence[float]]) -> float:
    """How much longer the plan takes that is predicted fastest than the fastest.

    The fastest of many by the same rounds that it is compared in is mostly one that was lucky. So the even rounds say
    which is the fastest for the odd ones to compare, and the odd ones for the even; the answer is the mean of both.
    """
    chosen = min(range(len(predicted)), key=lambda plan: predicted[plan])
    found = []
    for half in range(2):
        fastest = min(measured, key=lambda rounds: middle(rounds[half::2]))
        turns = zip(measured[chosen][1 - half :: 2], fastest[1 - half :: 2], strict=True)
        found.append(statistics.median(own / least for own, least in turns))
    return statistics.mean(found)
