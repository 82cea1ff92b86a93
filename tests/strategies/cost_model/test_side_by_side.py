"""Tasks that are timed side by side: in the same passes, which alone count then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from step_launches import LAUNCH_NS, MACHINE, launches

from maniple.models import model
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurement, Measurements


def timed_in_turn(times: Iterable[float]) -> Callable[..., Measurement]:
    """A timer that gives these milliseconds one after another, and fails when there are none left."""
    left = iter(times)

    def timed(launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int) -> Measurement:
        del cores, boxes, footprint
        return Measurement.of(launch, point, round(1e6 * next(left)), 0)

    return timed


BY_SAMPLE, BY_HEAD = "conv2d.forward", "linear.forward"
"""What stands for the two tasks of the table."""
APART, TOGETHER = (2.2, 1.4, 2.0, 1.5, 2.2, 2.0), (2.3, 2.2, 2.0, 2.0, 1.9, 2.0, 2.0, 1.9)


def milliseconds(costs: Measured, kinds: Iterable[Launch]) -> list[float]:
    return [1e-6 * (float(costs.task_ns(launch)[0]) - LAUNCH_NS) for launch in kinds]


def timed_apart(kinds: Iterable[Launch], measurements: Measurements) -> Measured:
    """What times them in other minutes."""
    costs = Measured(MACHINE, measurements, timer=timed_in_turn(APART))
    milliseconds(costs, kinds)
    costs.settle()
    return costs


def test_the_table_of_tasks_side_by_side() -> None:
    found, measurements = launches(model("digits_cnn", batch=8)), Measurements.here()
    kinds = found[BY_SAMPLE], found[BY_HEAD]
    apart = timed_apart(kinds, measurements)
    assert milliseconds(apart, kinds) == pytest.approx([2.2, 1.5])
    for left in (TOGETHER, ()):  # the second program finds them timed
        costs = Measured(MACHINE, measurements, timer=timed_in_turn(left))
        milliseconds(costs, kinds)
        assert costs.side_by_side(4) == 4
        assert milliseconds(costs, kinds) == pytest.approx([2.0, 2.0])
        assert [(one.timed, one.dropped) for one in measurements.tasks.values()] == [(7, 3), (7, 3)]
    for name, place in (("by sample", 0), ("by head", 1)):
        apart_ms, together_ms = ("   ".join(map(str, passes[place::2])) for passes in (APART, TOGETHER))
        assert f"{name:12s} {apart_ms}      {together_ms}" in (Measured.side_by_side.__doc__ or "")


def test_what_tasks_take_by_each_pass_alone() -> None:
    """A task with fewer passes takes the middle of its own."""
    found, measurements = launches(model("digits_cnn", batch=8)), Measurements.here()
    kinds = found[BY_SAMPLE], found[BY_HEAD]
    costs = timed_apart(kinds, measurements)
    key = min(measurements.tasks, key=lambda key: key.kind != BY_HEAD)
    measurements.tasks[key] = replace(measurements.tasks[key], passes=measurements.tasks[key].passes[1:])
    by_pass = [milliseconds(costs.freeze(back), kinds) for back in range(4)]
    assert by_pass == [pytest.approx(each) for each in ([2.2, 1.75], [2.2, 2.0], [2.0, 1.5], [2.2, 1.75])]


def test_where_one_task_was_timed_less_often_all_are_timed_anew() -> None:
    """The other's passes are of other minutes, though they be enough."""
    found, measurements = launches(model("digits_cnn", batch=8)), Measurements.here()
    kinds = found[BY_SAMPLE], found[BY_HEAD]
    for asked, times, told in [(kinds[:1], (9.0, 3.0, 3.0), [3.0]), (kinds, (8.0, 2.0, 1.0, 2.0, 1.0), [2.0, 1.0])]:
        costs = Measured(MACHINE, measurements, timer=timed_in_turn(times), passes=2)
        milliseconds(costs, asked)
        costs.side_by_side(2)
        assert milliseconds(costs, asked) == pytest.approx(told)


def test_tasks_of_different_runoffs_were_not_timed_side_by_side() -> None:
    """Each has passes enough, of other minutes; so have those to which a runoff added the one it had time for."""
    found, measurements, now = launches(model("digits_cnn", batch=8)), Measurements.here(), iter(range(100))
    kinds = found[BY_SAMPLE], found[BY_HEAD]
    runs = [(kinds[:1], [3.0] * 3), (kinds[1:], [1.0] * 3), (kinds, [2.0] * 4), (kinds[:1], []), (kinds, [])]
    for asked, times in runs:
        costs = Measured(MACHINE, measurements, timer=timed_in_turn(times), passes=2)
        milliseconds(costs, asked)
        assert costs.side_by_side(2) == 2
    assert milliseconds(costs, kinds) == pytest.approx([2.0, 2.0])
    timer = timed_in_turn([9.0] * 2)
    short = Measured(MACHINE, measurements, timer=timer, time_box_s=1.0, clock=lambda: float(next(now)))
    milliseconds(short, kinds)
    assert short.side_by_side(5) == 1
    again = Measured(MACHINE, measurements, timer=timed_in_turn([4.0] * 6), passes=2)
    milliseconds(again, kinds)
    assert again.side_by_side(3) == 3
    assert milliseconds(again, kinds) == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize(("whole", "medians", "dropped"), [(0, [2.2, 1.5], 0), (2, [2.2, 2.0], 0), (3, [2.0, 2.0], 3)])
def test_passes_that_are_too_few_to_stand_alone_are_added_to_the_earlier_ones(
    whole: int, medians: list[float], dropped: int
) -> None:
    """A pass that has begun is ended, so that both tasks have as many: the clock says that one takes a second."""
    found, measurements, now = launches(model("digits_cnn", batch=8)), Measurements.here(), iter(range(100))
    kinds = found[BY_SAMPLE], found[BY_HEAD]
    timed_apart(kinds, measurements)
    box_s = max(0.0, 2.0 * whole - 1)
    costs = Measured(
        MACHINE, measurements, timer=timed_in_turn(TOGETHER), time_box_s=box_s, clock=lambda: float(next(now))
    )
    milliseconds(costs, kinds)
    assert costs.side_by_side(5) == whole
    assert milliseconds(costs, kinds) == pytest.approx(medians)
    tasks = measurements.tasks.values()
    assert [(one.timed, one.dropped) for one in tasks] == [(3 + whole, dropped)] * 2
