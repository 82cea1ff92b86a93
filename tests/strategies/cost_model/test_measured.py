"""The measured cost model: measured once, interpolated and marked, within its time box, kept in files."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from naive_roofline import task_ns
from step_launches import LAUNCH_NS, MACHINE, launches

from maniple.models import model
from maniple.operators.operator.formula import Formula
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.cost_model import measured as module
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import (
    Measurement,
    Measurements,
    TaskKey,
    frames,
    measure,
    read_measurements,
    step_bytes,
    task_key,
    work,
    write_measurements,
)


class Timer:
    """Takes a second for every measurement, with which a task comes to three times the roofline."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def __call__(
        self, launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int
    ) -> Measurement:
        self.now += 1.0
        self.calls += 1
        return Measurement.of(launch, point, 3 * task_ns(launch, point, MACHINE) - LAUNCH_NS, 0)

    def clock(self) -> float:
        return self.now


class Bound:
    """A plain object that can be a binder of an operator, or hold a body."""

    def __init__(self, node: object = None) -> None:
        self.node = node

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], None]:
        raise NotImplementedError(point, views, cores)


def test_each_distinct_task_is_measured_once() -> None:
    timer = Timer()
    costs = Measured(MACHINE, Measurements.here(), timer=timer, clock=timer.clock)
    launch = launches(model("digits_cnn", batch=8))["conv2d.forward"]
    for _ in range(2):
        assert costs.task_ns(launch).tolist() == [3 * task_ns(launch, point, MACHINE) for point in range(2)]
    assert timer.calls == 1  # both points have the same shapes
    assert costs.sources(LaunchTasks.of(launch))[1] == "measured"


def test_who_measures_says_that_it_gets_on_before_every_timing() -> None:
    timer, said = Timer(), list[int]()
    costs = Measured(
        MACHINE, Measurements.here(), timer=timer, clock=timer.clock, get_on=lambda: said.append(timer.calls)
    )
    costs.task_ns(launches(model("digits_cnn", batch=8))["conv2d.forward"])
    costs.settle()
    assert said == [0, 1, 2]


def test_forward_backward_and_update_are_apart_and_what_only_passes_values_is_not_measured() -> None:
    found = launches(model("digits_cnn", batch=8))
    passes = ("conv2d_1.forward", "conv2d_1.backward", "conv2d_1.weight_gradient")
    kinds = (*passes, "conv2d_1.weight+conv2d_1.bias.update")
    assert len({task_key(found[name], 0, 1, frames(found[name], [0])) for name in kinds}) == len(kinds)
    assert task_key(found["x.input"], 0, 1, frames(found["x.input"], [0])) is None
    costs = Measured(MACHINE, Measurements.here(), measuring=False)
    assert set(costs.sources(LaunchTasks.of(found["x.input"]))) == {"analytic"}


def test_a_part_of_an_instance_is_another_task_than_a_tensor_of_its_own_and_is_timed_as_one() -> None:
    """Two tiles of a memory share an instance; a tile alone there has one to itself."""
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    own, shared = frames(launch, [0]), frames(launch, [0, 1])
    assert task_key(launch, 0, 1, own) != task_key(launch, 0, 1, shared)
    assert [box.shape for box in own if box] == [(4, 16, 8, 8)] * 2
    assert [box.shape for box in shared if box] == [(8, 16, 8, 8)] * 2
    widths = replace(
        launch,
        requirements=tuple(
            replace(one, rects=tuple(Rect((0, 0, 0, low), (8, 16, 8, low + 4)) for low in (0, 4)))
            for one in launch.requirements
        ),
    )
    seen: list[bool] = []

    def bind(_: int, views: Sequence[torch.Tensor | None], __: int) -> Callable[[], None]:
        seen.extend(view.is_contiguous() for view in views if view is not None)
        return lambda: None

    for points, contiguous in (([0], True), ([0, 1], False)):
        seen.clear()
        ticks = iter(range(0, 10**9, 10**6))
        measure(replace(widths, binder=bind), 0, 1, frames(widths, points), clock=partial(next, ticks))
        assert seen
        assert set(seen) == {contiguous}


def test_a_task_is_timed_on_as_many_tensors_as_a_step_touches() -> None:
    """Two views of 8 x 16 x 8 x 8 numbers are 64 KiB; calls come back to them after the footprint, or never."""
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    for footprint, copies in ((1 << 16, 1), (1 << 18, 4), (1 << 40, 6)):
        bound: list[object] = []

        def bind(*views: object, bound: list[object] = bound) -> Callable[[], None]:
            bound.append(views)
            return lambda: None

        ticks = iter(range(0, 10**9, 10**6))  # two calls of a millisecond make a run, and there are three
        own = replace(launch, binder=bind)
        measure(own, 0, 1, frames(own, [0, 1]), footprint, partial(next, ticks))
        assert len(bound) == copies + 1  # and one that is not timed, of which memory is heard


