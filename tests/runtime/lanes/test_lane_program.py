"""Lane programs: compiled bodies are taken by compiled code, and nobody can tell but by the clock."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launched import TIMEOUT_S, made, on_ranks

import maniple as mp
from maniple.process.error import RunError
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.lanes.compiled_lane import CompiledLane
from maniple.runtime.lanes.lane_kernel import COPY_AXES, copy_box
from maniple.runtime.lanes.lane_step import LaneStep, Meeting
from maniple.runtime.program.variant import CompiledBody
from maniple.runtime.session.session import Session
from maniple.runtime.storage.copy_kernels import Push, Wire
from maniple.testing import local_worlds

CELLS, PIECES = 8, 4
OWN = mp.blocks((PIECES,))
AROUND = mp.halo(OWN, (1,))
COLUMNS = mp.blocks((1, 2))


class Compiled(mp.Mapper):
    """Chooses the compiled body wherever a task has one."""

    def map_task(self, task: mp.plugins.TaskView) -> mp.plugins.TaskMapping:
        return mp.plugins.TaskMapping("numba" if "numba" in task.variants else task.variants[0])


class Second(mp.Mapper):
    """Places every task on rank 1."""

    def shard(self, launch: mp.plugins.LaunchView) -> list[int]:
        return [1] * len(launch.colors)

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        return 1


@mp.task
def smooth(step: int, weight: float, odd: bool, color: mp.Color, x: mp.Read, y: mp.WriteDiscard) -> None:
    first = 0 if color[0] == 0 else 1
    for i in range(len(y)):
        left, right = x[max(0, first + i - 1)], x[min(len(x) - 1, first + i + 1)]
        y[i] = weight * (left + right) + (step if odd else color[0])


@smooth.variant("numba")
def smooth_compiled(step: int, weight: float, odd: bool, color: tuple[int], x: Any, y: Any) -> None:
    first = 0 if color[0] == 0 else 1
    for i in range(len(y)):
        left, right = x[max(0, first + i - 1)], x[min(len(x) - 1, first + i + 1)]
        y[i] = weight * (left + right) + (step if odd else color[0])


@mp.task
def scale(by: float, x: mp.ReadWrite) -> None:
    x *= by


@scale.variant("numba")
def scale_compiled(by: float, x: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] *= by


@mp.task
def largest(x: mp.Read) -> float:
    return float(x.max())


@largest.variant("numba")
def largest_compiled(x: Any) -> float:
    return float(x.max())


@mp.task
def refuse(limit: int, color: mp.Color, x: mp.ReadWrite) -> None:
    raise NotImplementedError


@refuse.variant("numba")
def refuse_compiled(limit: int, color: tuple[int], x: Any) -> None:
    x[0] += 1.0
    if color[0] >= limit:
        raise ValueError("over the limit")


def lanes(session: Session, name: str = "step") -> list[CompiledLane | None]:
    """The compiled lanes of a trace that has run twice."""
    (loaded,) = session.tracing.traces[name]._loaded
    return [program._compiled for _, program in sorted(loaded.replay._programs.items())]


def smoothed(session: Session, mapper: mp.Mapper | None) -> list[object]:
    """Steps of a stencil with halos, with values that change, a reduction in Python in between, and a matrix."""
    x = [session.region((CELLS,), dtype="float64", name=f"x{parity}") for parity in range(2)]
    matrix = session.region((3, 4), dtype="float64", name="matrix")
    x[0].write(torch.arange(float(CELLS), dtype=torch.float64))
    matrix.write(torch.arange(12.0, dtype=torch.float64).reshape(3, 4))
    seen: list[object] = []
    for run in range(5):
        with session.trace("step"):
            for step in range(4):
                source, target = x[step % 2], x[1 - step % 2]
                given = (step + run, 0.5 + run, run % 2 == 0, source[AROUND], target[OWN])
                done = session.index_launch(smooth, OWN.colors, *given, mapper=mapper)
            session.index_launch(scale, COLUMNS.colors, 1.0 + run, matrix[COLUMNS], mapper=mapper)
            found = session.index_launch(largest, OWN.colors, x[0][OWN], mapper=mapper)
        seen += [found.reduce("max"), done[0], matrix.read().tolist()]
    return [*seen, x[0].read().tolist()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_compiled_lanes_compute_what_interpreted_ones_do(size: int) -> None:
    def program(session: Session) -> tuple[list[object], list[object], bool]:
        plain = smoothed(session, None)
        compiled = smoothed(session, Compiled())
        return plain, compiled, any(lane is not None and lane.stretches for lane in lanes(session))

    ranks = on_ranks(size, program)
    assert all(compiled == plain for plain, compiled, _ in ranks)
    assert any(used for _, _, used in ranks)


@mp.task
def put(value: float, x: mp.WriteDiscard) -> None:
    x.fill_(value)


def moved(session: Session, mapper: mp.Mapper | None) -> tuple[list[object], list[int]]:
    """Steps of a stencil on half of two regions; rank 1's instances grow, so move, when it writes the other half."""
    x = [session.region((2 * CELLS,), dtype="float64", name=f"x{parity}") for parity in range(2)]
    own = mp.rectangles([((0,), (CELLS // 2,)), ((CELLS // 2,), (CELLS,))])
    around = mp.rectangles([((0,), (CELLS // 2 + 1,)), ((CELLS // 2 - 1,), (CELLS,))])
    rest = mp.rectangles([((CELLS,), (2 * CELLS,))])
    session.index_launch(put, 2, 1.0, x[0][own])
    met = []
    for run in range(10):
        with session.trace("step"):
            for step in range(4):
                source, target = x[step % 2], x[1 - step % 2]
                session.index_launch(smooth, 2, step, 0.5, False, source[around], target[own], mapper=mapper)
        session.fence()
        if mapper is not None and run > 0:
            steps = (entries(lane) for lane in lanes(session) if lane is not None)
            met.append(sum(isinstance(entry.call, Meeting) for taken in steps for entry in taken))
        if run in {4, 6}:
            session.launch(put, float(run), x[run // 2 % 2][rest][0], mapper=Second())
    return [region.read().tolist() for region in x], met


def entries(lane: CompiledLane) -> list[LaneStep]:
    """The steps that compiled code takes."""
    return [entry for stretch in lane.stretches for entry in lane._entries[stretch.start : stretch.end]]


def test_compiled_code_meets_ranks_and_follows_instances_that_move() -> None:
    worlds = local_worlds(2, shared=True)
    try:
        with ThreadPoolExecutor(2) as pool:
            compiled = list(pool.map(lambda world: moved(made(world), Compiled()), worlds, timeout=TIMEOUT_S))
            plain = list(pool.map(lambda world: moved(made(world), None), worlds, timeout=TIMEOUT_S))
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
    for rank in range(2):
        assert compiled[rank][0] == plain[rank][0]
    # The first replay binds the pushes, the next one finds out what can be compiled. Rank 0 learns that it pushes
    # elsewhere when it meets rank 1, inside compiled code; rank 1 binds all its steps anew before.
    assert [met for _, met in compiled] == [[0, 0, 1, 1, 0, 0, 0, 0, 1]] * 2


def test_all_but_the_body_that_returns_a_value_is_compiled(session: Session) -> None:
    smoothed(session, Compiled())
    (loaded,) = session.tracing.traces["step"]._loaded
    for program in loaded.replay._programs.values():
        lane = program._compiled
        assert lane is not None
        taken = {index for stretch in lane.stretches for index in range(stretch.start, stretch.end)}
        left = [loaded.template.schedule.label(entry.row) for i, entry in enumerate(program.entries) if i not in taken]
        assert left
        assert all("largest" in label for label in left)


def test_the_times_of_compiled_steps_are_noted(session: Session) -> None:
    smoothed(session, Compiled())
    (loaded,) = session.tracing.traces["step"]._loaded
    schedule = loaded.template.schedule
    for begun, ended in loaded.replay.times:
        for row in range(len(schedule)):
            assert 0 < begun[row] <= ended[row]
        for before, after in schedule.edges():
            assert ended[before] <= begun[after]


def test_a_run_with_values_of_other_types_is_interpreted(session: Session) -> None:
    x = session.region((3, 4), dtype="float64", name="x")
    x.fill(1.0)
    factors = [2.0, 2.0, 2.0, 3, 0.5, 1 << 70, 2.0]
    for factor in factors[:5] + factors[6:]:
        with session.trace("step"):
            session.index_launch(scale, COLUMNS.colors, factor, x[COLUMNS], mapper=Compiled())
    assert torch.equal(x.read(), torch.full((3, 4), 24.0, dtype=torch.float64))


def test_a_compiled_body_that_raises_is_named_with_its_exception(session: Session) -> None:
    x = session.region((CELLS,), dtype="float64", name="x")
    x.fill(0.0)
    for limit in (9, 9, 9, 2):
        with session.trace("step"):
            session.index_launch(refuse, OWN.colors, limit, x[OWN], mapper=Compiled())
    with pytest.raises(RunError, match=r"refuse\[[23]\]") as caught:
        session.fence()
    assert isinstance(caught.value.__cause__, ValueError)
    assert "over the limit" in str(caught.value.__cause__)


def test_threads_that_compile_one_leaf_together_get_the_same() -> None:
    made: list[object] = []
    body, begin = CompiledBody(scale_compiled), threading.Barrier(4)

    def make(dispatcher: object, given: object) -> object:
        made.append((dispatcher, given))
        return made[-1]

    def find(_: int) -> object:
        begin.wait(TIMEOUT_S)
        return body.leaf(("types",), make)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(find, range(4)))
    assert len(made) == 1
    assert all(one is made[0] for one in found)


boxes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(boxes, st.data())
def test_a_box_is_copied_as_numpy_copies_it(extents: Sequence[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(extents))))
    steps = tuple(slice(None, None, data.draw(st.integers(1, 2))) for _ in extents)
    whole = np.zeros([2 * extent for extent in extents])
    target = whole[steps][tuple(slice(0, extent) for extent in extents)]
    source = np.random.default_rng(0).normal(size=[extents[axis] for axis in order]).transpose(np.argsort(order))
    wire = Wire()
    push = Push(cast("Any", source), cast("Any", target), wire)
    words = push.box(COPY_AXES)
    moved = sum(extent > 1 for extent in extents)
    if words is None:
        assert moved > COPY_AXES
        push()
        assert wire.written == source.nbytes
    else:
        block = array("q", words)
        assert copy_box(block.buffer_info()[0]) == source.nbytes
    assert np.array_equal(target, source)
    assert np.count_nonzero(whole) == np.count_nonzero(source)
