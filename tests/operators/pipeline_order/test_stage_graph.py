"""Stages, lanes and what is read."""

from __future__ import annotations

import pytest

from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError


def test_the_table_of_the_docstring() -> None:
    assert StageGraph.chain(4).lanes == ((0,), (1,), (2,), (3,))
    assert StageGraph.looped(2, 2).lanes == ((0, 2), (1, 3))
    assert StageGraph.folded(2).lanes == ((0, 3), (1, 2))
    for graph in (StageGraph.chain(4), StageGraph.looped(2, 2), StageGraph.folded(2)):
        assert graph.reads == ((), (0,), (1,), (2,))
        assert graph.readers == ((1,), (2,), (3,), ())
        assert graph.heights == (4, 3, 2, 1)
    assert StageGraph.looped(4, 1) == StageGraph.chain(4)


def test_a_way_round_has_the_height_of_the_longest() -> None:
    graph = StageGraph(((0,), (1,), (2,), (3,)), ((), (0,), (1,), (0, 2)))
    assert graph.heights == (4, 3, 2, 1)
    assert graph.readers == ((1, 3), (2,), (3,), ())


@pytest.mark.parametrize("lanes", [((0,), (2,)), ((0, 1), (1,)), ((0, 1), ()), ((0,), (1,), (2,))])
def test_a_stage_without_a_lane_or_with_two_is_refused(lanes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(RequestError, match="expected each of 0 to 1 in one lane and a stage in every lane"):
        StageGraph(lanes, ((), (0,)))


@pytest.mark.parametrize("source", [0, 1, -1])
def test_a_stage_that_reads_from_no_smaller_one_is_refused(source: int) -> None:
    with pytest.raises(RequestError, match=f"stage 0 reads from stage {source}; stages are numbered so that"):
        StageGraph(((0,), (1,)), ((source,), ()))


def test_stages_of_another_form_are_refused_with_the_form_that_was_expected() -> None:
    with pytest.raises(RequestError, match=r"goes round all lanes: of 4 stages on 2 lanes, stage s on lane s mod 2"):
        StageGraph.folded(2).chunks("interleaved_1f1b")
    with pytest.raises(RequestError, match=r"goes to the last of 2 lanes and back: lane i has stages i and 3 - i; got"):
        StageGraph.looped(2, 2).check_fold("v_zb")
    assert StageGraph.looped(3, 2).chunks("looped_bfs") == 2
    StageGraph.folded(3).check_fold("v_zb")
