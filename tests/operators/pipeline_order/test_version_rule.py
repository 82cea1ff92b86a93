"""Version rules: the tables of four stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maniple.operators.pipeline_order import version_rule
from maniple.operators.pipeline_order.named_order import named_order
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.operators.pipeline_order.version_rule import RULES, lag, predicted


@pytest.mark.parametrize(
    ("rule", "forward", "backward", "kept"),
    [
        ("latest", (0, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1)),
        ("stash", (0, 0, 0, 0), (3, 2, 1, 0), (4, 3, 2, 1)),
        ("vertical_sync", (0, 1, 2, 3), (3, 3, 3, 3), (4, 4, 4, 4)),
        ("2bw", (0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2)),
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


@pytest.mark.parametrize(
    ("early", "turns"),
    [
        (False, ["b0 f3 b1 F0 b2 F1 b3 F2", "b0 f2 b1 f3 b2 F0 b3 F1", "b0 f1 b1 f2 b2 f3 b3 F0"]),
        (True, ["b0 F0 b1 F1 b2 F2 b3 F3", "b0 f3 b1 F0 b2 F1 b3 F2", "b0 f1 b1 f2 b2 f3 b3 F0"]),
    ],
)
def test_turns_of_three_stages_with_four_micro_batches(early: bool, turns: list[str]) -> None:
    """The tables of 2BW: a capital is of the mini-batch that began in this run, the others are of the one before."""
    rule, drawn = replace(RULES["2bw"], early=early), []
    for stage in range(3):
        ahead = [(turn + rule.ahead(stage, 3, 4)) % 4 for turn in range(4)]
        forward = [f"{'f' if rule.begins(stage, 3, part, 4) else 'F'}{part}" for part in ahead]
        drawn.append(" ".join(f"b{turn} {forward[turn]}" for turn in range(4)))
    assert drawn == turns
    assert all(f"stage {stage}   {line}" in str(version_rule.__doc__) for stage, line in enumerate(drawn))


def test_early_stages_are_ahead_by_what_micro_batches_there_are_and_stages_follow() -> None:
    rule = replace(RULES["2bw"], early=True)
    found = {parts: [rule.ahead(stage, 4, parts) for stage in range(4)] for parts in (4, 5, 6, 7, 12)}
    assert found == {4: [4, 3, 2, 1], 5: [5, 4, 3, 1], 6: [6, 5, 3, 1], 7: [7, 5, 3, 1], 12: [7, 5, 3, 1]}
    graph = StageGraph.chain(4)
    for parts, ahead in found.items():
        assert list(named_order("asynchronous_early", graph, parts).in_flight()) == ahead
