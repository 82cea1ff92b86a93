"""Scratch of steps: measured with the time of a body, and a part of what a step is predicted to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import torch
from step_launches import launches

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.process.taken_memory import Taken
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.schedule.launch import Launch
from maniple.runtime.storage.scratchpad import Scratchpad
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurements, frames, measure, step_bytes
from maniple.strategies.cost_model.scratch import scratch_bytes
from maniple.strategies.simulation.simulation import Simulation

SGD = mp.SGD(lr=0.1, momentum=0.9)


def network(batch: int = 8) -> mp.Graph:
    g = mp.Graph("convolutions")
    h = g.relu(g.conv2d(g.input("x", (batch, 3, 16, 16)), 8, 3, padding=1))
    h = g.relu(g.conv2d(h, 16, 3, padding=1))
    g.loss(g.cross_entropy(g.linear(g.flatten(h), 10), g.input("y", (batch,), dtype="int64")))
    return g


def test_a_body_is_heard_when_it_is_timed() -> None:
    (launch, *_) = launches(network()).values()

    def bind(_: int, __: Sequence[torch.Tensor | None], ___: int) -> Callable[[], object]:
        held = torch.empty(512, dtype=torch.int8)

        def run() -> None:
            part = torch.empty(1024, dtype=torch.int8)
            other = torch.empty(3072, dtype=torch.int8)
            del part, other
            held.zero_()

        return run

    own = replace(launch, binder=bind)
    found = measure(own, 0, 1, frames(own, [0]), 1 << 10)
    assert (found.kept, found.peak) == (512, 4096)


class Turning:
    """Binds a body that has 2,048 bytes of its processor's scratchpad, and takes 1,024 more."""

    pure = True

    def __init__(self) -> None:
        self.shared = Scratchpad()

    def eager(self, point: int) -> str:
        del point
        return ""

    def signature(self, point: int) -> str:
        del point
        return "turning"

    def pad(self, point: int) -> Scratchpad:
        del point
        return self.shared

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        del point, views, cores
        mine = self.shared.turn().view((2048,), torch.uint8, torch.empty(0))
        return lambda: mine.fill_(0).add_(torch.empty(1024, dtype=torch.uint8)[0])


def test_what_a_body_has_of_a_scratchpad_is_counted_where_it_is_timed() -> None:
    (launch, *_) = launches(network()).values()
    own = replace(launch, binder=Turning())
    found = measure(own, 0, 1, frames(own, [0]), 1 << 10)
    assert (found.kept, found.shared) == (0, 2048)
    assert 1024 <= found.peak <= 1024 + 64


@final
class Told(Analytic):
    """Costs that say what bodies take: convolutions 100 while they run, others 50 of the scratchpad; all keep 1."""

    def scratch(self, launch: Launch) -> Sequence[Taken]:
        size, shared = (100, 5) if launch.kind.startswith("conv2d") else (10, 50)
        return [Taken(1, size + point.processor, shared) for point in launch.points]


def test_a_memory_holds_what_bodies_keep_and_the_most_of_each_of_its_processors() -> None:
    """Of processor 0 a convolution takes 100 at most, of processor 1 101; others have 50 of each scratchpad."""
    graph, machine = network(), mp.Machine.cpu(1, ranks=2)
    plan = mp.search(graph, machine, strategy="data_parallel")
    schedule = lower(training_step(graph, plan, machine, SGD), FragmentCache(machine))
    tasks = [sum(p.processor == number for one in schedule.launches for p in one.points) for number in range(2)]
    costs = Told(machine)
    assert scratch_bytes(schedule, costs) == (tasks[0] + 100 + 50, tasks[1] + 101 + 50)
    assert scratch_bytes(schedule, Analytic(machine)) == (0, 0)
    with_it, without = (Simulation(graph, machine, plan, each, SGD).allocated_bytes() for each in (costs, None))
    assert with_it is not None
    assert without is not None
    assert [a - b for a, b in zip(with_it, without, strict=True)] == [tasks[0] + 150, tasks[1] + 151]


def test_a_step_of_measured_tasks_is_predicted_to_take_what_a_rank_finds() -> None:
    graph, machine = network(), mp.Machine.cpu(1)
    plan = mp.search(graph, machine, strategy="data_parallel")
    costs = Measured(machine, Measurements.here(), passes=1, footprint=step_bytes(graph))
    for launch in training_step(graph, plan, machine, SGD).launches:
        costs.task_ns(launch)
    world = World.solo(cores=1)
    try:
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            found = trainer.memory()[0]["predicted"]
    finally:
        RankRuntime.of(world).close()
    instances = Simulation(graph, machine, plan, None, SGD).allocated_bytes()
    assert instances is not None
    assert found > instances[0]
    assert Simulation(graph, machine, plan, costs.freeze(), SGD).allocated_bytes() == (found,)
