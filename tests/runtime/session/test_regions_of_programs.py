"""Regions as programs use them: fields, sub-regions, sparse arguments, dependent partitions, coherence, capacities."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import pytest
import torch

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.regions.index_space import RectSet
from maniple.regions.partition import weights
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds, run_on_worlds

TIMEOUT_S = 30.0


@mp.task
def put(value: float, x: mp.WriteDiscard) -> None:
    x.fill_(value)


@mp.task
def add(value: float, x: mp.ReadWrite) -> None:
    x += value


@mp.task
def total(x: mp.Read) -> float:
    return float(x[mp.index_space(x).positions()].sum())


@mp.task
def both(cells: mp.ReadWrite) -> None:
    voltage, charge = cells
    voltage += charge.to(voltage.dtype)
    charge.zero_()


@mp.task
def meet(mine: threading.Event, other: threading.Event, x: mp.ReadWrite) -> None:
    mine.set()
    assert other.wait(TIMEOUT_S)
    x += 1


@mp.task
def contribute(value: float, x: mp.ReduceSum) -> None:
    x += value


@mp.task
def where(x: mp.Read) -> tuple[str, list[int]]:
    found = mp.index_space(x).positions()
    return str(mp.index_space(x)), [] if found is ... else found[0].tolist()


@mp.task
def outside(x: mp.ReadWrite) -> bool:
    inside = torch.zeros(x.shape, dtype=torch.bool)
    inside[mp.index_space(x).positions()] = True
    seen = bool(x[~inside].isnan().all())
    x += 1
    return seen


class On(mp.Mapper):
    """Everything on the processors that are listed, in turn."""

    def __init__(self, *processors: int) -> None:
        self.processors = processors

    def shard(self, launch: mp.plugins.LaunchView) -> Sequence[int]:
        return [launch.machine.rank_of(self._of(index)) for index in range(len(launch.colors))]

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        return self._of(task.index)

    def _of(self, index: int) -> int:
        return self.processors[index % len(self.processors)]


def opened(world: World, capacity: int | None = None) -> Session:
    machine = host_machine(world)
    if capacity is not None:
        memories = tuple(replace(memory, capacity_bytes=capacity) for memory in machine.memories)
        machine = replace(machine, memories=memories)
    return Session(RankRuntime.of(world), machine, mp.Mapper())


@pytest.fixture
def session() -> Iterator[Session]:
    """One rank of two processors."""
    made = opened(World.solo(processors=2, cores=1))
    yield made
    made.runtime.close()


def on_ranks(size: int, body: Callable[[Session], object], capacity: int | None = None) -> list[object]:
    return run_on_worlds(local_worlds(size), lambda world: body(opened(world, capacity)), TIMEOUT_S)


def sparse(*ends: tuple[int, int]) -> RectSet:
    return RectSet.of(mp.Rect((low,), (high,)) for low, high in ends)


# Fields


def test_a_body_sees_the_fields_that_a_requirement_names(session: Session) -> None:
    cells = session.region((4,), name="cells", fields={"voltage": "float32", "charge": "float64"})
    cells["voltage"].fill(1.0)
    cells["charge"].write(torch.arange(4.0, dtype=torch.float64))
    session.index_launch(both, 2, cells[mp.blocks((2,))])
    session.launch(both, cells["voltage", "charge"])
    assert cells["voltage"].read().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert cells["charge"].read().dtype == torch.float64
    assert str(cells["voltage"]) == "cells.voltage#0[0:4] float32"


def test_tasks_on_different_fields_never_wait_for_each_other(session: Session) -> None:
    """Each waits for the other to have begun: one after the other they would wait for ever."""
    cells = session.region((4,), fields={"a": "float32", "b": "float32"})
    for name in "ab":
        cells[name].fill(0.0)
    first, second = threading.Event(), threading.Event()
    session.launch(meet, first, second, cells["a"], mapper=On(0))
    session.launch(meet, second, first, cells["b"], mapper=On(1))
    assert cells["a"].read().tolist() == cells["b"].read().tolist() == [1.0] * 4


def test_a_field_lives_as_long_as_something_names_it(session: Session) -> None:
    voltage = session.region((4,), fields={"voltage": "float32", "charge": "float32"})["voltage"]
    piece = session.region((6,), name="x")[mp.blocks((2,))][1]
    gc.collect()
    voltage.fill(3.0)
    piece.fill(2.0)
    session.region((1,))
    assert voltage.read().tolist() == [3.0] * 4
    assert piece.read().tolist() == [2.0] * 3
    del voltage, piece
    gc.collect()
    session.region((1,))
    assert session.runtime.kept_bytes() == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, cells: cells["voltages"], "no field 'voltages'; did you mean 'voltage'"),
        (lambda x, cells: x["voltage"], "it was made without fields"),
        (lambda x, cells: cells.read(), r"has several fields; name one, as in region\['voltage'\]"),
        (lambda x, cells: x[mp.blocks((2,)).bind(mp.Rect.of_shape((5,)))], r"given a partition of \[0:5\]"),
        (lambda x, cells: x.session.region((3,), fields={}), "at least one field"),
        (lambda x, cells: x.session.region(RectSet.empty()), "at least one point"),
        (lambda x, cells: mp.index_space(torch.zeros(3)), "no argument of a task"),
        (lambda x, cells: x.by_field(2), "whole numbers"),
        (lambda x, cells: mp.register_reduction("+", torch.add, 0.0), "built in"),
        (lambda x, cells: mp.register_reduction("sub", torch.sub, 0.0), "an identity leaves every value"),
    ],
)
def test_what_does_not_fit_is_refused(
    session: Session, wrong: Callable[[mp.Region, mp.Region], object], message: str
) -> None:
    x = session.region((4,), name="x")
    x.fill(0.0)
    cells = session.region((4,), name="cells", fields={"voltage": "float32", "charge": "float64"})
    with pytest.raises(RequestError, match=message):
        wrong(x, cells)


# Sub-regions and sparse arguments


def test_sub_regions_of_sub_regions_are_compared_exactly(session: Session) -> None:
    """Two levels down on one side, one on the other: only what overlaps waits, and values go where they belong."""
    x = session.region((8, 8), name="x")
    x.fill(0.0)
    quarter = x[mp.blocks((2, 2))][1, 0]
    inner = quarter[mp.blocks((2, 1))][1, 0]
    assert str(inner) == "x[6:8, 0:4]"
    session.launch(add, 1.0, x[mp.blocks((2, 1))][1, 0])
    session.index_launch(add, mp.Rect.of_shape((1, 2)), 2.0, inner[mp.blocks((1, 2))])
    wanted = torch.zeros(8, 8)
    wanted[4:] += 1
    wanted[6:, :4] += 2
    assert torch.equal(x.read(), wanted)
    assert torch.equal(quarter.read(), wanted[4:, :4])
    with pytest.raises(RequestError, match=r"two arguments both use x\[6:8, 0:4\]"):
        session.launch(_two, quarter, inner)


@mp.task
def _two(x: mp.ReadWrite, y: mp.ReadWrite) -> None:
    x += y.sum()


@pytest.mark.parametrize("debug", [False, True])
def test_a_sparse_argument_is_its_elements_and_nothing_else(session: Session, debug: bool) -> None:
    x = session.region((10,), name="x")
    x.write(torch.arange(10.0))
    odd, even = sparse((1, 3), (5, 6), (8, 10)), sparse((0, 1), (3, 5), (6, 8))
    cut = mp.rectangles([odd, even])
    assert x.partition(cut).disjoint
    assert x.partition(cut).complete
    found = session.index_launch(where, 2, x[cut])
    assert found[0] == ["{[1:3], [5:6], [8:10]}", [0, 1, 4, 7, 8]]
    if debug:
        with session.debug():
            seen = session.index_launch(outside, 2, x[cut])
        assert [seen[color] for color in range(2)] == [True, True]
    else:
        session.index_launch(add, 2, 1.0, x[cut])
    assert x.read().tolist() == [value + 1.0 for value in range(10)]
    assert session.launch(total, x[cut][0]).get() == 2 + 3 + 6 + 9 + 10


def test_a_read_between_the_elements_is_found_when_debugging(session: Session) -> None:
    x = session.region((6,), name="x")
    x.fill(1.0)
    part = x[mp.rectangles([sparse((0, 2), (4, 6))])][0]
    with session.debug():
        assert session.launch(_sum_of_view, part).get() != session.launch(_sum_of_view, part).get()  # NaN
        with pytest.raises(RunError, match="wrote its argument 'x'"):
            session.launch(_writes, part).get()


@mp.task
def _sum_of_view(x: mp.Read) -> float:
    return float(x.sum())


@mp.task
def _writes(x: mp.Read) -> None:
    x[0] = 5.0


def test_a_sparse_region_and_sparse_writes(session: Session) -> None:
    x = session.region(sparse((2, 4), (7, 9)), "int64", "x")
    x.fill(4)
    assert x.shape == (7,)
    assert x.read().tolist() == [4, 4, 0, 0, 0, 4, 4]
    x[mp.blocks((2,))][1].write(torch.arange(2))
    assert x.read().tolist() == [4, 4, 0, 0, 0, 0, 1]
    x.write(torch.arange(7))
    assert x.read().tolist() == [0, 1, 0, 0, 0, 5, 6]


def test_only_the_elements_that_are_listed_move() -> None:
    """Five of ten elements go from rank 0 to rank 1, in one message of 20 bytes."""

    def body(session: Session) -> int:
        x = session.region((10,), name="x")
        session.launch(put, 3.0, x, mapper=On(0))
        part = x[mp.rectangles([sparse((0, 1), (3, 5), (8, 10))])][0]
        future = session.launch(total, part, mapper=On(1))
        assert future.get() == 15.0
        session.fence()
        transport = session.runtime.world.transport
        assert transport is not None
        return transport.total()

    assert sum(map(int, on_ranks(2, body))) == 20


# Dependent partitions


def test_partitions_by_fields_of_a_running_program() -> None:
    def body(session: Session) -> list[list[str]]:
        nodes = session.region((6,), "float32", "nodes")
        wires = session.region(
            (4,), name="wires", fields={"from": "int64", "to": "int64", "low": "int64", "high": "int64"}
        )
        for name, values in {
            "from": [0, 4, 1, 5],
            "to": [1, 2, 5, 3],
            "low": [0, 2, 2, 5],
            "high": [2, 3, 2, 6],
        }.items():
            wires[name].write(torch.tensor(values))
        pieces = nodes.partition(weights([1, 2]))
        owned = nodes[pieces].preimage(wires["from"])
        reached = wires["to"][owned].image(nodes)
        rows = wires["low", "high"][mp.blocks((2,))].image(nodes)
        within = wires["to"][owned].image(nodes[pieces][1])
        found = (pieces, owned, reached, reached - pieces, rows, within, pieces.cross(reached))
        return [[str(space) for space in partition.subspaces] for partition in found]

    assert (
        on_ranks(2, body)
        == [
            [
                ["[0:2]", "[2:6]"],
                ["{[0:1], [2:3]}", "{[1:2], [3:4]}"],
                ["{[1:2], [5:6]}", "[2:4]"],
                ["[5:6]", "[0:0]"],
                ["[0:3]", "[5:6]"],
                ["[5:6]", "[2:4]"],
                ["[1:2]", "[0:0]", "[5:6]", "[2:4]"],
            ]
        ]
        * 2
    )


# Reductions


@mp.task
def widest(
    value: float,
    x: Annotated[
        torch.Tensor, mp.register_reduction("widest", lambda a, b: torch.where(a.abs() >= b.abs(), a, b), 0.0)
    ],
) -> None:
    x.copy_(torch.where(x.abs() >= abs(value), x, torch.full_like(x, value)))


def test_a_registered_reduction_folds_as_it_says() -> None:
    def body(session: Session) -> list[float]:
        x = session.region((3,), "float64", "x")
        x.fill(-2.0)
        for value in (1.0, -7.0, 5.0):
            session.index_launch(widest, 2, value, x[mp.replicate(2)])
        return x.read().tolist()

    assert on_ranks(2, body) == [[-7.0] * 3] * 2


@mp.task
def harmonic(color: mp.Color, x: mp.ReduceSum) -> None:
    x += 1.0 / (3.0 + color[0]) + torch.arange(len(x)) * 1e-3


def test_two_runs_fold_to_the_same_bits() -> None:
    def body(session: Session) -> bytes:
        x = session.region((5,), "float32", "x")
        x.fill(0.1)
        for _ in range(20):
            session.index_launch(harmonic, 6, x[mp.replicate(6)])
        return bytes(x.read().numpy().tobytes())

    runs = [on_ranks(3, body) for _ in range(3)]
    assert len({one for run in runs for one in run}) == 1


def test_what_is_remembered_of_reductions_that_nobody_reads_is_bounded() -> None:
    def body(session: Session) -> tuple[float, int]:
        x = session.region((8,), "float64", "x")
        x.fill(0.0)
        most = 0
        for _ in range(1_500):
            session.index_launch(contribute, 2, 1.0, x[mp.replicate(2)])
            live = session.dynamic.live(x.logical.id)
            session.fence()
            live.tidy()
            table = live.analysis.instances
            kept = len(table.extents) + len(table._named) + len(live.analysis._contributors) + len(live.temporary)
            most = max(most, kept + len(live.analysis.validity.pending) + len(live.rows))
        return float(x.read()[0]), most

    for value, most in on_ranks(2, body):  # type: ignore[misc]
        assert value == 3_000.0
        assert most < 1_000


# Coherence


def test_atomic_points_run_one_after_the_other(session: Session) -> None:
    x = session.region((4,), "float64", "x")
    x.write(torch.ones(4, dtype=torch.float64))
    with pytest.raises(RequestError, match="ask for atomic coherence"):
        session.index_launch(add, 3, 1.0, x)
    session.index_launch(_doubles, 3, x.atomic)
    session.index_launch(_doubles, 2, x[mp.halo(mp.blocks((2,)), (1,))].atomic)
    assert x.read().tolist() == [24.0, 49.0, 49.0, 25.0]


@mp.task
def _doubles(color: mp.Color, x: mp.ReadWrite) -> None:
    x.mul_(2).add_(color[0])


def test_atomic_coherence_does_not_excuse_other_interference(session: Session) -> None:
    x, y = (session.region((4,), name=name) for name in "xy")
    x.fill(1.0)
    y.fill(1.0)
    with pytest.raises(RequestError, match=r"points \[0\]@p0 and \[1\]@p1 both use y\[0:4\], as exclusive read-write"):
        session.index_launch(_two, 2, x.atomic, y)
    with pytest.raises(RequestError, match="two arguments both use x"):
        session.index_launch(_two, 2, x.atomic, x.atomic)
    z = session.region((4,), name="z")
    with pytest.raises(RequestError, match="reads z"):
        session.index_launch(add, 2, 1.0, z.atomic)
    assert x.read().tolist() == y.read().tolist() == [1.0] * 4


def test_simultaneous_points_run_at_once_in_one_memory(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(0.0)
    first, second = threading.Event(), threading.Event()
    session.launch(meet, first, second, x.simultaneous, mapper=On(0))
    session.launch(meet, second, first, x.simultaneous, mapper=On(1))
    session.fence()
    ready = threading.Barrier(2)
    session.index_launch(_together, 2, ready, x.simultaneous, mapper=On(0, 1))
    session.fence()
    assert len(x.read()) == 4


@mp.task
def _together(ready: threading.Barrier, x: mp.ReadWrite) -> None:
    ready.wait(TIMEOUT_S)


def test_simultaneous_points_in_two_memories_are_refused() -> None:
    def body(session: Session) -> None:
        x = session.region((4,), name="x")
        x.fill(0.0)
        with pytest.raises(RequestError, match="simultaneous coherence, in memories 0 and 1: map them to one rank"):
            session.index_launch(add, 2, 1.0, x.simultaneous, mapper=On(0, 1))

    on_ranks(2, body)


# Room


def test_an_instance_has_room_for_what_is_used_of_it() -> None:
    def body(session: Session) -> list[int]:
        x = session.region((1_000, 10), "float64", "x")
        x.fill(1.0)
        sizes = [session.runtime.kept_bytes()]
        session.index_launch(add, mp.Rect.of_shape((10, 1)), 1.0, x[mp.blocks((10, 1))], mapper=On(0, 0, 0, 0, 0, 1))
        sizes.append(session.runtime.kept_bytes())
        for first in range(600, 610):
            session.launch(add, 1.0, x[mp.rectangles([mp.Rect((first, 0), (first + 1, 10))])][0], mapper=On(1))
        assert torch.equal(x[mp.blocks((10, 1))][6, 0].read().sum(), torch.tensor(2.0 * 1_000 + 100))
        return sizes

    sizes = on_ranks(2, body)
    assert [one[0] for one in sizes] == [0, 0]  # type: ignore[index]
    assert sizes[1][1] < 80_000 / 2  # type: ignore[index]


def test_an_unused_instance_makes_room() -> None:
    """Three regions of 400 bytes where 900 fit: the one used longest ago goes, copied first if nobody else has it."""

    def body(session: Session) -> list[float]:
        a, b, c = (session.region((100,), "float32", name) for name in "abc")
        for number, region in enumerate((a, b, c)):
            session.launch(put, float(number), region, mapper=On(0))
        session.fence()
        assert session.runtime.kept_bytes() <= 900
        found = [session.launch(total, region, mapper=On(0)).get() for region in (a, b, c, a)]
        session.fence()
        assert session.runtime.kept_bytes() <= 900
        return found

    assert on_ranks(2, body, capacity=900) == [[0.0, 100.0, 200.0, 0.0]] * 2


def test_what_cannot_fit_is_refused_with_what_wanted_to_live_there(session: Session) -> None:
    small = opened(session.runtime.world, capacity=900)
    a, b = (small.region((100,), "float32", name) for name in "ab")
    small.launch(put, 1.0, a)
    small.launch(put, 1.0, b)
    with pytest.raises(RequestError) as caught:
        small.index_launch(contribute, 2, 1.0, a[mp.blocks((2,))])
    said = str(caught.value)
    assert "does not fit into memory 0 (rank 0): it holds 900 B, and 1,200 B want to live there" in said
    assert "400 B  contributions to a (asked for)" in said
    assert "400 B  b[0:100] (there already)" in said
    assert a.read().tolist() == [1.0] * 100


def test_a_schedule_that_cannot_fit_is_refused_before_it_runs() -> None:
    from maniple.operators.lowering.step_program import FragmentCache, Program, lower
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import WRITE_DISCARD
    from maniple.runtime.schedule.launch import Launch, Point, Requirement

    machine = mp.Machine.cpu(1)
    machine = replace(machine, memories=(replace(machine.memories[0], capacity_bytes=1_000),))
    region = LogicalRegion(0, "weights", mp.Rect.of_shape((300,)), "float32")
    launch = Launch("init", (Point((), 0),), (Requirement(region, WRITE_DISCARD, (region.bounds,)),))
    schedule = lower(Program((launch,), {}), FragmentCache(machine))
    runtime = RankRuntime.of(World.solo(processors=1, cores=1))
    with pytest.raises(RequestError, match=r"this step does not fit[\s\S]*1,200 B  weights\[0:300\] \(main\)"):
        runtime.load(schedule, ())
    runtime.close()
