"""Local schedules: what a host knows of a step is what is done there, and both ends of a pair know the same queue."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import settings
from pipelined_step import forward_then_backward, pipeline
from planned_step import lowered, plans, program
from test_memory_plan import executed
from trained_networks import NETWORKS

import maniple as mp
from maniple.models import model
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.runtime.schedule import lane
from maniple.runtime.schedule.memory.rank_instances import RankInstances
from maniple.runtime.schedule.schedule import Piece, RowKind, Schedule, Transfer

MACHINES = (
    mp.Machine.cpu(2, ranks=2),
    mp.Machine.cpu(1, ranks=4, nodes=2),
    mp.Machine.cpu(1, ranks=3),
)
Push = tuple[int, int, object, Piece | None, Piece | None, Transfer | None]


@cache
def steps() -> list[tuple[str, mp.Graph, mp.Plan, mp.Machine]]:
    """Steps under named and random plans, of more ranks than are neighbours, and of collectives that go not direct."""
    drawn = islice(plans(settings().max_examples // 50, first=3, machines=MACHINES), 0, None, 4)
    graph, machine = model("mlp", 32), mp.Machine.preset("k80x8")
    many, network = mp.Machine.cpu(1, ranks=6, nodes=2), NETWORKS["digits"].graph("float32")
    mixed = [(f"six, {seed}", network, mp.search(network, many, strategy="random", seed=seed), many) for seed in (1, 2)]
    return [*drawn, *mixed, (machine.name, graph, mp.search(graph, machine, strategy="data_parallel"), machine)]


@cache
def schedules() -> list[tuple[str, Schedule]]:
    """Their schedules."""
    return [(label, lowered(graph, plan, machine)) for label, graph, plan, machine in steps()]


def hosts_of(machine: mp.Machine) -> list[frozenset[int]]:
    """The memories of the first host and of the last, one alone, and one of each host."""
    hosts = {memory.host for memory in machine.memories}
    every = [frozenset(memory.id for memory in machine.memories if memory.host == host) for host in sorted(hosts)]
    return [every[0], every[-1], frozenset((len(machine.memories) - 1,)), frozenset(map(min, every))]


def pushes(schedule: Schedule, row: int, memories: Iterable[int]) -> list[Push]:
    """What a row pushes from or to some memories, with the folds there and the pushes that it comes before or after."""
    sent, pieces = schedule.transfers(row), schedule.pieces.get(row, ())
    ends = [{schedule.instances[end].memory for end in (push.source, push.target)} for push in sent]
    here = [push for push, places in zip(sent, ends, strict=True) if not places.isdisjoint(memories)]

    def fold(number: int) -> Piece | None:
        return pieces[number] if number >= 0 and pieces[number].memory in memories else None

    def before(number: int) -> Transfer | None:
        push = sent[number] if number >= 0 and not ends[number].isdisjoint(memories) else None
        return push if push is None else Transfer(push.source, push.target, push.rect)

    return [(p.source, p.target, p.rect, fold(p.feeds), fold(p.after), before(p.follows)) for p in here]


def test_a_host_knows_of_every_row_what_is_done_there() -> None:
    plans_seen, less = set[str](), 0
    for label, schedule in schedules():
        plans_seen.update(schedule.plans.values())
        for memories in hosts_of(schedule.machine):
            known = schedule.at(memories)
            assert (len(known), known.total_bytes) == (len(schedule), schedule.total_bytes)
            taken = known.takes_part(memories)
            for row in range(len(schedule)):
                used = [use for use in schedule.accesses(row) if schedule.instances[use.instance].memory in memories]
                assert known.accesses(row) == tuple(used), (label, row)
                assert pushes(known, row, memories) == pushes(schedule, row, memories), (label, row)
                assert len(known.transfers(row)) == len(pushes(schedule, row, memories)), (label, row)
                folds = tuple(fold for fold in schedule.pieces.get(row, ()) if fold.memory in memories)
                assert known.pieces.get(row, ()) == folds, (label, row)
                assert taken[row] == (not memories.isdisjoint(schedule.memories(row))), (label, row)
                less += len(schedule.transfers(row)) - len(known.transfers(row))
            again = known.at(memories)
            assert all((one == other).all() for one, other in zip(again.transfer, known.transfer, strict=True))
    assert less, "what others push is not listed"
    assert plans_seen, "collectives have other plans than direct"


def test_a_host_lowers_its_part_without_the_whole() -> None:
    less = spared = spared_edges = 0
    for label, graph, plan, machine in steps():
        made = program(graph, plan, machine)
        whole = lower(made, FragmentCache(machine))
        for memories in hosts_of(machine):
            listed, expected = lower(made, FragmentCache(machine), memories), whole.at(memories)
            known = listed.at(memories)
            for name in ("kind", "launch", "point", "processor", "region", "bytes", "order"):
                assert (getattr(known, name) == getattr(expected, name)).all(), (label, name)
            for name in ("successors", "carried"):
                pairs = zip(getattr(known, name), getattr(expected, name), strict=True)
                assert all(np.array_equal(one, other) for one, other in pairs), (label, name)
            assert (known.plans, known.folds) == (expected.plans, expected.folds), label
            assert known.memory_bytes() == whole.memory_bytes(), label
            assert (known.takes_part(memories) == expected.takes_part(memories)).all(), label
            assert told(known) == told(expected), label
            for row in np.flatnonzero(whole.kind > RowKind.COPY).tolist():
                assert listed.memories(row) == whole.memories(row), (label, row)
            less += len(whole.transfer[1]) - len(listed.transfer[1])
            spared += len(whole.access[1]) - len(listed.access[1])
            spared_edges += len(whole.successors[1]) - len(listed.successors[1])
    assert less, "what others push in collectives is not listed"
    assert spared, "nor what they use"
    assert spared_edges, "nor who of them waits for whom"


def test_a_rank_lays_out_the_same_lanes_from_its_part_as_from_the_whole() -> None:
    """Neighbours to whom single tiles go among them; instances have other numbers, and lie in the same places."""
    looked_at = 0
    for label, graph, plan, machine in steps():
        made = program(graph, plan, machine)
        whole = lower(made, FragmentCache(machine))
        for rank in range(1 + machine.memories[-1].rank):
            here, found = machine.memories_of(rank), []
            for schedule in (lower(made, FragmentCache(machine), here), whole):
                instances = RankInstances(schedule, here, made.lasting)
                layout = lane.Layout(schedule, here, (), instances.temporary)
                lanes, looked_at = layout.lanes(), looked_at + len(layout.ranks) - 1
                sizes = {memory: place.size for memory, place in instances.plan(lanes.lifetimes).items()}
                found.append((lanes.steps, lanes.lengths, lanes.engine, layout.ranks, sizes))
            assert found[0] == found[1], (label, rank)
    assert looked_at


def told(schedule: Schedule) -> list[object]:
    """What rows push, fold and use, instances being told by where they are and why, and which was named first."""
    names: dict[int, int] = {}
    found: list[object] = []

    def name(number: int) -> tuple[object, int]:
        return schedule.instances[number], names.setdefault(number, len(names))

    for row in range(len(schedule)):
        found += [
            (row, name(push.source), name(push.target), push.rect, push.feeds, push.after, push.follows)
            for push in schedule.transfers(row)
        ]
        found += [
            (row, fold.memory, name(fold.target), fold.rect, tuple(map(name, fold.parts)), fold.op)
            for fold in schedule.pieces.get(row, ())
        ]
        if schedule.processor[row] >= 0:
            found += [(row, name(use.instance), use.rect, use.writes, use.slot) for use in schedule.accesses(row)]
    return found


def test_both_ends_of_a_pair_know_the_same_pushes_in_the_same_order() -> None:
    for label, schedule in schedules():
        count = len(schedule.machine.memories)
        order = sorted(range(len(schedule)), key=schedule.order.tolist().__getitem__)
        queues: list[dict[tuple[int, int], list[tuple[int, object]]]] = []
        for memory in range(count):
            queue: dict[tuple[int, int], list[tuple[int, object]]] = {}
            known = schedule.at((memory,))
            for row in order:
                for push in known.transfers(row):
                    pair = (known.instances[push.source].memory, known.instances[push.target].memory)
                    queue.setdefault(pair, []).append((row, push.rect))
            queues.append(queue)
        assert sum(len(queue) for queue in queues), label
        for memory, queue in enumerate(queues):
            for pair, sent in queue.items():
                assert memory in pair
                assert queues[sum(pair) - memory][pair] == sent, (label, pair)


def test_with_fewer_neighbours_places_are_taken_in_turn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "MOST_NEIGHBOURS", 1)
    schedule = pipeline(forward_then_backward, 6)
    for rank in range(len(schedule.machine.memories)):
        assert executed(("pipeline", schedule, (), False), rank, rank) == set(), rank


def test_neighbours_are_those_who_get_single_tiles_of_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = NETWORKS["digits"].graph("float32"), mp.Machine.cpu(1, ranks=4)
    exchanged = lowered(graph, mp.search(graph, machine, strategy="data_parallel"), machine)
    drawn = lowered(graph, mp.search(graph, machine, strategy="random", seed=1), machine)
    for schedule, every in ((exchanged, 1), (drawn, 4)):
        planned = [number for number, instance in enumerate(schedule.instances) if instance.memory == 1]
        assert len(lane.Layout(schedule, (1,), (), planned).ranks) == every
        assert len(lane.Layout(schedule, (1,), ()).ranks) == 1
    monkeypatch.setattr(lane, "MOST_NEIGHBOURS", 2)
    planned = [number for number, instance in enumerate(drawn.instances) if instance.memory == 1]
    assert len(lane.Layout(drawn, (1,), (), planned).ranks) == 3
