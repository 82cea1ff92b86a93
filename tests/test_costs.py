"""Costs by name: measured here and kept, a file, or refused; searches with them, and what predictions are made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from naive_roofline import task_ns

import maniple as mp
from maniple import cli, search_loop
from maniple.costs import NamedCosts, costs_of, costs_of_plan, survey_costs
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch
from maniple.search_limits import Limits
from maniple.strategies.cost_model import measured
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import (
    Measurement,
    Measurements,
    read_measurements,
    write_measurements,
)
from maniple.strategies.cost_model.store import Store
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.named.expert import Expert
from maniple.strategies.named.model_parallel import ModelParallel
from maniple.strategies.search import memory_fit, runoff
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.soap import Soap

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.simulator
MACHINE = Machine.preset("cpu:2x1")
MODEL = """
import maniple as mp

def small():
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 3), y))
    return graph
"""


@mp.operator("b n -> b n")
def scaled_by_helper(x: torch.Tensor) -> torch.Tensor:
    return halved(x)


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def small(width: int = 4) -> mp.Graph:
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, width)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(x), 3), y))
    return graph


def wide() -> mp.Graph:
    """Layers whose work is worth splitting."""
    graph = mp.Graph("wide")
    x, y = graph.input("x", (256, 256)), graph.input("y", (256,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 256)), 64), y))
    return graph


class Timer:
    """Measures nothing: every task takes three times its roofline, the launch included."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int
    ) -> Measurement:
        del cores, boxes, footprint
        self.calls += 1
        launch_ns = round(1e9 * MACHINE.processor(0).launch_s)
        return Measurement.of(launch, point, 3 * task_ns(launch, point, MACHINE) - launch_ns, 0)


