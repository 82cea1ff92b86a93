"""Memory that instances take in turn: never two at once, in whatever order steps end, and never another result."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import combinations
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import settings
from pipelined_step import forward_then_backward, one_forward_one_backward, pipeline
from planned_step import plans, program
from test_lanes import RUNS, clocks, has_ended, together, touches
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS, OPTIMIZER, SHORT, Training, trained

import maniple as mp
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.schedule.lane import Lanes, Layout, Step, StepKind
from maniple.runtime.schedule.memory import rank_instances
from maniple.runtime.schedule.memory.lifetime import Lifetimes
from maniple.runtime.schedule.memory.memory_plan import MemoryPlan, plan_memory
from maniple.runtime.schedule.memory.rank_instances import RankInstances
from maniple.runtime.schedule.schedule import Piece, Schedule, Transfer
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
    for order in (one_forward_one_backward, forward_then_backward):
        found += [(f"{order.__name__}, {shares}", pipeline(order, 6), (), shares) for shares in (True, False)]
    return found


LANES: dict[tuple[int, int], Lanes] = {}
"""What a rank takes that is not judged, by what `schedules` gives, which lives on, and the rank."""


def lanes_of(schedule: Schedule, rank: int, shared: Collection[int]) -> Lanes:
    """The lanes of a rank that is not judged, laid out once for all that are."""
    asked = id(schedule), rank
    if asked not in LANES:
        LANES[asked] = Layout(schedule, (rank,), shared or (rank,)).lanes()
    return LANES[asked]


def laid_out(drawn: Drawn, rank: int) -> tuple[dict[int, tuple[Step, ...]], Mapping[int, MemoryPlan]]:
    """The lanes of all ranks, and what one of them plans."""
    _, schedule, lasting, shares = drawn
    ranks = range(len(schedule.machine.memories))
    near = ranks if shares else ()
    holds = RankInstances(schedule, (rank,), lasting)
    lanes = Layout(schedule, (rank,), near, holds.temporary).lanes()
    others = [lanes_of(schedule, other, near) for other in ranks if other != rank]
    return together([lanes, *others]), holds.plan(lanes.lifetimes)


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


@dataclass(eq=False)
class Moving:
    """A movement of the ranks' copy engines in one run, while it is under way.

    Args:
        row: which.
        run: of which run.
        begun: the memories whose lanes have started it.
        sent: its transfers that have left.
        landed: those that have arrived.
        folded: its folds that were made.
        ended: the memories where all of it that concerns them is over.
    """

    row: int
    run: int
    begun: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    landed: set[int] = field(default_factory=set)
    folded: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)


class Execution:
    """Runs of lanes whose steps begin and end in an order that is drawn, on bytes that know whose they are.

    Every instance takes its bytes when a step of a run uses it first; whoever uses it after that must find them as they
    were left. What a copy engine moves goes on after its lane: a tile leaves at any time once its sender has started,
    and lands at any time after that once its receiver has.

    Args:
        drawn: what runs.
        rank: whose memory is watched.
        lanes: with waits, of all ranks.
        plan: where instances lie.
        chance: draws.
    """

    def __init__(
        self, drawn: Drawn, rank: int, lanes: dict[int, tuple[Step, ...]], plan: MemoryPlan, chance: Random
    ) -> None:
        self.schedule, self.rank, self.lanes, self.plan, self.chance = drawn[1], rank, lanes, plan, chance
        self.words = {
            number: slice(start // 8, start // 8 - -size_of(self.schedule, number) // 8)
            for number, start in plan.offsets.items()
        }
        self.owner = np.full(plan.size // 8 + 1, -1)
        self.taken: set[tuple[int, int]] = set()
        self.counts: dict[int, int] = dict.fromkeys(lanes, 0)
        self.moved: dict[tuple[int, int], int] = {}
        self.moving: dict[tuple[int, int], Moving] = {}
        self.faults: set[str] = set()
        self.lengths = {lane: len(steps) for lane, steps in lanes.items()}
        self.under_way: dict[int, tuple[Step, int]] = {}
        self.memory_of = [instance.memory for instance in self.schedule.instances]
        every = [step for steps in lanes.values() for step in steps]
        self.parts = {row: self.parts_of(row) for row in sorted({step.row for step in every})}
        self.uses = {id(step): self.uses_of(step) for step in every}

    def parts_of(self, row: int) -> tuple[tuple[Transfer, ...], list[tuple[int, int]], tuple[Piece, ...]]:
        """The transfers of a row, between which memories they are, and its folds."""
        transfers = self.schedule.transfers(row) if row >= 0 else ()
        places = [(self.memory_of[push.source], self.memory_of[push.target]) for push in transfers]
        return transfers, places, self.schedule.pieces.get(row, ())

    def uses_of(self, step: Step) -> list[int]:
        """The instances that a step uses by itself."""
        return [] if step.kind == StepKind.START else [use[0] for use in touches(self.schedule, step, self.rank)]

    def begin(self, instances: Iterable[int], row: int, run: int) -> None:
        """Let some instances take their bytes, where they are used first."""
        for instance in instances:
            if instance in self.plan.offsets and (instance, run) not in self.taken:
                self.taken.add((instance, run))
                self.owner[self.words[instance]] = instance * RUNS + run
        self.look(instances, row, run)

    def look(self, instances: Iterable[int], row: int, run: int) -> None:
        """See that the bytes of some instances are theirs."""
        for instance in instances:
            if instance not in self.plan.offsets:
                continue
            if (self.owner[self.words[instance]] != instance * RUNS + run).any():
                self.faults.add(f"{self.schedule.label(row)} of run {run} lost instance {instance}")

    def ready(self, lane: int, step: Step, run: int) -> bool:
        return all(
            (self.counts[other] if other >= 0 else self.moved.get((self.home(lane), -1 - other), 0))
            >= run * self.lengths.get(other, 1) + value
            for other, value in step.waits
        )

    def home(self, lane: int) -> int:
        """The memory whose engine moves what a lane starts."""
        return self.schedule.machine.memory_of(lane)

    def able(self, move: Moving) -> Iterator[Callable[[], None]]:
        """What may happen next of a movement."""
        transfers, ends, pieces = self.parts[move.row]
        for number, (transfer, (source, target)) in enumerate(zip(transfers, ends, strict=True)):
            comes = transfer.after < 0 or transfer.after in move.folded
            if number not in move.sent and source in move.begun and comes:
                yield partial(self.happen, move, move.sent, number, (transfer.source,))
            if number in move.sent and number not in move.landed and target in move.begun:
                yield partial(self.happen, move, move.landed, number, (transfer.target,))
        for number, piece in enumerate(pieces):
            fed = all(other in move.landed for other, transfer in enumerate(transfers) if transfer.feeds == number)
            if number not in move.folded and piece.memory in move.begun and fed:
                yield partial(self.happen, move, move.folded, number, (*piece.parts, piece.target))
        for memory in move.begun - move.ended:
            over = all(
                (source != memory or number in move.sent) and (target != memory or number in move.landed)
                for number, (source, target) in enumerate(ends)
            )
            if over and all(n in move.folded for n, piece in enumerate(pieces) if piece.memory == memory):
                yield partial(self.end, move, memory)

    def happen(self, move: Moving, done: set[int], number: int, instances: tuple[int, ...]) -> None:
        """Do part of a movement."""
        done.add(number)
        self.begin(instances, move.row, move.run)

    def end(self, move: Moving, memory: int) -> None:
        """End a movement at a rank."""
        move.ended.add(memory)
        self.moved[memory, move.row] = self.moved.get((memory, move.row), 0) + 1
        if len(move.ended) == len(self.schedule.memories(move.row)):
            del self.moving[move.row, move.run]

    def start(self, lane: int, step: Step, run: int) -> None:
        """Begin a step."""
        self.under_way[lane] = step, run
        self.begin(self.uses[id(step)], step.row, run)
        if step.kind == StepKind.START:
            self.moving.setdefault((step.row, run), Moving(step.row, run)).begun.add(self.home(lane))

    def finish(self, lane: int) -> None:
        """End the step that a lane is at."""
        step, run = self.under_way.pop(lane)
        self.look(self.uses[id(step)], step.row, run)
        self.counts[lane] += 1

    def next_of(self, lane: int) -> Iterator[Callable[[], None]]:
        """What may happen next in a lane."""
        if lane in self.under_way:
            yield partial(self.finish, lane)
        elif self.counts[lane] < RUNS * len(self.lanes[lane]):
            run, index = divmod(self.counts[lane], len(self.lanes[lane]))
            if self.ready(lane, self.lanes[lane][index], run):
                yield partial(self.start, lane, self.lanes[lane][index], run)

    def run(self) -> set[str]:
        """Take all steps of all runs, and tell what went wrong."""
        able = True
        while able:
            able = False
            actors: list[int | Moving] = [*self.lanes, *self.moving.values()]
            self.chance.shuffle(actors)
            for actor in actors:
                found = [*(self.able(actor) if isinstance(actor, Moving) else self.next_of(actor))]
                if found:
                    able = True
                    self.chance.choice(found)()
                    break
        assert all(self.counts[lane] == RUNS * len(steps) for lane, steps in self.lanes.items())
        assert not self.moving
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
    spans = np.asarray([[min(rows[number]), max(rows[number])] for number in alive.numbers])
    begins = np.stack([0 * spans[:, 0], spans[:, 0]] * 2, axis=1)
    ended = (spans[:, 1:] + 1).astype(np.int32)
    starts = np.arange(len(spans) + 1)
    wrong = replace(alive, starts=starts, begins=begins, ended=ended, renewed=0 * ended)
    return plan_memory(wrong, {number: size_of(schedule, number) for number in plan.offsets})


def test_the_order_of_the_program_is_not_the_order_of_the_steps() -> None:
    """What the oracles are for: a plan by the program's order is caught, by each of them."""
    raced = executions = 0
    for turn, drawn in enumerate(schedules()):
        schedule = drawn[1]
        lanes, found = laid_out(drawn, 0)
        alive = Layout(schedule, (0,), (0,), RankInstances(schedule, (0,), drawn[2]).temporary).lanes().lifetimes
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
        return trained(NETWORKS[name], "float32", found, world, SHORT)

    monkeypatch.setattr(rank_instances, "plan_memory", plan)
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
