"""The descent's rounds: the table of its docstring, and no choice tried twice in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maniple.strategies.interface.space import Choice
from maniple.strategies.soap.descent import LENGTH, Descent
from maniple.strategies.soap.work_item import WIDTH, Merge, Sweep

HERE = (Choice((1,)), Choice((1,)))
FASTER = (Choice((2,)), Choice((1,)))


def ranges(descent: Descent) -> list[tuple[int, int]]:
    """The first and last choice of each sweep of the next round."""
    return [(item.position, (item.position + item.most - 1) % descent.count) for item in descent.items()]


def ended(descent: Descent) -> list[Sweep]:
    """The sweeps of the next round, none of which has helped."""
    return [
        replace(item, position=(item.position + item.most) % descent.count, proposals=item.most)
        for item in descent.items()
    ]


def test_the_table_of_rounds() -> None:
    first = Descent(HERE, 9.0, 150)
    assert ranges(first) == [(number, number + 15) for number in range(0, 128, 16)]
    items = ended(first)
    items[1] = replace(items[1], best=FASTER, best_cost=8.0, accepted=1)
    second, following = first.join(items)
    assert (second.choices, second.cost, second.quiet) == (FASTER, 8.0, 0)
    assert following == second.items()
    assert ranges(second) == [(128, 143), (144, 9), *((number, number + 15) for number in range(10, 106, 16))]
    third, _ = second.join(ended(second))
    assert third.quiet == 128
    assert ranges(third) == [(106, 121), (122, 127)]
    assert not third.ends_with(third.items())
    assert third.ends_with(ended(third))
    last, following = third.join(ended(third))
    assert (last.quiet, last.finished, following) == (150, True, ())


@pytest.mark.parametrize("count", [1, 15, 16, 17, 48, WIDTH * LENGTH, WIDTH * LENGTH + 1, 1000])
def test_every_choice_is_tried_once_before_the_end(count: int) -> None:
    descent, tried = Descent(HERE, 9.0, count), list[int]()
    while not descent.finished:
        for item in descent.items():
            assert 0 < item.most <= LENGTH
            tried += [(item.position + passed) % count for passed in range(item.most)]
        descent, _ = descent.join(ended(descent))
    assert sorted(tried) == list(range(count))


def test_a_merge_goes_on_where_the_sweeps_ended() -> None:
    descent = Descent(HERE, 9.0, 150)
    after, following = replace(descent, position=128).join([Merge(FASTER, 8.0, ())])
    assert (after, following) == (Descent(FASTER, 8.0, 150, 128), after.items())
