"""The incumbent: the fastest stays, what it replaced remains a candidate, and nothing is counted twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maniple.strategies.soap.evaluation import UNFIT
from maniple.strategies.soap.incumbent import Incumbent

COSTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5), st.integers(0, 5)), max_size=8)


def choices(name: str) -> Any:
    """Stands for the choices of all operators, which an incumbent keeps and does not look into."""
    return (name,)


@given(found=COSTS)
def test_the_fastest_is_kept_and_of_equals_the_first(found: list[tuple[int, int, int]]) -> None:
    incumbent = Incumbent(choices("seed"), 5.0, 1)
    for number, (cost, proposals, accepted) in enumerate(found):
        incumbent = incumbent.against(choices(str(number)), float(cost), proposals, accepted)
    costs = [5, *(cost for cost, _, _ in found)]
    names = ["seed", *map(str, range(len(found)))]
    assert incumbent.cost == min(costs)
    assert incumbent.choices == choices(names[costs.index(min(costs))])
    assert incumbent.proposals == 1 + sum(proposals for _, proposals, _ in found)
    assert incumbent.accepted == sum(accepted for _, _, accepted in found)


@given(found=COSTS)
def test_candidates_are_the_incumbent_and_whom_it_replaced_fastest_first(found: list[tuple[int, int, int]]) -> None:
    incumbent, kept = Incumbent(choices("seed"), 5.0), {5.0}
    for number, (cost, _, _) in enumerate(found):
        if cost < incumbent.cost:
            kept.add(float(cost))
        incumbent = incumbent.against(choices(str(number)), float(cost))
    costs = [cost for cost, _ in incumbent.candidates]
    assert costs == sorted(kept)
    assert incumbent.candidates[0] == (incumbent.cost, incumbent.choices)


def test_a_slower_seed_stays_a_candidate_but_a_slower_proposal_does_not() -> None:
    seeded = Incumbent(choices("a"), 2.0).add_seed(choices("b"), 3.0, None)
    assert [cost for cost, _ in seeded.candidates] == [2.0, 3.0]
    assert seeded.proposals == 1
    assert [cost for cost, _ in seeded.against(choices("c"), 4.0, 1).candidates] == [2.0, 3.0]


def test_the_least_that_was_lacking_is_remembered() -> None:
    first, less, more = ((lacking, 0, choices("x")) for lacking in (10, 9, 11))
    incumbent = Incumbent(choices("a"), UNFIT).against(choices("b"), UNFIT, least=first)
    assert incumbent.against(choices("c"), UNFIT, least=more).least == first
    assert incumbent.against(choices("c"), UNFIT, least=less).least == less
    assert incumbent.against(choices("c"), UNFIT, least=None).least == first


def test_what_does_not_fit_is_no_best_time() -> None:
    assert Incumbent(choices("a"), UNFIT, 3, 1).progress.best_s is None
    fits = Incumbent(choices("a"), UNFIT, 3, 1).against(choices("b"), 0.5, 2, 1).progress
    assert (fits.proposals, fits.accepted, fits.best_s) == (5, 2, 0.5)
