"""Memory that instances take in turn: never two at once, in whatever order steps end, and never another result."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from random import Random

import pytest
import torch
from hypothesis import settings
from planned_step import plans, program
from test_lanes import RUNS, clocks, has_ended, together, touches
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS, OPTIMIZER, Training, trained

import maniple as mp
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.lanes import binding
from maniple.runtime.lanes.binding import Storage
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.schedule.lane import Lanes, Layout, Step, StepKind
from maniple.runtime.schedule.lifetime import Lifetimes
from maniple.runtime.schedule.memory_plan import MemoryPlan, plan_memory
from maniple.runtime.schedule.schedule import Schedule
from maniple.runtime.storage.memory import Memory
from maniple.strategies.simulation.simulation import Simulation
from maniple.testing import local_worlds

Drawn = tuple[str, Schedule, Collection[int], bool]


@cache
def schedules() -> list[Drawn]:
    """Schedules, the regions that outlive them, and whether their ranks share memory; else an engine moves tiles."""
    found = []
    for turn, (label, graph, plan, machine) in enumerate(plans(settings().max_examples // 50, first=1)):
        step = program(graph, plan, machine)
        found.append((f"{label}, {turn % 2}", lower(step, FragmentCache(machine)), step.homes, turn % 2 == 0))
    return found


def laid_out(drawn: Drawn, rank: int) -> tuple[dict[int, tuple[Step, ...]], Mapping[int, MemoryPlan]]:
    """The lanes that a rank knows of, and what it plans."""
    _, schedule, lasting, shares = drawn
    ranks = range(len(schedule.machine.memories))
    near = ranks if shares else (rank,)
    storage = Storage(schedule, {rank: Memory(rank)}, lasting, near)
    lanes = Layout(schedule, (rank,), near, storage.temporary).lanes()
    storage.plan(lanes.lifetimes)
    others: list[Lanes] = [Layout(schedule, (other,), near).lanes() for other in near if other != rank]
    return together([lanes, *others]), storage.plans


def overlapping(schedule: Schedule, plan: MemoryPlan) -> Iterator[tuple[int, int]]:
    """Pairs of instances that have bytes in common."""
    sizes = {number: size_of(schedule, number) for number in plan.offsets}
    for one, other in combinations(plan.offsets, 2):
        start, second = plan.offsets[one], plan.offsets[other]
        if start < second + sizes[other] and second < start + sizes[one]:
            yield one, other


def size_of(schedule: Schedule, number: int) -> int:
    instance = schedule.instances[number]
    return instance.rect.volume * schedule.regions[instance.region].itemsize


def alive_together(schedule: Schedule, lanes: dict[int, tuple[Step, ...]], plan: MemoryPlan) -> list[tuple[int, int]]:
    """Instances that lie in one place though the waits of the lanes do not keep them apart; for shared memory."""
    known = clocks(schedule, lanes)
    users: dict[int, set[tuple[int, int]]] = {}
    for lane, steps in lanes.items():
        for index, step in enumerate(steps):
            for instance, _, _ in touches(schedule, step, lane):
                users.setdefault(instance, set()).add((lane, index))

    def through(one: int, run: int, other: int, later: int) -> bool:
        """Whether all that use one instance in a run have ended before any that use the other in a later one begin."""
        return all(
            has_ended(schedule, lanes, known, (before, run, place), (lane, later, index))
            for lane, index in users[other]
            for before, place in users[one]
        )

    return [
        (one, other)
        for one, other in overlapping(schedule, plan)
        if not (through(one, 1, other, 1) and through(other, 1, one, 2))
        and not (through(other, 1, one, 1) and through(one, 1, other, 2))
    ]


def test_no_two_instances_that_may_be_alive_together_overlap() -> None:
    saved = kept = 0
    for drawn in schedules():
        label, schedule, _, shares = drawn
        for rank in range(len(schedule.machine.memories)):
            if not shares:
                continue
            lanes, found = laid_out(drawn, rank)
            assert alive_together(schedule, lanes, found[rank]) == [], (label, rank)
            assert found[rank].bound <= found[rank].size <= found[rank].unshared
            saved, kept = saved + found[rank].unshared - found[rank].size, kept + found[rank].size
    assert 2 * saved > kept, "much of the memory is used more than once"


class Execution:
    """Runs of lanes whose steps begin and end in an order that is drawn, on bytes that know whose they are.

    Every instance takes its bytes when a step of a run uses it first; whoever uses it after that must find them as they
    were left. A movement of the copy engine goes on after its lane, and ends at any time.

    Args:
        drawn: what runs.
        rank: whose memory is watched.
        lanes: with waits.
        plan: where instances lie.
        chance: draws.
    """

    def __init__(
        self, drawn: Drawn, rank: int, lanes: dict[int, tuple[Step, ...]], plan: MemoryPlan, chance: Random
    ) -> None:
        self.schedule, self.rank, self.lanes, self.plan, self.chance = drawn[1], rank, lanes, plan, chance
        self.owner: list[tuple[int, int] | None] = [None] * (plan.size // 8 + 1)
        self.taken: set[tuple[int, int]] = set()
        self.counts: dict[int, int] = dict.fromkeys(lanes, 0)
        self.moved: dict[tuple[int, int], int] = {}
        self.moving: list[tuple[int, Step, int]] = []
        self.faults: set[str] = set()

    def used(self, step: Step) -> list[int]:
        """The instances of the watched memory that a step uses."""
        if step.kind == StepKind.START:
            found = [access.instance for access in self.schedule.accesses(step.row)]
        else:
            found = [instance for instance, _, _ in touches(self.schedule, step, self.rank)]
        return [instance for instance in found if instance in self.plan.offsets]

    def begin(self, step: Step, run: int) -> None:
        for instance in self.used(step):
            start = self.plan.offsets[instance] // 8
            if (instance, run) not in self.taken:
                self.taken.add((instance, run))
                size = -(-size_of(self.schedule, instance) // 8)
                self.owner[start : start + size] = [(instance, run)] * size
        self.look(step, run)

    def look(self, step: Step, run: int) -> None:
        for instance in self.used(step):
            start, size = self.plan.offsets[instance] // 8, -(-size_of(self.schedule, instance) // 8)
            if any(owner != (instance, run) for owner in self.owner[start : start + size]):
                self.faults.add(f"{self.schedule.label(step.row)} of run {run} lost instance {instance}")

    def ready(self, lane: int, step: Step, run: int) -> bool:
        lengths = {other: len(steps) for other, steps in self.lanes.items()}
        return all(
            (self.counts[other] if other >= 0 else self.moved.get((self.home(lane), -1 - other), 0))
            >= run * lengths.get(other, 1) + value
            for other, value in step.waits
        )

    def home(self, lane: int) -> int:
        """The memory whose engine moves what a lane starts."""
        return self.schedule.machine.memory_of(lane)

    def run(self) -> set[str]:
        """Take all steps of all runs, and tell what went wrong."""
        at = dict.fromkeys(self.lanes, 0)
        under_way: dict[int, tuple[Step, int]] = {}
        while True:
            able: list[tuple[str, int]] = [("end", lane) for lane in under_way]
            able += [("land", number) for number in range(len(self.moving))]
            for lane, steps in self.lanes.items():
                if lane not in under_way and at[lane] < RUNS * len(steps):
                    run, index = divmod(at[lane], len(steps))
                    if self.ready(lane, steps[index], run):
                        able.append(("begin", lane))
            if not able:
                break
            what, which = self.chance.choice(able)
            if what == "land":
                lane, step, run = self.moving.pop(which)
                self.look(step, run)
                engine = self.home(lane), step.row
                self.moved[engine] = self.moved.get(engine, 0) + 1
            elif what == "begin":
                run, index = divmod(at[which], len(self.lanes[which]))
                under_way[which] = self.lanes[which][index], run
                self.begin(self.lanes[which][index], run)
            else:
                step, run = under_way.pop(which)
                self.look(step, run)
                if step.kind == StepKind.START:
                    self.moving.append((which, step, run))
                at[which] += 1
                self.counts[which] += 1
        assert all(at[lane] == RUNS * len(steps) for lane, steps in self.lanes.items())
        return self.faults


def executed(drawn: Drawn, rank: int, seed: int, plan: MemoryPlan | None = None) -> set[str]:
    lanes, found = laid_out(drawn, rank)
    return Execution(drawn, rank, lanes, found[rank] if plan is None else plan, Random(seed)).run()


def test_whatever_order_steps_end_in_nobody_finds_what_another_wrote() -> None:
    for turn, drawn in enumerate(schedules()):
        for rank in range(len(drawn[1].machine.memories)):
            assert executed(drawn, rank, turn) == set(), (drawn[0], rank)


def by_program_order(schedule: Schedule, alive: Lifetimes, plan: MemoryPlan) -> MemoryPlan:
    """The same memory planned by the wrong order: that of the program, in one run."""
    rows: dict[int, list[int]] = {}
    for row in range(len(schedule)):
        for access in schedule.accesses(row):
            rows.setdefault(access.instance, []).append(row)
    spans = torch.tensor([[min(rows[number]), max(rows[number])] for number in alive.numbers]).numpy()
    wrong = replace(alive, first=spans[:, :1], ended=spans[:, 1:] + 1, renewed=spans[:, :1] * 0)
    return plan_memory(wrong, {number: size_of(schedule, number) for number in plan.offsets})


def test_the_order_of_the_program_is_not_the_order_of_the_steps() -> None:
    """What the oracles are for: a plan by the program's order is caught, by each of them."""
    raced = executions = 0
    for turn, drawn in enumerate(schedules()):
        schedule = drawn[1]
        lanes, found = laid_out(drawn, 0)
        storage = Storage(schedule, {0: Memory(0)}, drawn[2], (0,))
        alive = Layout(schedule, (0,), (0,), storage.temporary).lanes().lifetimes
        wrong = by_program_order(schedule, alive, found[0])
        executions += bool(executed(drawn, 0, turn, wrong))
        raced += drawn[3] and bool(alive_together(schedule, lanes, wrong))
    assert raced > 3
    assert executions > 3


