"""The roofline: columns of tasks and folds take what each takes by itself."""

from __future__ import annotations

import naive_roofline as naive
import numpy as np
from fed_machine import fed
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.roofline import EFFICIENCY, Rooflines, fold_ns, launches_ns, task_ns

MACHINES = [*(Machine.preset(name) for name in ("cpu:3", "cpu:2x2", "p100x4", "h100x8")), fed()]
REGIONS = [
    LogicalRegion(number, dtype, Rect((0,), (1 << 40,)), dtype)
    for number, dtype in enumerate(("float32", "float64", "bfloat16", "int64"))
]


@st.composite
def launches(draw: st.DrawFn) -> tuple[Machine, Launch]:
    """Tasks of any size on any processors, of operators with an efficiency of their own and without."""
    machine = draw(st.sampled_from(MACHINES))
    count = draw(st.integers(0, 6))
    places = st.integers(0, len(machine.processors) - 1)
    points = tuple(Point((number,), draw(places)) for number in range(count))
    rects = [tuple(Rect((0,), (draw(st.integers(0, 1 << 40)),)) for _ in range(count)) for _ in range(2)]
    flops = draw(st.sampled_from([(), tuple(draw(st.floats(0, 1e18)) for _ in range(count))]))
    kind = draw(st.sampled_from([*EFFICIENCY, "relu", ""])) + draw(st.sampled_from(["", ".forward", ".update"]))
    needs = tuple(Requirement(draw(st.sampled_from(REGIONS)), READ, each) for each in rects)
    port = draw(st.sampled_from(["", "", "in", "out"]))
    return machine, Launch("drawn", points, needs, None, flops, kind, port=port)


@given(launches())
def test_tasks_take_what_each_takes_by_itself(drawn: tuple[Machine, Launch]) -> None:
    machine, launch = drawn
    found = task_ns(launch, Rooflines.of(machine)).tolist()
    assert found == [naive.task_ns(launch, point, machine) for point in range(len(launch.points))]
    assert min(found, default=1) >= 1


@given(st.lists(launches(), max_size=8))
def test_so_do_those_of_many_launches(drawn: list[tuple[Machine, Launch]]) -> None:
    for machine in MACHINES:
        reached, own = Rooflines.of(machine), 2 * [launch for where, launch in drawn if where == machine]
        found = [times.tolist() for times in launches_ns(own, reached)]
        assert found == [task_ns(launch, reached).tolist() for launch in own]


@given(st.sampled_from(MACHINES), st.lists(st.integers(0, 1 << 50)))
def test_folds_take_what_each_takes_by_itself(machine: Machine, touched: list[int]) -> None:
    where = [number % len(machine.processors) for number in range(len(touched))]
    folded = np.asarray(touched, dtype=np.int64), np.asarray(where, dtype=np.int64)
    expected = [naive.fold_ns(size, machine, machine.processor(by)) for size, by in zip(touched, where, strict=True)]
    assert fold_ns(Rooflines.of(machine), *folded).tolist() == expected


def test_processors_of_one_memory_share_its_bandwidth() -> None:
    for machine in MACHINES:
        found = Rooflines.of(machine).bandwidth.tolist()
        assert found == [naive.bandwidth(machine, processor) for processor in machine.processors]
