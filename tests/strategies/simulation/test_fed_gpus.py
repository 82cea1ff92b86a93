"""GPUs as calibrating leaves them: what ports, runs and a device that ranks share cost in simulation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from fed_machine import FEED, fed
from lowered_step import lowered, planned

import maniple as mp
from maniple.models import model
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation.simulation import UNLIMITED, Simulation
from maniple.testing import local_worlds

pytestmark = pytest.mark.simulator


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_simulated_as_they_are_lowered_with_what_a_run_takes_on_top(seed: int) -> None:
    graph, machine, chance = model("digits_cnn", batch=8), fed(), Random(seed)
    simulation = Simulation(graph, machine, planned(graph, machine, "random", seed))
    for number in range(3):
        _, rows_ns = lowered(graph, machine, simulation.plan)
        assert simulation.makespan_ns == rows_ns + round(1e9 * FEED.run_s)
        other = planned(graph, machine, "random", 100 * seed + number)
        chosen = dict(chance.sample(other.operators, 2))
        reached = simulation.propose(chosen)
        assert reached == simulation.makespan_ns
        simulation.accept()


def test_a_limit_holds_for_the_whole_run() -> None:
    """A proposal is given up where it exceeds the limit by less than what a run takes beside its rows."""
    graph, machine = model("mlp", batch=8), fed("h100x2")
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel", 0))
    chosen = dict(planned(graph, machine, "random", 3).operators)
    reached = simulation.propose(chosen, limit_ns=UNLIMITED)
    simulation.reject()
    assert simulation.propose(chosen, limit_ns=reached) == reached
    simulation.reject()
    assert simulation.propose(chosen, limit_ns=reached - 1) > reached - 1
    simulation.reject()


def tasks(machine: Machine) -> list[list[tuple[int, int]]]:
    """When the tasks of the first two processors begin and end in a data parallel step."""
    graph = model("mlp", batch=64)
    timeline = Simulation(graph, machine, planned(graph, machine, "data_parallel", 0)).timeline()
    spans = [span for span in timeline.spans if span.category == "task"]
    lanes = sorted({span.lane for span in spans}, key=str)[:2]
    return [sorted((span.start_ns, span.end_ns) for span in spans if span.lane == lane) for lane in lanes]


def test_processors_of_one_device_take_turns() -> None:
    """Two ranks compute the same halves of a batch at the same time, or on one device one after the other.

    own devices   g0 |aaaa bbbb|      one device   g0 |aaaa      bbbb     |
                  g1 |aaaa bbbb|                   g1 |     aaaa      bbbb|
    """
    shared = fed("h100x2")
    own = replace(shared, processors=tuple(replace(each, device=None) for each in shared.processors))

    def overlap(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> int:
        return sum(max(0, min(end, over) - max(begin, start)) for begin, end in first for start, over in second)

    assert overlap(*tasks(shared)) == 0
    first, second = tasks(own)
    assert overlap(first, second) > 0.9 * sum(end - begin for begin, end in first)


def test_ports_are_what_a_lane_does_not_capture() -> None:
    """What costs the host's rate in simulation is what a device is given by itself, and nothing else is."""
    graph = model("digits_cnn", batch=4)
    machine = fed("h100x1")
    plan = planned(graph, machine, "data_parallel", 0)
    launches, _ = Simulation(graph, machine, plan).parts()
    ports = sorted(placed.name for placed in launches.values() if placed.rows.tasks.kernel.port)
    batch = {each.name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype)) for each in graph.inputs}
    (world,) = local_worlds(1, device="null")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(0.1), world=world) as trainer:
        for _ in range(3):
            trainer.step(**batch)
        pieces = trainer.captures()
    RankRuntime.of(world).close()
    eager = sorted(label.partition("[")[0] for labels, why, _ in pieces if why for label in labels)
    assert eager == ports == ["loss.fetch", "x.input", "y.input"]
