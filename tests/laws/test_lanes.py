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
from maniple.runtime.schedule.lane import Lanes, Layout, Step, StepKind
from maniple.runtime.schedule.schedule import Schedule

RUNS = 3
HOSTS = ((0, 1), (2, 3))
"""Two ranks of each of two hosts."""
Place = tuple[int, int]  # a lane, and a step counted over all runs
Moved = tuple[int, int]  # a rank, and a movement that its copy engine takes part in
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


@cache
def spread() -> list[tuple[str, Schedule, list[Lanes]]]:
    """The same where two ranks and two share a host each."""
    found = []
    for label, schedule, _ in schedules():
        if len(schedule.machine.memories) == 4:
            lanes = [Layout(schedule, (rank,), host).lanes() for host in HOSTS for rank in host]
            found.append((f"{label}, two hosts", schedule, lanes))
    return found


def touches(schedule: Schedule, step: Step, lane: int) -> list[Touch]:
    """What a step of a lane uses, from the schedule's own columns."""
    if step.kind == StepKind.START:
        home = schedule.machine.memory_of(lane)
        used = [(access.instance, access.rect, access.writes) for access in schedule.accesses(step.row)]
        return [touch for touch in used if schedule.instances[touch[0]].memory == home]
    if step.kind == StepKind.RUN:
        return [(access.instance, access.rect, access.writes) for access in schedule.accesses(step.row)]
    if step.kind == StepKind.PUSH:
        push = schedule.transfers(step.row)[step.item]
        return [(push.source, push.rect, False), (push.target, push.rect, True)]
    if step.kind == StepKind.FOLD:
        piece = schedule.pieces[step.row][step.item]
        return [(piece.target, piece.rect, True), *((part, piece.rect, False) for part in piece.parts)]
    return []


def clocks(
    schedule: Schedule, lanes: dict[int, tuple[Step, ...]]
) -> dict[Place, dict[int | Moved, int]]:  # fmt: skip
    """What each step knows when it begins: steps taken, by lane, and movements made. Fails where all wait in a circle.

    A movement between hosts is made once all ranks that take part have started it.
    """
    known: dict[Place, dict[int | Moved, int]] = {}
    started: dict[tuple[int, int], dict[int, dict[int | Moved, int]]] = {}  # by row and run, then by rank
    home = schedule.machine.memory_of
    at = dict.fromkeys(lanes, 0)

    def reached(lane: int, run: int, counter: int, value: int) -> dict[int | Moved, int] | None:
        """What is known where a counter has come to a value; None where it has not."""
        if counter >= 0:
            value += run * len(lanes[counter])
            if at[counter] < value:
                return None
            return {**known[counter, value - 1], counter: value} if value > 0 else {}
        row, value = -1 - counter, value + run
        begun = started.get((row, value - 1), {})
        if value > 0 and len(begun) < len(schedule.memories(row)):
            return None
        told: dict[int | Moved, int] = {(home(lane), row): value}
        for clock in begun.values():
            merge(told, clock)
        return told

    moved = True
    while moved:
        moved = False
        for lane, steps in lanes.items():
            while at[lane] < RUNS * len(steps):
                run, index = divmod(at[lane], len(steps))
                told = [reached(lane, run, *wait) for wait in steps[index].waits]
                if None in told:
                    break
                clock = dict(known.get((lane, at[lane] - 1), {}))
                for news in told:
                    merge(clock, news or {})
                clock[lane] = at[lane]
                known[lane, at[lane]] = clock
                at[lane] += 1
                if steps[index].kind == StepKind.START:
                    started.setdefault((steps[index].row, run), {})[home(lane)] = {**clock, lane: at[lane]}
                moved = True
    stuck = {lane: count for lane, count in at.items() if count < RUNS * len(lanes[lane])}
    assert stuck == {}, "lanes wait for each other in a circle"
    return known


def merge(clock: dict[int | Moved, int], news: dict[int | Moved, int]) -> None:
    """Add what another step knows."""
    for key, count in news.items():
        clock[key] = max(count, clock.get(key, 0))


def has_ended(
    schedule: Schedule,
    lanes: dict[int, tuple[Step, ...]],
    known: dict[Place, dict[int | Moved, int]],
    first: tuple[int, int, int],
    then: tuple[int, int, int],
) -> bool:
    """Whether a (lane, run, step) has ended, and whatever it started, before another begins."""
    lane, run, index = first
    later = known[then[0], then[1] * len(lanes[then[0]]) + then[2]]
    step = lanes[lane][index]
    if step.kind == StepKind.START:
        return later.get((schedule.machine.memory_of(lane), step.row), 0) > run
    return later.get(lane, 0) > run * len(lanes[lane]) + index


def races(schedule: Schedule, lanes: dict[int, tuple[Step, ...]]) -> Iterator[str]:
    """Conflicting steps that nothing keeps in the order of the program."""
    known = clocks(schedule, lanes)
    users: dict[int, list[tuple[int, int, Step, Rect, bool]]] = {}
    for lane, steps in lanes.items():
        for index, step in enumerate(steps):
            for instance, rect, writes in touches(schedule, step, lane):
                users.setdefault(instance, []).append((lane, index, step, rect, writes))

    def ordered(first: tuple[int, int, int], then: tuple[int, int, int]) -> bool:
        return has_ended(schedule, lanes, known, first, then)

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
    for label, _, found in schedules() + spread():
        lengths = {lane: len(steps) for lane, steps in together(found).items()}
        assert all(lanes.lengths == {lane: lengths[lane] for lane in lanes.lengths} for lanes in found), label


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
    for label, schedule, found in schedules() + spread():
        assert list(races(schedule, together(found))) == [], label


def test_a_wait_names_only_steps_that_tell() -> None:
    for label, _, found in schedules() + spread():
        lanes = together(found)
        for lanes_of_rank in found:
            for lane, steps in lanes_of_rank.steps.items():
                for step in steps:
                    for other, value in step.waits:
                        assert other != lane
                        assert -1 - other in lanes_of_rank.engine if other < 0 else lanes[other][value - 1].told, label


def test_what_a_copy_engine_has_moved_is_told_to_the_ranks_of_its_host_that_wait_for_it() -> None:
    graph, machine = NETWORKS["residual"].graph("float32"), mp.Machine.cpu(1, ranks=4)
    needed = []
    for seed in (1, 2, 3):
        schedule = lowered(graph, mp.search(graph, machine, strategy="random", seed=seed), machine)
        lanes = together([Layout(schedule, (rank,), host).lanes() for host in HOSTS for rank in host])
        for lane, steps in lanes.items():
            for index, step in enumerate(steps):
                if step.kind == StepKind.MOVED:
                    without = {**lanes, lane: (*steps[:index], replace(step, waits=()), *steps[index + 1 :])}
                    needed.append(any(races(schedule, without)))
    # What a step waits for may also come after something else that it waits for, so not each is needed.
    assert len(needed) > 4
    assert sum(needed) > len(needed) // 2


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
