"""What the analysis of a launch costs: it grows with what the launch meets, not with what there is.

Counted, not timed: every bytecode that runs, and every comparison of two rectangles.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement

WIDTH = 4
SIZES = (10, 100, 1_000, 10_000)


def counted(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many bytecodes a call runs, and how many rectangles it compares."""
    steps = compared = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    with monkeypatch.context() as patch:
        for name in ("overlaps", "contains", "intersect", "subtract"):
            plain = getattr(Rect, name)

            def call_it(self: Rect, other: Rect, plain: Any = plain) -> object:
                nonlocal compared
                compared += 1
                return plain(self, other)

            patch.setattr(Rect, name, call_it)
        before = sys.gettrace()
        gc.collect()
        gc.disable()  # it would run the finalizers of whatever else there is, and those would be counted
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(before)
            gc.enable()
    return steps, compared


def tile(index: int) -> Rect:
    return Rect((WIDTH * index,), (WIDTH * (index + 1),))


def single(region: LogicalRegion, privilege: Privilege, index: int, processor: int) -> Launch:
    return Launch("one", (Point((), processor),), (Requirement(region, privilege, (tile(index),)),))


def of_tiles(count: int, *, at_once: bool) -> tuple[ProgramAnalysis, LogicalRegion]:
    """A region of which so many sub-regions were written, by one launch or one after the other."""
    region = LogicalRegion(0, "x", Rect.of_shape((WIDTH * count,)), "float32")
    program = ProgramAnalysis(Machine.cpu(1, ranks=2))
    program.add(region)
    if at_once:
        points = tuple(Point((index,), index % 2) for index in range(count))
        tiles = tuple(tile(index) for index in range(count))
        program.launch(Launch("all", points, (Requirement(region, WRITE_DISCARD, tiles),)))
    else:
        for index in range(count):
            program.launch(single(region, WRITE_DISCARD, index, index % 2))
    return program, region


@pytest.mark.parametrize("at_once", [True, False])
def test_a_launch_costs_what_it_meets(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The depth of a tree is all that grows: one level more for ten times as many sub-regions."""
    costs: dict[Privilege, list[tuple[int, int]]] = {}
    for count in SIZES if at_once else (10, 200, 2_000):
        program, region = of_tiles(count, at_once=at_once)
        for number, privilege in enumerate((READ_WRITE, WRITE_DISCARD, READ, reduce("+"))):
            place = count // 2 + number  # tiles of either memory; what is read comes from the other one
            launch = single(region, privilege, place, (place + 1) % 2)
            cost = counted(lambda launch=launch, program=program: program.launch(launch), monkeypatch)
            costs.setdefault(privilege, []).append(cost)
    for found in costs.values():
        for measure in zip(*found, strict=True):
            assert measure[-1] < 5 * measure[0] + 60
            assert measure[-1] < 2.5 * measure[-2]


def test_a_launch_of_all_tiles_is_one_operation_of_linear_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for count in (100, 1_000):
        program, region = of_tiles(count, at_once=True)
        points = tuple(Point((index,), index % 2) for index in range(count))
        launch = Launch("all", points, (Requirement(region, READ_WRITE, tuple(map(tile, range(count)))),))
        steps.append(counted(lambda launch=launch, program=program: program.launch(launch), monkeypatch)[0])
    assert steps[1] < 20 * steps[0]


def test_other_regions_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for count in (SIZES[0], *SIZES):  # the first one fills what is kept of equal partitions
        program = ProgramAnalysis(Machine.cpu(1, ranks=2))
        regions = [LogicalRegion(index, "x", tile(0), "float32") for index in range(count)]
        for region in regions:
            program.add(region)
            program.launch(single(region, WRITE_DISCARD, 0, 0))
        launch = single(regions[count // 2], READ_WRITE, 0, 1)
        costs.append(counted(lambda launch=launch, program=program: program.launch(launch), monkeypatch))
    assert len(set(costs[1:])) == 1
