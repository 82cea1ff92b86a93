"""Law 1 for optimizers: under any plan they give torch's numbers, also with rates that change while steps run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import run_on_ranks
from tolerance import violations
from trained_optimizers import BIASES, OPTIONS, STEPS, Reference, batches, network, optimizer_by

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache
from maniple.operators.plan.plan import OperatorPlan
from maniple.operators.plan.weight_home import default_homes
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.operators.training.optimizer_text import optimizer_named, optimizer_of, plain_optimizer
from maniple.runtime.analysis.schedule_builder import ScheduleBuilder
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.strategies.simulation.simulation import Simulation

WORLDS = ((1, 1), (1, 3), (2, 1), (2, 2), (4, 1), (3, 1))
Ran = tuple[list[float], dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, int]]


def train(
    optimizer: AbstractOptimizer,
    world: tuple[int, int],
    plan: int | Callable[[World], mp.Plan],
    change: Callable[[mp.Trainer, int], None] = lambda _trainer, _step: None,
) -> list[Ran]:
    """Train with two steps under way, on every rank, under a plan or the random one of a seed."""

    def body(here: World) -> Ran:
        drawn = partial(mp.search, network(), host_machine(here), strategy="random", optimizer=optimizer)
        found = drawn(seed=plan) if isinstance(plan, int) else plan(here)
        with mp.Trainer(network(), found, optimizer=optimizer, world=here) as trainer:
            start = trainer.parameters()

            def given() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
                for step, batch in enumerate(batches(STEPS)):
                    change(trainer, step)
                    yield batch

            losses = list(trainer.run(given()))
            return losses, start, trainer.parameters(), trainer.bytes()

    return run_on_ranks(world[0], body, processors=world[1])


def assert_equal(found: list[Ran], reference: Reference, wanted: list[float]) -> None:
    losses, _, parameters, moved = found[0]
    assert max(abs(mine - its) for mine, its in zip(losses, wanted, strict=True)) <= 1e-10
    faults = [
        fault
        for name, value in reference.parameters.items()
        for fault in violations(name, parameters[name], value.detach(), 1e-10)
    ]
    assert faults == []
    assert moved["predicted"] == moved["measured"]
    assert all(other[0] == losses for other in found)


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=str)
def test_every_option_equals_torch(kind: str, options: dict[str, Any]) -> None:
    place = OPTIONS.index((kind, options))
    found = train(optimizer_by(kind, options), WORLDS[place % len(WORLDS)], place)
    reference = Reference(found[0][1], kind, options)
    assert_equal(found, reference, [reference.step(*batch) for batch in batches(STEPS)])


CUT = [
    # order, micro-batches of the 12 samples, ranks and the processors of each
    ("sequential", 5, (2, 1)),  # one stage, which accumulates over parts of 3, 3, 2, 2 and 2
    ("sequential", 2, (1, 3)),
    ("1f1b", 3, (2, 1)),
    ("gpipe", 4, (2, 1)),
]


@pytest.mark.parametrize("place", range(9, len(OPTIONS)), ids=lambda place: str(OPTIONS[place]))
def test_micro_batches_give_torchs_numbers(place: int) -> None:
    """One norm of the sums of all micro-batches, one step of the optimizer, and two such steps under way."""
    (order, micro_batches, world), (kind, options) = CUT[place % len(CUT)], OPTIONS[place]
    optimizer = optimizer_by(kind, options)

    def cut(here: World) -> mp.Plan:
        graph, machine = network(), host_machine(here)
        if order == "sequential":
            plan = mp.search(graph, machine, strategy="random", seed=micro_batches, optimizer=optimizer)
            return plan.with_pipeline(order=order, micro_batches=micro_batches)
        first = {"l1", "relu"}
        operators = tuple(
            (
                node.name,
                OperatorPlan(tuple((f.name, 1) for f in graph.bound(node).factors), (int(node.name not in first),)),
            )
            for node in graph.nodes
        )
        homes = default_homes(graph, operators, machine, optimizer)
        stages = [[name for name, _ in operators if (name in first) == early] for early in (True, False)]
        plan = mp.Plan(graph.fingerprint(), "two stages", operators, homes)
        return plan.with_pipeline(stages, order=order, micro_batches=micro_batches)

    found = train(optimizer, world, cut)
    reference = Reference(found[0][1], kind, options)
    assert_equal(found, reference, [reference.step(*batch) for batch in batches(STEPS)])


@settings(max_examples=max(6, settings().max_examples // 10))
@given(st.integers(0, 1 << 20))
def test_numbers_that_change_while_two_steps_are_under_way(seed: int) -> None:
    """Each step has the numbers that were set before it was submitted, though the one before it still runs."""
    chance = Random(seed)
    kind, options = chance.choice(OPTIONS)
    rates = {step: chance.uniform(0.001, 0.1) for step in range(STEPS) if chance.random() < 0.5}

    def change(trainer: mp.Trainer, step: int) -> None:
        if step in rates:
            trainer.hyper["lr"] = rates[step]

    found = train(optimizer_by(kind, options), chance.choice(WORLDS), seed, change)
    reference = Reference(found[0][1], kind, options)
    wanted = []
    for step, batch in enumerate(batches(STEPS)):
        for group in reference.groups if step in rates else ():
            group["lr"] = rates[step]
        wanted.append(reference.step(*batch))
    assert_equal(found, reference, wanted)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda own: torch.optim.lr_scheduler.StepLR(own, 3, 0.5),
    "cosine": lambda own: torch.optim.lr_scheduler.CosineAnnealingLR(own, 10),
    "one cycle": lambda own: torch.optim.lr_scheduler.OneCycleLR(own, 0.05, total_steps=STEPS + 1),
    "warm-up": lambda own: torch.optim.lr_scheduler.LambdaLR(own, lambda step: min(1.0, (step + 1) / 5)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("kind", "options"), [OPTIONS[4], OPTIONS[9]], ids=str)
def test_schedulers_of_torch_drive_it(schedule: str, kind: str, options: dict[str, Any]) -> None:
    def body(world: World) -> Ran:
        plan = mp.search(network(), host_machine(world), strategy="random", seed=3)
        with mp.Trainer(network(), plan, optimizer=optimizer_by(kind, options), world=world) as trainer:
            start, scheduler = trainer.parameters(), SCHEDULES[schedule](trainer.torch_optimizer())
            losses = []
            for batch in batches(STEPS):
                losses.append(trainer.step(*batch))
                scheduler.step()
            return losses, start, trainer.parameters(), trainer.bytes()

    found = run_on_ranks(2, body)
    reference = Reference(found[0][1], kind, options)
    scheduler, wanted = SCHEDULES[schedule](reference.optimizers[0]), []
    for batch in batches(STEPS):
        wanted.append(reference.step(*batch))
        scheduler.step()
    assert_equal(found, reference, wanted)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kind", "options"), [*OPTIONS[4:6], *OPTIONS[8:12:3], *OPTIONS[-4:-1]], ids=str)
def test_the_simulated_step_is_the_lowered_one(kind: str, options: dict[str, Any], seed: int) -> None:
    """Time, bytes and memory, states and the numbers that enter among them."""
    optimizer, graph = optimizer_by(kind, options), network()
    machine = mp.Machine.preset(("cpu:2", "cpu:2x1", "cpu:2x2", "p100x4")[seed % 4])
    plan = mp.search(graph, machine, strategy="random", seed=seed, optimizer=optimizer)
    simulation = Simulation(graph, machine, plan, optimizer=optimizer)
    other = mp.search(graph, machine, strategy="random", seed=seed + 100, optimizer=optimizer)
    for _ in range(2):
        program = training_step(graph, simulation.plan, machine, optimizer)
        cache = FragmentCache(machine)
        fragments = [cache.fragment(key) for key in program.keys(machine)]
        builder = ScheduleBuilder(machine, program.launches, program.regions(), fragments)
        schedule = builder.compose()
        _, begin = builder.order(schedule.successors)
        assert simulation.makespan_ns == int((begin + builder.durations).max())
        assert simulation.bytes == schedule.total_bytes
        assert schedule.memory_bytes() == dict(enumerate(simulation.memory_bytes.tolist()))
        simulation.propose(dict(other.operators), dict(other.weights))
        simulation.accept()


def test_a_search_takes_the_optimizer() -> None:
    """What it predicts is what is simulated with it, states and the norm among it; cores change nothing."""
    graph, machine = network(48), mp.Machine.preset("p100x4")
    optimizer = mp.optim.AdamW(clip_norm=1.0, groups=BIASES)
    found = [
        mp.search(graph, machine, strategy=strategy, proposals=60, optimizer=optimizer, cores=cores)
        for strategy, cores in (("soap", 1), ("soap", 2), ("optcnn", 1))
    ]
    for plan in found:
        simulation = Simulation(graph, machine, plan, optimizer=optimizer)
        assert round((plan.predicted.step_s or 0.0) * 1e9) == simulation.makespan_ns
        assert simulation.makespan_ns > Simulation(graph, machine, plan).makespan_ns
        assert max(simulation.memory_bytes) > max(Simulation(graph, machine, plan).memory_bytes)
    assert found[0].operators == found[1].operators


def test_optimizers_go_between_processes() -> None:
    for kind, options in OPTIONS:
        optimizer = optimizer_by(kind, options)
        assert optimizer_of(json.loads(json.dumps(plain_optimizer(optimizer)))) == optimizer
    assert optimizer_of(plain_optimizer(None)) is None
    with pytest.raises(mp.RequestError, match="--optimizer: no optimizer 'adamv'; did you mean"):
        optimizer_named("adamv", network())


@pytest.mark.parametrize(("kind", "options"), [OPTIONS[2], OPTIONS[7], OPTIONS[-1]], ids=str)
def test_a_training_goes_on_from_its_state_under_another_plan(kind: str, options: dict[str, Any]) -> None:
    """Ten steps are five, and five of another trainer, on other ranks, that took parameters and state."""
    optimizer = optimizer_by(kind, options)
    whole = train(optimizer, (1, 1), 0)[0]

    def half(
        here: World, seed: int, given: list[tuple[torch.Tensor, torch.Tensor]], held: list[dict[str, torch.Tensor]]
    ) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
        plan = mp.search(network(), host_machine(here), strategy="random", seed=seed, optimizer=optimizer)
        with mp.Trainer(network(), plan, optimizer=optimizer, world=here) as trainer:
            if held:
                trainer.load_state_dict(held[0])
                trainer.load_optimizer_state(held[1])
            losses = [trainer.step(*batch) for batch in given]
            return losses, [trainer.state_dict(), trainer.optimizer_state()]

    given = list(batches(STEPS))
    losses, held = run_on_ranks(2, lambda here: half(here, 1, given[:10], []))[0]
    later, last = run_on_ranks(1, lambda here: half(here, 2, given[10:], held), processors=3)[0]
    assert max(abs(mine - its) for mine, its in zip([*losses, *later], whole[0], strict=True)) <= 1e-10
    assert all(violations(name, last[0][name], value, 1e-10) == [] for name, value in whole[2].items())
    assert int(last[1]["step"]) == STEPS