def train(
    name: str, strategy: str, worlds: list[World], monkeypatch: pytest.MonkeyPatch, plan: Callable[..., MemoryPlan]
) -> Training:
    def body(world: World) -> Training:
        found = mp.search(NETWORKS[name].graph("float32"), host_machine(world), strategy=strategy, seed=5)
        return trained(NETWORKS[name], "float32", found, world)

    monkeypatch.setattr(binding, "plan_memory", plan)
    return run_on_worlds(worlds, body)[0]


def apart(_: Lifetimes, sizes: Mapping[int, int]) -> MemoryPlan:
    """A place for each: no reuse."""
    offsets, top = {}, 0
    for number in sorted(sizes):
        offsets[number] = top
        top += -(-sizes[number] // 64) * 64
    return MemoryPlan(offsets, top, top, top)


@pytest.mark.parametrize(
    ("name", "strategy", "make"),
    [
        ("digits", "data_parallel", partial(local_worlds, 2, shared=True)),
        ("residual", "random", partial(local_worlds, 3, processors=2, shared=True)),
        ("residual", "spatial", partial(local_worlds, 2, shuffle=4)),
        ("mlp13", "model_parallel", partial(local_worlds, 2, processors=2, shuffle=9)),
        ("mlp13", "random", partial(local_worlds, 2, device="null")),
    ],
)
def test_sharing_memory_changes_no_bit(
    name: str, strategy: str, make: Callable[[], list[World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[int] = []

    def counted(lifetimes: Lifetimes, sizes: Mapping[int, int]) -> MemoryPlan:
        plan = plan_memory(lifetimes, sizes)
        shared.append(plan.unshared - plan.size)
        return plan

    wanted = train(name, strategy, make(), monkeypatch, apart)
    found = train(name, strategy, make(), monkeypatch, counted)
    assert sum(shared) > 0
    assert found.losses == wanted.losses
    for key, value in wanted.parameters.items():
        assert torch.equal(found.parameters[key], value), key
    assert all(map(torch.equal, found.logits, wanted.logits))


def allocated(world: World) -> int:
    """The bytes that the allocator of a rank's memory has handed out and not got back."""
    return sum(memory.allocated_bytes() for memory in RankRuntime.of(world).memories.values())


def settle(world: World) -> None:
    """Wait until no processor holds on to what it has done, and collect, one rank for all."""
    for processor in RankRuntime.of(world).processors.values():
        idle = threading.Event()
        processor.enqueue(idle.set, 0)
        assert idle.wait(30)
    world.control.gather(b"idle")
    if world.rank == 0:
        gc.collect()
    world.control.gather(b"collected")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("name", "strategy"), [("digits", "data_parallel"), ("residual", "model_parallel")])
def test_the_allocator_hands_out_what_is_predicted(name: str, strategy: str, shared: bool) -> None:
    network = NETWORKS[name]
    graph = network.graph("float32")

    def body(world: World) -> tuple[list[int], int, int, list[int]]:
        machine = host_machine(world)
        plan = mp.search(graph, machine, strategy=strategy)
        found = []
        with mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=world) as trainer:
            for size in (network.batch, network.last):
                trainer.step(**network.samples(1, size, "float32"))
                found.append(allocated(world))
            trainer.evaluate(x=network.samples(2, network.batch, "float32")["x"])
            found.append(allocated(world))
            whole = trainer.schedule.memory_bytes()[world.rank]
        del trainer
        settle(world)
        names = [host if shared else replace(host, name=f"far{host.id}") for host in machine.hosts]  # else they share
        predicted = Simulation(graph, replace(machine, hosts=tuple(names)), plan, optimizer=OPTIMIZER).predict()
        assert predicted.planned
        return found, whole, allocated(world), list(predicted.memory_bytes)

    told = run_on_worlds(local_worlds(2, nodes=1 if shared else 2, shared=shared), body)
    for rank, (found, whole, left, predicted) in enumerate(told):
        assert abs(predicted[rank] - found[0]) <= 0.1 * found[0]
        assert found[0] < whole
        assert found == [found[0]] * 3, "smaller batches and evaluation take place in the same block"
        assert left == 0
