"""Pipelines without a flush in simulation: the rows that run, the period, the ramp and the bytes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from chained_stages import OPTIMIZERS, batches, chain, flowing

import maniple as mp
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.runtime.observe.timeline import Kind
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.simulation.stage_table import stage_table

pytestmark = pytest.mark.simulator
RULES = ("latest", "stash", "vertical_sync", "spectrain", "nesterov", "2bw")
MOMENTUM = OPTIMIZERS["momentum"][0]


def simulated(graph: mp.Graph, plan: Plan, machine: Machine) -> Simulation:
    return Simulation(graph, machine, plan, optimizer=MOMENTUM)


@pytest.mark.parametrize(
    ("rule", "split"), [("latest", 1), ("stash", 2), ("vertical_sync", 1), ("spectrain", 2), ("2bw", 2)]
)
def test_the_rows_are_those_that_a_trainer_runs(rule: str, split: int) -> None:
    """By number: names, bytes, what waits for what within a run and from run to run, and what is allocated."""
    graph = chain(2)
    plan = flowing(graph, 2, rule, split)
    with mp.Trainer(graph, plan, optimizer=MOMENTUM, seed=1) as trainer:
        schedule = trainer.schedule
        simulation = simulated(graph, plan, trainer.machine)
    names = {row.number: row.name for row in simulation.name_rows()}
    assert [names[int(row)] for row in simulation.ledger.alive] == [schedule.label(row) for row in range(len(schedule))]
    assert simulation.bytes == schedule.total_bytes
    starts, after = simulation.ledger.columns()[2]
    waits = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    turns = set(zip(waits.tolist(), after.tolist(), strict=True))
    assert set(schedule.edges()) <= turns
    assert simulation.flow is not None
    assert list(simulation.flow.schedule.carries()) == list(schedule.carries())
    assert simulation.flow.schedule.lags == schedule.lags


@pytest.mark.parametrize("rule", RULES)
def test_what_is_recorded_of_a_run_is_what_is_drawn_of_it(rule: str) -> None:
    """In the steady state every row runs once in each run; a processor takes those of stages in the order drawn."""
    graph = chain(3)
    plan = flowing(graph, 3, rule)
    with mp.Trainer(graph, plan, optimizer=MOMENTUM, seed=1) as trainer:
        seen = [trainer.timeline() for _ in trainer.run({"x": x, "y": y} for x, y in batches(9))]
        timeline = simulated(graph, plan, trainer.machine).timeline()
    passes = (".forward[", ".backward[", "_gradient[")

    def lanes(events: list[tuple[int, int, str, str]]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for _, _, lane, name in sorted(events):
            found.setdefault(lane, []).append(name)
        return found

    last = max(event.run for event in timeline.events)
    drawn = [
        (event.time_ns, event.row, event.lane, event.name)
        for event in timeline.events
        if event.kind == Kind.STARTED and event.run == last and event.category == "task"
    ]
    ran = [
        (event.time_ns, event.row, event.lane, event.name)
        for event in seen[4].events
        if event.kind == Kind.STARTED and event.category == "task"
    ]
    assert sorted(name for *_, name in drawn) == sorted(name for *_, name in ran)
    of_stages = [[event for event in events if any(mark in event[3] for mark in passes)] for events in (drawn, ran)]
    assert lanes(of_stages[0]) == lanes(of_stages[1])


def balanced(
    stages: int, batch: int = 4096, width: int = 512, rule: str = "stash", parts: int = 0
) -> tuple[mp.Graph, Plan, Machine]:
    """Stages that take equally long, by processors as fast as their stages are large, and links of no price."""
    graph = chain(stages, batch, width)
    plan, machine = flowing(graph, stages, rule, parts=parts), Machine.preset(f"p100x{stages}")
    links = tuple(replace(link, bandwidth=1e18, latency_s=0.0) for link in machine.links)
    machine = replace(machine, links=links)
    work = np.asarray(lanes_of(simulated(graph, plan, machine)))
    share = (work / work.max()).tolist()
    processors = tuple(
        replace(one, peaks=(("float64", one.peak("float64") * share[one.id]),), launch_s=one.launch_s / share[one.id])
        for one in machine.processors
    )
    memories = tuple(replace(one, bandwidth=one.bandwidth * share[one.id]) for one in machine.memories)
    return graph, plan, replace(machine, processors=processors, memories=memories)


def lanes_of(simulation: Simulation) -> list[int]:
    """What each processor has to do in a run."""
    assert simulation.flow is not None
    durations, processor = simulation.ledger.columns()[0], simulation.flow.schedule.processor
    return [int(durations[processor == each].sum()) for each in range(len(simulation.machine.processors))]


@pytest.mark.parametrize("stages", [2, 4])
def test_balanced_stages_have_no_bubble_and_the_ramp_is_a_round_trip(stages: int) -> None:
    """PipeDream's table: a mini-batch every F + B, the first after p (F + B).

    Less what a stage does beside the backward of the one before it: its gradients of weights, and updates.
    """
    simulation = simulated(*balanced(stages))
    work = lanes_of(simulation)
    assert max(work) - min(work) < 1e-3 * max(work)
    assert simulation.makespan_ns == pytest.approx(max(work), rel=1e-3)
    columns, names = simulation.ledger.columns()[0], {row.number: row.name for row in simulation.name_rows()}
    beside = [
        int(duration)
        for duration, row in zip(columns, simulation.ledger.alive, strict=True)
        if not names[int(row)].endswith("@p0")
        and ("weight_gradient" in names[int(row)] or ".update" in names[int(row)])
    ]
    assert simulation.predict().ramp_ns == pytest.approx(sum(work) - sum(beside), rel=0.02)


@pytest.mark.parametrize(("stages", "parts"), [(2, 2), (4, 4), (4, 6)])
def test_balanced_stages_of_2bw_have_no_bubble(stages: int, parts: int) -> None:
    """A mini-batch every m (F + B), without the (p - 1) (F + B) more that a flush takes."""
    simulation = simulated(*balanced(stages, 8192, 512, "2bw", parts))
    work = lanes_of(simulation)
    assert max(work) - min(work) < 2e-3 * max(work)
    assert simulation.makespan_ns == pytest.approx(max(work), rel=2e-3)


def test_the_critical_path_of_a_period_is_that_of_the_busiest_stage() -> None:
    graph, machine = chain(3, 64, 64), Machine.preset("p100x3")
    found = simulated(graph, flowing(graph, 3, "stash"), machine).predict()
    assert sum(end - start for _, start, end in found.critical_path) == found.step_ns
    assert {name.rpartition("@p")[2] for name, _, _ in found.critical_path} == {"2"}  # the loss is there besides


def test_the_table_of_stages_shows_the_ramp_and_mini_batches() -> None:
    graph, plan, machine = balanced(2)
    table = stage_table(simulated(graph, plan, machine), 28)
    cells = [line.split()[2:] for line in table]
    assert [list(dict.fromkeys(cell for cell in row if cell != "--"))[:6] for row in cells] == [
        ["F0", "F1", "B0", "F2", "B1", "F3"],
        ["F0", "B0", "F1", "B1", "F2", "B2"],
    ]


def test_who_keeps_more_versions_is_given_more_bytes() -> None:
    """Of four stages of one weight and bias each: PipeDream's 4 3 2 1 versions of weights, vertical sync's 4 4 4 4."""
    graph, machine = chain(4, 16, 64), Machine.preset("cpu:4x1")
    held = {rule: simulated(graph, flowing(graph, 4, rule), machine).predict() for rule in RULES}
    assert all(found.planned for found in held.values())
    weight, bias = 64 * 64 * 8, 64 * 8
    latest = np.asarray(held["latest"].memory_bytes)
    assert (np.asarray(held["stash"].memory_bytes) - latest).tolist() == [3 * weight, 2 * weight, weight, 0]
    sync = [3 * weight, 3 * weight + bias, 3 * weight + 2 * bias, 3 * weight + 3 * bias]
    assert (np.asarray(held["vertical_sync"].memory_bytes) - latest).tolist() == sync


@pytest.mark.parametrize("seed", range(4))
def test_a_proposal_is_timed_as_the_plan_that_it_gives(seed: int) -> None:
    chance = Random(seed)
    graph, machine = chain(2, 16, 32), Machine.preset("p100x4")
    simulation = simulated(graph, flowing(graph, 2, chance.choice(RULES), 2), machine)
    before, plan = simulation.makespan_ns, simulation.plan
    config = plan.operator("linear")
    names = [name for name, _ in config.degrees]
    degrees = tuple((name, 1) for name in names)
    other = replace(config, degrees=degrees, processors=(config.processors[0],))
    two = {"linear": other, "relu": replace(plan.operator("relu"), processors=config.processors[::-1])}
    found = simulation.propose(two)
    assert found == simulated(graph, simulation.plan, machine).makespan_ns
    simulation.reject()
    assert (simulation.makespan_ns, simulation.plan) == (before, plan)
