"""Packing: no two that clash overlap, gaps are used, and what cannot take turns has a place of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.schedule.memory import memory_plan
from maniple.runtime.schedule.memory.lifetime import Lifetimes, lifetimes
from maniple.runtime.schedule.memory.memory_plan import ALIGNMENT, plan_memory
from maniple.runtime.schedule.memory.packing import pack
from maniple.runtime.schedule.step_table import NEVER, StepTable

Bits = np.typing.NDArray[np.bool_]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], Bits]:
    count = draw(st.integers(0, 9))
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    clashes = np.zeros((count, count), bool)
    for one in range(count):
        for other in range(one):
            clashes[one, other] = clashes[other, one] = draw(st.booleans())
    return sizes, clashes


def offsets_of(sizes: list[int], clashes: Bits) -> list[int]:
    offsets: list[int] = pack(np.asarray(sizes, np.int64), clashes).tolist()
    return offsets


@given(problems())
def test_no_two_that_clash_overlap(problem: tuple[list[int], Bits]) -> None:
    sizes, clashes = problem
    offsets = offsets_of(sizes, clashes)
    for one, size in enumerate(sizes):
        for other in range(one):
            apart = offsets[one] + size <= offsets[other] or offsets[other] + sizes[other] <= offsets[one]
            assert apart or not clashes[one, other]
    assert max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0) <= sum(sizes)


def test_beyond_so_many_each_has_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All five could lie in one place; the two largest do."""
    alive = in_turn(5)
    sizes = {0: 64, 1: 640, 2: 128, 3: 320, 4: 192}
    assert plan_memory(alive, sizes).size == 640
    monkeypatch.setattr(memory_plan, "SHARING", 2)
    plan = plan_memory(alive, sizes)
    assert dict(plan.offsets) == {1: 0, 3: 0, 4: 640, 2: 832, 0: 960}
    assert plan.size == 1024


def in_turn(count: int) -> Lifetimes:
    """Instances of which each is used by one step of a lane."""
    places = np.arange(count)
    uses = np.stack([places] * 5, axis=1)
    return lifetimes(StepTable(1, 0 * places, places, np.empty((0, 3), np.int64), uses), range(count))


def test_the_table_of_the_module() -> None:
    clashes = np.asarray([[0, 1, 1], [1, 0, 0], [1, 0, 0]], bool)
    assert offsets_of([4, 3, 2], clashes) == [0, 4, 4]


def test_the_smallest_gap_that_holds_it_is_taken() -> None:
    """9, 8 and 7 lie in a row; 6 takes turns with 9, so it lies there; 5 with 9 and 8, so it lies behind 6."""
    clashes = np.ones((5, 5), bool)
    for one, other in ((3, 0), (4, 1), (4, 0)):
        clashes[one, other] = clashes[other, one] = False
    assert offsets_of([9, 8, 7, 6, 5], clashes) == [0, 9, 17, 0, 6]


def test_a_plan_rounds_to_cache_lines_and_says_what_it_saves() -> None:
    """Two that take turns in one lane, and one that nobody is known to be through with."""
    begins = np.asarray([[0, 0, 0, 0], [0, 2, 0, 2], [0, 0, 0, 0]])
    ended = np.asarray([[2], [3], [NEVER]], np.int32)
    renewed = np.asarray([[0], [0], [NEVER]], np.int32)
    alive = Lifetimes((5, 7, 9), np.arange(4), begins, ended, renewed, np.asarray([[0, 1], [2, 2], [0, 2]]))
    plan = plan_memory(alive, {5: 100, 7: 10, 9: 1})
    assert dict(plan.offsets) == {5: 0, 7: 0, 9: 128}
    assert (plan.size, plan.unshared, plan.bound) == (192, 256, 192)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets.values())
    alone = plan_memory(alive, {7: 10})
    assert (dict(alone.offsets), alone.size, alone.bound) == ({7: 0}, 64, 64)
    assert plan_memory(alive, {}).size == 0
