"""Version rules: the tables of four stages."""

from __future__ import annotations

import pytest

from maniple.operators.pipeline_order.version_rule import RULES, lag, predicted


@pytest.mark.parametrize(
    ("rule", "forward", "backward", "kept"),
    [
        ("latest", (0, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1)),
        ("stash", (0, 0, 0, 0), (3, 2, 1, 0), (4, 3, 2, 1)),
        ("vertical_sync", (0, 1, 2, 3), (3, 3, 3, 3), (4, 4, 4, 4)),
    ],
)
def test_ages_of_four_stages(
    rule: str, forward: tuple[int, ...], backward: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    found = RULES[rule]
    assert tuple(found.forward(stage, 4) for stage in range(4)) == forward
    assert tuple(found.backward(stage, 4) for stage in range(4)) == backward
    assert tuple(found.versions(stage, 4) for stage in range(4)) == kept


def test_backward_of_a_stage_comes_as_many_runs_later_as_stages_follow() -> None:
    assert [lag(stage, 4) for stage in range(4)] == [3, 2, 1, 0]


def test_what_is_predicted_is_one_version() -> None:
    assert {predicted("spectrain").versions(stage, 8) for stage in range(8)} == {1}