def test_what_a_step_touches() -> None:
    """The MLP has 23 MB of weights, four times, and twice 4 MB of activations: 101 MB, so 128 MiB."""
    found = [step_bytes(model(name, batch=batch)) >> 20 for name, batch in (("mlp", 128), ("lenet", 1), ("vgg16", 64))]
    assert found == [128, 64, 256]


@pytest.mark.parametrize(("box_s", "conv2d", "linear"), [(6.0, 7.1, 2.4), (4.5, 7.1, 2.75), (2.5, 8.4, 3.1)])
def test_a_task_that_is_settled_takes_its_middle_pass(box_s: float, conv2d: float, linear: float) -> None:
    """The table of ``Measured.settle``, and what it comes to where the box ends earlier."""
    found, now = launches(model("digits_cnn", batch=8)), iter(range(100))
    passes = iter([9.8, 3.1, 7.0, 2.4, 7.1, 2.2])

    def timed(launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int) -> Measurement:
        del cores, boxes, footprint
        return Measurement.of(launch, point, round(1e6 * next(passes)), 0)

    # A pass takes a second: the clock is read as it begins and as it ends.
    costs = Measured(MACHINE, Measurements.here(), time_box_s=box_s, timer=timed, clock=lambda: float(next(now)))
    kinds = found["conv2d.forward"], found["linear.forward"]
    for launch in kinds:
        costs.task_ns(launch)
    costs.settle()
    assert [1e-6 * (costs.task_ns(launch)[0] - LAUNCH_NS) for launch in kinds] == pytest.approx([conv2d, linear])


def test_passes_of_one_program_are_gone_on_with_by_the_next() -> None:
    """The first ends after one pass, the second after two, the third settles, and the fourth has nothing to time."""
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    times = iter([9.8, 7.0, 7.1])
    measurements, middles = Measurements.here(), []
    for passes, box_s in [(1, 1.0), (2, 1.0), (3, 1.0), (3, 60.0)]:
        now = iter(range(100))

        def timed(launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int) -> Measurement:
            del cores, boxes, footprint
            return Measurement.of(launch, point, round(1e6 * next(times)), 0)

        clock = partial(lambda now: float(next(now)), now)
        costs = Measured(MACHINE, measurements, time_box_s=box_s, timer=timed, clock=clock)
        costs.task_ns(launch)
        costs.settle()
        (found,) = costs.measurements.tasks.values()
        assert len(found.passes) == passes
        middles.append(1e-6 * found.median_ns)
    assert middles == pytest.approx([9.8, 8.4, 7.1, 7.1])


def test_launches_are_let_go_of_once_they_are_settled() -> None:
    timer = Timer()
    costs = Measured(MACHINE, Measurements.here(), timer=timer, clock=timer.clock)
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    bound = Bound(getattr(launch.binder, "node", None))
    launch, held = replace(launch, binder=bound), weakref.ref(bound)
    costs.task_ns(launch)
    del launch, bound
    gc.collect()
    assert held() is not None
    costs.settle()
    gc.collect()
    assert held() is None


def test_parts_of_composites_have_the_same_keys_in_another_program() -> None:
    """A graph that is built again has functions at other addresses."""

    def keys() -> list[TaskKey]:
        found = [task_key(each, 0, 1, frames(each, [0])) for each in launches(model("resnet18", batch=2)).values()]
        return [key for key in found if key is not None and "Formula" in key.body]

    once = keys()
    assert once
    assert once == keys()
    assert all(key.lasts and " at 0x" not in key.body for key in once)


def test_formulas_with_another_function_are_other_tasks_and_a_users_are_not_kept() -> None:
    """Of two functions that are written in one place, what they hold tells them apart."""

    def scaled(factor: float) -> Formula:
        return Formula("b c y x -> b c y x", lambda _, x: factor * x)

    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    written = [
        replace(launch, binder=SimpleNamespace(node=SimpleNamespace(operator=scaled(one)))) for one in (2.0, 3.0)
    ]
    first, second = (task_key(each, 0, 1, frames(each, [0])) for each in written)
    assert first is not None
    assert second is not None
    assert first != second
    assert not first.lasts


def test_a_body_that_holds_a_plain_object_has_a_key_of_its_own_that_is_not_kept() -> None:
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    keys = [
        task_key(replace(launch, binder=SimpleNamespace(node=SimpleNamespace(operator=one))), 0, 1, frames(launch, [0]))
        for one in (Formula("b c y x -> b c y x", bound.__call__) for bound in (Bound(), Bound()))
    ]
    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[0] != keys[1]
    assert keys[0].body == keys[1].body
    assert {key.lasts for key in keys if key is not None} == {False}


