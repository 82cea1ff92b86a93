"""Lanes: they never wait in a circle, and the waits that they keep put every two conflicting steps in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from hypothesis import settings
from planned_step import lowered, plans
from trained_networks import NETWORKS

import maniple as mp
from maniple.regions.index_space import meets
from maniple.regions.rectangle import Rect
from maniple.runtime.lane import Lanes, Layout, Step, StepKind
from maniple.runtime.schedule import Schedule

RUNS = 3
Place = tuple[int, int]  # a lane, and a step counted over all runs
Touch = tuple[int, Rect, bool]


@cache
def schedules() -> list[tuple[str, Schedule, list[Lanes]]]:
    """Schedules of several ranks, each with the lanes of all ranks where they share one host."""
    found = []
    for label, graph, plan, machine in plans(settings().max_examples // 25, first=1):
        ranks = range(len(machine.memories))
        if len(ranks) > 1:
            schedule = lowered(graph, plan, machine)
            found.append((label, schedule, [Layout(schedule, (rank,), ranks).lanes() for rank in ranks]))
    return found


def touches(schedule: Schedule, step: Step) -> list[Touch]:
    """What a step uses, from the schedule's own columns."""
    if step.kind == StepKind.RUN:
        return [(access.instance, access.rect, access.writes) for access in schedule.accesses(step.row)]
    if step.kind == StepKind.PUSH:
        push = schedule.transfers(step.row)[step.item]
        return [(push.source, push.rect, False), (push.target, push.rect, True)]
    if step.kind == StepKind.FOLD:
        piece = schedule.pieces[step.row][step.item]
        return [(piece.target, piece.rect, True), *((part, piece.rect, False) for part in piece.parts)]
    return []


def clocks(lanes: dict[int, tuple[Step, ...]]) -> dict[Place, dict[int, int]]:
    """What each step knows when it begins: steps taken, by lane. Fails where lanes wait in a circle."""
    known: dict[Place, dict[int, int]] = {}
    at = dict.fromkeys(lanes, 0)
    moved = True
    while moved:
        moved = False
        for lane, steps in lanes.items():
            while at[lane] < RUNS * len(steps):
                run, index = divmod(at[lane], len(steps))
                needed = [(other, run * len(lanes[other]) + value) for other, value in steps[index].waits]
                if any(at[other] < value for other, value in needed):
                    break
                clock = dict(known.get((lane, at[lane] - 1), {}))
                clock[lane] = at[lane]
                for other, value in needed:
                    if value > 0:
                        for third, count in known[other, value - 1].items():
                            clock[third] = max(count, clock.get(third, 0))
                        clock[other] = max(value, clock.get(other, 0))
                known[lane, at[lane]] = clock
                at[lane] += 1
                moved = True
    stuck = {lane: count for lane, count in at.items() if count < RUNS * len(lanes[lane])}
    assert stuck == {}, "lanes wait for each other in a circle"
    return known


def races(schedule: Schedule, lanes: dict[int, tuple[Step, ...]]) -> Iterator[str]:
    """Conflicting steps that nothing keeps in the order of the program."""
    known = clocks(lanes)
    users: dict[int, list[tuple[int, int, Step, Rect, bool]]] = {}
    for lane, steps in lanes.items():
        for index, step in enumerate(steps):
            for instance, rect, writes in touches(schedule, step):
                users.setdefault(instance, []).append((lane, index, step, rect, writes))

    def ordered(first: tuple[int, int, int], then: tuple[int, int, int]) -> bool:
        lane, run, index = first
        later = known[then[0], then[1] * len(lanes[then[0]]) + then[2]]
        return later.get(lane, 0) > run * len(lanes[lane]) + index

    for instance, found in users.items():
        for (a, i, one, rect, writes), (b, j, other, second, rewrites) in product(found, found):
            if not (writes or rewrites) or not meets(rect, second):
                continue
            across = ordered((a, 1, i), (b, 2, j))
            within = ordered((a, 1, i), (b, 1, j)) or (one.row == other.row and ordered((b, 1, j), (a, 1, i)))
            if not across or (one.row <= other.row and (a, i) != (b, j) and not within):
                yield f"{schedule.label(one.row)} and {schedule.label(other.row)}: instance {instance}{rect}{second}"


def together(all_lanes: list[Lanes]) -> dict[int, tuple[Step, ...]]:
    return {lane: steps for lanes in all_lanes for lane, steps in lanes.steps.items()}


def test_every_rank_counts_the_same_steps() -> None:
    for label, _, found in schedules():
        lengths = {lane: len(steps) for lane, steps in together(found).items()}
        assert all(lanes.lengths == lengths for lanes in found), label


def test_every_row_is_taken_whole() -> None:
    for label, schedule, found in schedules():
        steps = [step for lane in together(found).values() for step in lane]
        for kind, wanted in (
            (StepKind.RUN, [(row, -1) for row in range(len(schedule)) if schedule.processor[row] >= 0]),
            (StepKind.PUSH, [(r, i) for r in range(len(schedule)) for i in range(len(schedule.transfers(r)))]),
            (StepKind.FOLD, [(r, i) for r, pieces in schedule.pieces.items() for i in range(len(pieces))]),
        ):
            assert sorted((s.row, s.item) for s in steps if s.kind == kind) == sorted(wanted), (label, kind)


def test_waits_keep_conflicting_steps_in_order() -> None:
    for label, schedule, found in schedules():
        assert list(races(schedule, together(found))) == [], label


def test_a_wait_names_only_steps_that_tell() -> None:
    for label, _, found in schedules():
        lanes = together(found)
        for lane, steps in lanes.items():
            for step in steps:
                for other, value in step.waits:
                    assert other != lane
                    assert lanes[other][value - 1].told, label


def test_a_wait_that_is_missing_is_seen() -> None:
    """No wait is there in vain: leaving out any single one lets two steps conflict, or a tile be missed at the end."""
    graph, machine = NETWORKS["mlp13"].graph("float32"), mp.Machine.cpu(1, ranks=3)
    schedule = lowered(graph, mp.search(graph, machine, strategy="data_parallel"), machine)
    lanes = together([Layout(schedule, (rank,), range(3)).lanes() for rank in range(3)])
    kept = [
        (lane, index) for lane, steps in lanes.items() for index, step in enumerate(steps)
        if step.waits and step.kind != StepKind.END
    ]  # fmt: skip
    assert len(kept) > 10
    chance = np.random.default_rng(3)
    seen = 0
    for lane, index in chance.permutation(kept)[:20].tolist():
        steps = list(lanes[lane])
        steps[index] = replace(steps[index], waits=())
        seen += any(races(schedule, {**lanes, lane: tuple(steps)}))
    assert seen > 15


def test_a_movement_between_hosts_is_one_step_of_each_rank_that_takes_part() -> None:
    checked = 0
    for label, schedule, _ in schedules():
        hosts = {memory.id: memory.host for memory in schedule.machine.memories}
        if len(set(hosts.values())) == len(hosts):
            continue
        near = {m: [other for other in hosts if hosts[other] == hosts[m]] for m in hosts}
        for here in hosts:
            lanes = Layout(schedule, (here,), near[here]).lanes()
            far = [
                row for row in range(len(schedule))
                if here in schedule.memories(row) and not set(schedule.memories(row)) <= set(near[here])
            ]  # fmt: skip
            assert sorted(lanes.engine) == far, label
            started = [step.row for steps in lanes.steps.values() for step in steps if step.kind == StepKind.START]
            assert sorted(started) == far, label
            checked += len(far)
    assert checked > 0
