"""What memories hold: pipelines need as many micro-batches as their order says, and one layout serves all ranks."""

from __future__ import annotations

import pytest
from pipelined_step import STAGES, TILE, forward_then_backward, one_forward_one_backward, pipeline

from maniple.runtime.schedule.lane import Layout
from maniple.runtime.schedule.machine_memory import neighbours, planned_bytes
from maniple.runtime.schedule.memory.rank_instances import RankInstances
from maniple.runtime.schedule.schedule import Schedule


def tiles(schedule: Schedule, *, shared: bool) -> list[int]:
    """How many tiles of a micro-batch each rank plans, where ranks share memory and where engines move tiles."""
    found = []
    for memory in range(STAGES):
        holds = RankInstances(schedule, (memory,), ())
        near = range(STAGES) if shared else ()
        lanes = Layout(schedule, (memory,), near, holds.temporary).lanes()
        found.append(holds.plan(lanes.lifetimes)[memory].size // (4 * TILE))
    return found


@pytest.mark.parametrize("micro_batches", [8, 16])
def test_a_pipeline_holds_what_its_order_says_and_no_more_where_engines_move_tiles(micro_batches: int) -> None:
    """The last stage of 1F1B has one micro-batch under way, the first as many as there are stages."""
    schedule = pipeline(one_forward_one_backward, micro_batches)
    assert tiles(schedule, shared=True) == [8, 7, 6, 3]
    assert tiles(schedule, shared=False) == [8, 8, 6, 3]


@pytest.mark.parametrize(
    ("micro_batches", "shared", "moved"),
    [(8, [16, 17, 17, 9], [16, 18, 18, 9]), (16, [32, 33, 33, 17], [32, 34, 34, 17])],
)
def test_all_forward_first_holds_every_micro_batch(micro_batches: int, shared: list[int], moved: list[int]) -> None:
    schedule = pipeline(forward_then_backward, micro_batches)
    assert tiles(schedule, shared=True) == shared
    assert tiles(schedule, shared=False) == moved


@pytest.mark.parametrize("preset", ["cpu:4x1", "p100x4", "cpu:2x2"])
def test_what_is_foretold_of_all_memories_is_what_each_rank_plans(preset: str) -> None:
    schedule = pipeline(one_forward_one_backward, 4, preset)
    lasting = {0, 5}
    groups = neighbours(schedule.machine)
    alone = all(len(group) == 1 for group in groups)
    wanted = {}
    for group in groups:
        for memory in group:
            holds = RankInstances(schedule, (memory,), lasting)
            assert set(holds.lasting).isdisjoint(holds.temporary)
            lanes = Layout(schedule, (memory,), () if alone else group, holds.temporary).lanes()
            wanted |= holds.needs(holds.plan(lanes.lifetimes))
    assert planned_bytes(schedule, lasting) == tuple(wanted[memory] for memory in sorted(wanted))