def test_the_time_box_ends_measuring_and_the_rest_is_interpolated() -> None:
    timer = Timer()
    costs = Measured(MACHINE, Measurements.here(), time_box_s=1.5, timer=timer, clock=timer.clock)
    small, large = (launches(model("mlp", batch=batch))["layers.1.forward"] for batch in (8, 64))
    other = launches(model("mlp", batch=16))["layers.1.forward"]
    costs.task_ns(small)
    costs.task_ns(large)
    assert (timer.calls, costs.sources(LaunchTasks.of(other))[0]) == (2, "interpolated")
    assert costs.task_ns(other)[0] == pytest.approx(3 * task_ns(other, 0, MACHINE), abs=1)
    first = launches(model("mlp", batch=8))["layers.0.forward"]
    assert costs.sources(LaunchTasks.of(first))[0] == "analytic"


def test_the_table_of_the_docstring() -> None:
    factor = module._interpolate([(2**10, 1.5), (2**14, 1.1)], 2**12)
    assert factor == pytest.approx(1.3)
    assert f"? = {factor:.1f}" in (Measured.__doc__ or "")
    assert module._interpolate([(4, 1.5)], 100) == 1.5
    assert module._interpolate([(4, 1.5)], 1) == 1.5
    assert module._interpolate([], 1) is None


def test_a_body_is_timed_with_warm_up_median_and_spread() -> None:
    ticks = iter(range(0, 10**9, 10**6))
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    found = measure(launch, 0, 1, frames(launch, [0]), clock=lambda: next(ticks))
    assert found == Measurement.of(launch, 0, 500_000, 0)  # two calls in each millisecond
    assert found.work == work(launch, 0)


def test_files_give_measurements_back(tmp_path: Path) -> None:
    timer = Timer()
    costs = Measured(MACHINE, Measurements.here(), timer=timer, clock=timer.clock)
    for launch in launches(model("digits_cnn", batch=8)).values():
        costs.task_ns(launch)
    write_measurements(tmp_path / "tasks.json", costs.measurements)
    assert read_measurements(tmp_path / "tasks.json") == costs.measurements


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 9', '"version": 3', "version: expected version 9; measure again, got 3"),
        ('"median_ns": ', '"median_ns": -', r"tasks\[0\]\.passes\[0\]\.median_ns: expected an integer >= 1"),
        ('"cores"', '"cors"', r"tasks\[0\]\.cors: unknown key; did you mean 'cores'"),
    ],
)
def test_wrong_files_name_the_entry(tmp_path: Path, old: str, new: str, message: str) -> None:
    timer = Timer()
    costs = Measured(MACHINE, Measurements.here(), timer=timer, clock=timer.clock)
    costs.task_ns(launches(model("digits_cnn", batch=8))["relu.forward"])
    path = tmp_path / "tasks.json"
    write_measurements(path, costs.measurements)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RequestError, match=message):
        read_measurements(path)


def test_a_measurement_has_a_pass(tmp_path: Path) -> None:
    found = Measurements.here()
    found.tasks[TaskKey("relu.forward", "Relu()", (), 1)] = Measurement((), 1, 1.0, 1)
    write_measurements(tmp_path / "tasks.json", found)
    with pytest.raises(RequestError, match=r"tasks\[0\]\.passes: expected at least one pass, got \[\]"):
        read_measurements(tmp_path / "tasks.json")


@pytest.mark.parametrize(("deadline", "timed"), [(0.0, 0), (0.5, 0), (10.0, 1)])
def test_no_task_is_timed_that_is_not_expected_to_be_by_the_deadline(deadline: float, timed: int) -> None:
    """Eight calls of a task that the roofline says takes a tenth of a second."""
    launch = launches(model("digits_cnn", batch=8))["relu.forward"]
    some_ns = task_ns(replace(launch, flops=(1e9,) * len(launch.points)), 0, MACHINE)
    slow = replace(launch, flops=(1e9 * 1e8 / some_ns,) * len(launch.points))
    timer = Timer()
    costs = Measured(MACHINE, Measurements.here(), deadline=deadline, timer=timer, clock=lambda: 0.0)
    costs.task_ns(slow)
    assert timer.calls == timed
    costs.settle()
    assert timer.calls == timed * module.PASSES


def test_no_pass_side_by_side_is_begun_that_would_end_behind_the_deadline() -> None:
    """Three tasks of 10 ms: a pass takes 8 calls of each, so 0.24 s."""
    found, now, measurements = launches(model("digits_cnn", batch=8)), [0.0], Measurements.here()
    kinds = [found[name] for name in ("relu.forward", "conv2d.forward", "linear.forward")]

    def timed(launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int) -> Measurement:
        del cores, boxes, footprint
        now[0] += 0.08
        return Measurement.of(launch, point, 10**7, 0)

    before = Measured(MACHINE, measurements, timer=timed, passes=1, clock=lambda: now[0])
    for launch in kinds:
        before.task_ns(launch)
    costs = Measured(MACHINE, measurements, deadline=now[0] + 0.5, timer=timed, clock=lambda: now[0])
    for launch in kinds:
        costs.task_ns(launch)
    assert costs.side_by_side(5) == 2
    assert now[0] < 0.24 + 0.5