@pytest.fixture
def timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timer:
    """What stands in for the clock, with a cache of its own."""
    made = Timer()
    monkeypatch.setenv("MANIPLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "Measured", partial(measured.Measured, timer=made))
    return made


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


def test_what_one_program_measured_the_next_one_knows(timer: Timer) -> None:
    plan = DataParallel().plan(Problem(small(), MACHINE))
    found = []
    for _ in range(2):
        with costs_of("measured", small(), MACHINE) as costs:
            found.append(Simulation(small(), MACHINE, plan, costs).predict())
        calls = timer.calls
    assert calls == timer.calls > 4
    assert found[0].step_ns == found[1].step_ns
    assert dict(found[1].sources).keys() == {"analytic", "measured"}
    assert dict(found[1].sources)["measured"] > 4


def test_a_plan_is_predicted_with_tasks_that_are_settled_and_a_survey_that_was_cut_off_is_gone_on_with(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt leaves single passes behind; who asks for these tasks next times them as often as any."""

    def interrupted(_: Measured) -> None:
        raise KeyboardInterrupt

    plan = DataParallel().plan(Problem(small(), MACHINE))
    with monkeypatch.context() as patch:
        patch.setattr(Measured, "settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            costs_of_plan("measured", small(), MACHINE, plan)
    with costs_of("measured", small(), MACHINE) as left:
        assert left is not None
        assert {len(one.passes) for one in left.measurements.tasks.values()} == {1}
    for _ in range(2):
        costs = costs_of_plan("measured", small(), MACHINE, plan)
        assert costs is not None
        assert not costs.measuring
        assert {len(one.passes) for one in costs.measurements.tasks.values()} == {measured.PASSES}
        assert timer.calls == measured.PASSES * len(costs.measurements.tasks)
    assert costs_of_plan("analytic", small(), MACHINE, plan) is None


def test_a_search_measures_before_it_begins_and_after_it_ends_and_not_while_it_goes_on(timer: Timer) -> None:
    costs = survey_costs("measured", small(), MACHINE)
    assert costs is not None
    assert not costs.measuring
    known, calls, plans = timer.calls, [], []
    for _ in range(2):
        plans.append(mp.search(small(), MACHINE, strategy="soap", proposals=40, costs="measured"))
        calls.append(timer.calls)
    assert known < calls[0] == calls[1]
    assert plans[0] == plans[1]
    assert dict(dict(plans[0].explanation)[""])["costs"] == "measured"
    assert plans[0].predicted.bound_s is None
    again = Simulation(small(), MACHINE, plans[0], costs)
    assert round(1e9 * plans[0].predicted.step_s) == again.makespan_ns
    assert again.makespan_ns > Simulation(small(), MACHINE, plans[0]).makespan_ns


class LuckyTimer(Timer):
    """Whole operators are timed in a minute in which they take no time at all; in the next they take what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: Counter[object] = Counter()

    def __call__(
        self, launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int
    ) -> Measurement:
        honest = super().__call__(launch, point, cores, boxes, footprint)
        self.passes[launch.name, len(launch.points), tuple(boxes)] += 1
        lucky = len(launch.points) == 1 and self.passes[launch.name, 1, tuple(boxes)] <= measured.PASSES
        return Measurement.of(launch, point, 1, 0) if lucky else honest


@pytest.mark.parametrize("strategy", ["soap", "hill_climb", "auto"])
def test_a_plan_that_lucky_measurements_found_is_not_taken(
    strategy: str, timer: Timer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the survey's misleads; a search that times what comes near side by side takes a plan as fast as any."""
    lucky, graph, file = LuckyTimer(), wide(), str(tmp_path / "survey.json")
    monkeypatch.setattr(measured, "Measured", partial(measured.Measured, timer=lucky))
    survey, honest = (
        survey_costs("measured", graph, MACHINE),
        measured.Measured(MACHINE, Measurements.here(), timer=timer),
    )
    assert survey is not None
    write_measurements(file, survey.measurements)
    took = {}
    for costs in (file, "measured"):
        plan = mp.search(graph, MACHINE, strategy=strategy, proposals=300, costs=costs)
        took[costs] = Simulation(graph, MACHINE, plan, honest).makespan_ns
        assert ("step_s of data_parallel" in dict(dict(plan.explanation)[""])) == (
            costs == "measured" or strategy == "auto"
        )
    named = [DataParallel(), Expert(), ModelParallel()]
    least = min(Simulation(graph, MACHINE, s.plan(Problem(graph, MACHINE)), honest).makespan_ns for s in named)
    assert took[file] > 1.2 * least
    assert took["measured"] <= least
    assert round(1e9 * (plan.predicted.step_s or 0.0)) == took["measured"]


@pytest.mark.parametrize("has_room", [True, False])
def test_a_plan_that_the_runtime_has_no_room_for_is_not_taken(
    timer: Timer, monkeypatch: pytest.MonkeyPatch, *, has_room: bool
) -> None:
    """Data parallelism comes out first, and fits by the estimate that searches go by; not by the runtime's plan."""
    graph, named = wide(), DataParallel().plan(Problem(wide(), MACHINE))
    monkeypatch.setattr(measured, "Measured", partial(measured.Measured, timer=LuckyTimer()))
    sizes = [memory.capacity_bytes for memory in MACHINE.memories]

    def allocated(simulation: Simulation) -> tuple[int, ...]:
        unfit = not has_room and simulation.plan.operators == named.operators
        return tuple(size + (1 if unfit else -1) for size in sizes)

    monkeypatch.setattr(memory_fit, "_counted_beyond", lambda _: (1,) * len(sizes))  # so all is looked at closely
    monkeypatch.setattr(Simulation, "allocated_bytes", allocated)
    plan = mp.search(graph, MACHINE, strategy="soap", proposals=300, costs="measured")
    assert timer.calls == 0
    assert (plan.operators == named.operators) == has_room
    assert plan.predicted.memory_bytes is not None


@pytest.mark.parametrize(
    "place",
    [(runoff, "finalists"), (Measured, "side_by_side"), (Store, "add"), (runoff, "decide")],
    ids=["before", "timing", "keeping", "deciding"],
)
def test_an_interrupt_in_the_runoff_keeps_the_plan(
    place: tuple[object, str], timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is predicted with what the cache has, so that others predict the same of it."""
    costs, calls = NamedCosts("measured", wide(), MACHINE), list[int]()
    survey = costs.survey()

    def interrupted(*_: object) -> None:
        calls.append(timer.calls)
        raise KeyboardInterrupt

    monkeypatch.setattr(*place, interrupted)
    plan = mp.search(wide(), MACHINE, strategy="soap", proposals=40, costs=costs)
    assert len(calls) == 1
    assert "found by" not in dict(dict(plan.explanation)[""])
    assert round(1e9 * (plan.predicted.step_s or 0.0)) == Simulation(wide(), MACHINE, plan, survey).makespan_ns
    assert costs.latest is not None
    with costs_of("measured", wide(), MACHINE) as kept:
        assert kept is not None
        assert costs.latest.measurements.tasks == kept.measurements.tasks


def test_a_search_whose_measurements_could_not_be_kept_is_refused_before_it_begins(
    timer: Timer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runoff would lose its plan."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MANIPLE_CACHE", str(tmp_path / "file"))
    with pytest.raises(RequestError, match="have MANIPLE_CACHE name a folder that can"):
        mp.search(small(), MACHINE, strategy="soap", proposals=40, costs="measured")
    assert timer.calls == 0


def test_nothing_is_put_side_by_side_that_cannot_be_timed(
    timer: Timer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a file of measurements, with the roofline, or where a search has nothing beside what it found."""
    survey, file = survey_costs("measured", small(), MACHINE), str(tmp_path / "survey.json")
    assert survey is not None
    assert timer.calls > 0
    write_measurements(file, survey.measurements)
    monkeypatch.setattr(Measured, "side_by_side", None)
    monkeypatch.setattr(NamedCosts, "side_by_side", None)
    for strategy, costs in (("soap", file), ("soap", "analytic"), ("reinforce", "measured"), ("optcnn", "measured")):
        plan = mp.search(small(), MACHINE, strategy=strategy, proposals=5, costs=costs)
        assert (plan.strategy, "found by" in dict(dict(plan.explanation).get("", ()))) == (strategy, False)


def test_what_a_survey_measured_and_no_cache_keeps_is_known_side_by_side(timer: Timer) -> None:
    graph = mp.Graph("written")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(cast("mp.Tensor", scaled_by_helper(x)), 3), y))
    costs = NamedCosts("measured", graph, MACHINE)
    survey = costs.survey()
    assert survey is not None
    written, calls = {key for key in survey.measurements.tasks if not key.lasts}, timer.calls
    again = costs.side_by_side([DataParallel().plan(Problem(graph, MACHINE))])
    assert again is not None
    assert again.middle is costs.latest is not survey
    assert costs.latest is not None
    assert written <= costs.latest.measurements.tasks.keys()
    assert timer.calls - calls == measured.RUNOFF_PASSES * sum(
        one.dropped > 0 for one in costs.latest.measurements.tasks.values()
    )


def test_what_was_not_asked_for_stands_in_for_others_in_any_order(timer: Timer) -> None:
    """A file's tasks are neighbours from the beginning: no task's time depends on which were asked for before."""
    for width in (4, 64):
        assert survey_costs("measured", small(width), MACHINE)
    plan = DataParallel().plan(Problem(small(16), MACHINE))
    costs = survey_costs("analytic", small(), MACHINE)
    assert costs is None
    with costs_of("measured", small(), MACHINE) as found:
        assert found is not None
        only = measured.Measured(MACHINE, found.measurements, measuring=False)
    tasks = [block.rows.tasks for block in Simulation(small(16), MACHINE, plan)._table.launches.values()]
    launches = [found.launch() for found in tasks]
    forth = [only.task_ns(launch).tolist() for launch in launches]
    fresh = measured.Measured(MACHINE, found.measurements, measuring=False)
    assert [fresh.task_ns(launch).tolist() for launch in reversed(launches)] == forth[::-1]
    told = {launch.name: fresh.sources(found)[0] for launch, found in zip(launches, tasks, strict=True)}
    assert told["linear.forward"] == "interpolated"
    assert max(fresh.errors()) < 0.01


def test_a_search_with_costs_of_its_own_hires_nobody(timer: Timer) -> None:
    """Other processes know the graph and the machine, and would predict by the roofline."""
    plans = [
        mp.search(small(), MACHINE, strategy="soap", proposals=40, costs="measured", cores=cores) for cores in (1, 2)
    ]
    assert plans[0] == plans[1]
    strategy, limits = Soap(), Limits(0.0, None, 40, 2)
    assert search_loop._pool(strategy, Problem(small(), MACHINE), limits) is not None
    costs = survey_costs("measured", small(), MACHINE)
    assert search_loop._pool(strategy, Problem(small(), MACHINE, costs=costs), limits) is None
    assert timer.calls > 0


def test_bodies_that_a_user_wrote_are_measured_anew_by_the_next_program(timer: Timer) -> None:
    """Their key covers neither what they call nor what they hold, so nothing of them is kept on disk."""
    graph, factor = mp.Graph("written"), 2.0
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    (h,) = graph.call(lambda h: h * factor, cast("mp.Tensor", scaled_by_helper(x)))
    graph.loss(graph.cross_entropy(graph.linear(h, 3), y))
    measured_here = survey_costs("measured", graph, MACHINE)
    assert measured_here is not None
    calls, tasks = timer.calls, measured_here.measurements.tasks
    written = {key for key in tasks if not key.lasts}
    assert {key.kind.partition(".")[0] for key in written} == {"opaque", "scaled_by_helper"}
    again = survey_costs("measured", graph, MACHINE)
    assert again is not None
    assert timer.calls == calls + measured.PASSES * len(written)
    with costs_of("measured", small(), MACHINE) as kept:
        assert kept is not None
        assert kept.measurements.tasks.keys() == tasks.keys() - written


def test_what_a_search_prints_and_saves_is_what_it_compared(
    timer: Timer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time box has ended before the first task: what was interpolated is not measured once the plan is found."""
    monkeypatch.setattr("maniple.strategies.search.survey.survey", lambda *_: None)
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    given = ("--machine", "cpu:2x1", "--strategy", "optcnn", "--costs", "measured", "--json")
    assert status_of("search", f"{tmp_path / 'model.py'}:small", *given) == 0
    found = json.loads(capsys.readouterr().out)
    assert timer.calls == 0
    assert found["sources"].keys() == {"analytic"}
    reasons = found["plan"]["explanation"][""]
    assert (found["step_s"], reasons["costs"]) == (reasons["simulated_s"], "measured")


@pytest.mark.parametrize(
    ("name", "machine", "said"),
    [
        ("measured", "p100x2", "p100x2 has processors of kind gpu, and their tasks are measured where there is one"),
        (
            "measurd",
            "cpu:2",
            "measurd: cannot be read; expected analytic, measured, or a file.*did you mean 'measured'",
        ),
    ],
)
def test_wrong_costs_are_refused(name: str, machine: str, said: str) -> None:
    with pytest.raises(RequestError, match=said), costs_of(name, small(), Machine.preset(machine)):
        pass


def test_searches_that_prove_refuse_measured_costs(timer: Timer) -> None:
    assert timer.calls == 0
    with pytest.raises(RequestError, match="strategy 'exhaustive': its bounds hold for analytic costs only"):
        mp.search(small(), MACHINE, strategy="exhaustive", proposals=5, costs="measured")


def test_commands_say_where_their_numbers_come_from(
    timer: Timer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan found with measured costs is simulated with them, unless others are asked for."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    saved = str(tmp_path / "plan.json")
    source = f"{tmp_path / 'model.py'}:small"

    def shown() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    given = ("--machine", "cpu:2x1", "--proposals", "10", "--costs", "measured", "-o", saved, "--json")
    assert status_of("search", source, *given) == 0
    found = shown()
    assert found["lower_bound_s"] is None
    assert found["sources"]["measured"] > 0
    assert status_of("simulate", saved, "--json") == 0
    simulated = shown()
    assert (simulated["step_s"], simulated["sources"]) == (found["step_s"], found["sources"])
    assert status_of("simulate", saved, "--json", "--costs", "analytic") == 0
    assert shown()["sources"] == {"analytic": sum(found["sources"].values())}
    assert status_of("compare", saved, saved, "--json", "--costs", "analytic") == 0
    plans = shown()["plans"]
    assert plans[0]["step_s"] < found["step_s"]
    exported = read_measurements(next((tmp_path / "cache").glob("costs-*.json")))
    passes = {(one.timed, len(one.passes)) for one in exported.tasks.values()}
    beside = measured.PASSES + measured.RUNOFF_PASSES
    assert passes == {(measured.PASSES, measured.PASSES), (beside, measured.RUNOFF_PASSES)}
    assert sum(one.timed for one in exported.tasks.values()) == timer.calls
