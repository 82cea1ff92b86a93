"""Capacity: which instances make room, and what is said where nothing does.

The machine has two memories of 100 bytes; an element has 4, so 25 fit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import maniple as mp
from maniple.process.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Validity
from maniple.runtime.analysis.capacity import Eviction, Occupancy, Resident
from maniple.runtime.analysis.dependence import RegionAnalysis
from maniple.runtime.analysis.template import enter

CAPACITY = 100


def span(extent: int) -> Rect:
    return Rect((0,), (extent,))


def machine() -> mp.Machine:
    found = mp.Machine.cpu(1, ranks=2)
    return replace(found, memories=tuple(replace(memory, capacity_bytes=CAPACITY) for memory in found.memories))


def occupied(*holdings: tuple[int, ...], extent: int = 10) -> tuple[Occupancy, dict[int, RegionAnalysis]]:
    """Regions of equal extent, each valid in some memories, used in the order of their ids; one more is valid nowhere.

    Args:
        holdings: of each region, the memories that hold its value.
        extent: elements of each region.
    """
    count = len(holdings) + 1
    regions = {number: RegionAnalysis(span(extent), {}) for number in range(count)}
    logical = {number: LogicalRegion(number, f"r{number}", span(extent), "float32") for number in range(count)}
    occupancy = Occupancy(machine(), regions, logical)
    for number, memories in enumerate(holdings):
        enter(regions[number], Validity.of_holdings({memory: RectSet.of([span(extent)]) for memory in memories}))
        occupancy.note(number)
    return occupancy, regions


def evictions(occupancy: Occupancy, region: int, elements: int) -> list[Eviction]:
    return occupancy.evictions("a launch", {(region, 0): span(elements)}, {})


def test_where_all_fits_nothing_makes_room() -> None:
    occupancy, _ = occupied((0,), (0,))
    assert evictions(occupancy, 2, 5) == []


def test_what_was_used_longest_ago_goes_first_and_no_more_than_needed() -> None:
    occupancy, _ = occupied((0, 1), (0, 1))
    assert evictions(occupancy, 2, 10) == [Eviction(0, 0, None)]
    occupancy.note_use(0)
    assert evictions(occupancy, 2, 10) == [Eviction(1, 0, None)]
    assert evictions(occupancy, 2, 20) == [Eviction(1, 0, None), Eviction(0, 0, None)]


def test_what_is_valid_nowhere_else_is_copied_to_a_memory_with_room() -> None:
    occupancy, _ = occupied((0,), (0,))
    assert evictions(occupancy, 2, 10) == [Eviction(0, 0, 1)]


def test_a_region_that_the_launch_uses_stays() -> None:
    occupancy, _ = occupied((0, 1), (0, 1))
    asked = {(2, 0): span(10), (0, 0): span(0)}
    assert occupancy.evictions("a launch", asked, {}) == [Eviction(1, 0, None)]


def test_a_region_that_was_dropped_counts_no_more() -> None:
    occupancy, _ = occupied((0,), (0,))
    occupancy.drop(0)
    assert evictions(occupancy, 2, 10) == []


def test_contributions_that_were_folded_are_not_counted_where_room_is_short() -> None:
    occupancy, regions = occupied((0,))
    regions[0].instances.temporary[0] = 15  # made and folded long ago
    occupancy.note(0)
    assert evictions(occupancy, 1, 10) == []


def test_what_cannot_fit_is_refused_with_what_wanted_to_live_there() -> None:
    occupancy, _ = occupied((0,), (1,), (1,))
    with pytest.raises(RequestError) as refused:
        occupancy.evictions("a launch", {(3, 0): span(20)}, {(3, 0): 4}, {0: [Resident("scratch of f", 12)]})
    lines = str(refused.value).splitlines()
    assert lines[0] == (
        "a launch does not fit into memory 0 (rank 0): it holds 100 B, and 148 B want to live there, 48 B too many:"
    )
    assert [line.split(maxsplit=2)[0::2] for line in lines[1:-1]] == [
        ["80", "r3[0:20] (asked for)"],
        ["40", "r0[0:10] (there already)"],
        ["16", "contributions to r3 (asked for)"],
        ["12", "scratch of f"],
    ]
    assert lines[-1] == "use more ranks, smaller tiles, or drop regions"
