"""Races of plans: which of those that come near is taken, once the ranks that will train have run steps of all.

What is simulated is off by some percent, and the plan that looks fastest of many is one whose errors were lucky. On the
processors that will run it a plan can show what it takes. Data parallelism always takes part:

    plan            simulated   steps, in turn              middle   as fast or faster than data parallelism
    data_parallel   47.0 ms     47.9 47.1 46.9 47.3 48.2    47.3
    soap            42.7 ms     50.9 49.8 52.3 48.0 51.1    50.9     in none of 5
    optcnn          43.1 ms     45.2 47.4 44.8 45.9 46.0    45.9     in 4 of 5: taken

Another plan than data parallelism is taken where its middle step is faster and so are two thirds of its steps, each
beside data parallelism's of the same round. Where there was time for no round, it must be simulated to be as much
faster as simulations are off by (`NEAR`).
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING, final

from maniple.plan_rehearsal import PlanRehearsal
from maniple.process.error import RoomError
from maniple.strategies.search.runoff import NEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.control.world import World

__all__: list[str] = []

ROUNDS, LEAST_ROUNDS = 9, 2
"""Rounds of a race; a plan is made ready only where there is time for so many with it."""
TURN_S = 0.1
"""A turn takes at least so long: several short steps."""
SHORT_S = 1.0
"""A plan whose first step takes longer has no other before its rounds, the first of which finds less in caches."""
FIRST_BUILD_S = 2.0
"""What making a plan ready is taken to last before one was."""

Times = list[list[float]]
"""By plan that takes part, in order, the seconds of a step in each round; nothing of those that do not."""


@final
@dataclass(frozen=True, slots=True)
class Racer:
    """A plan that comes near.

    Args:
        name: of the strategy that found it.
        plan: the plan.
        step_s: what a step is simulated to take.
    """

    name: str
    plan: Plan
    step_s: float


def race(
    graph: Graph,
    racers: Sequence[Racer],
    optimizer: AbstractOptimizer | None,
    world: World,
    left_s: Callable[[], float],
    *,
    compiled: bool = False,
) -> Times:
    """Run steps of plans in turn, on all ranks; rank 0's clock says how long, and its times are everybody's.

    Args:
        graph: the graph.
        racers: the plans, data parallelism first.
        optimizer: what updates the weights; None: descent with momentum.
        world: the ranks.
        left_s: seconds that are left, asked of rank 0 alone.
        compiled: whether torch compiles what they run; making plans ready, with a first step, takes none of these
            seconds then, for it is slow once and what is compiled is kept.
    """
    aside_s = 0.0

    def remaining_s() -> float:
        return left_s() + aside_s

    world.control.call(f"mp.search: a race of {', '.join(one.name for one in racers)}")
    build_s, step_s = FIRST_BUILD_S, [one.step_s for one in racers]
    ready: dict[int, PlanRehearsal] = {}
    with ExitStack() as opened:
        for number, one in enumerate(racers):
            # With it each that is ready has its rounds still; the first has a rival.
            joining, running = (1, [*ready, number]) if ready else (2, range(min(2, len(racers))))
            wanted_s = joining * (build_s + step_s[number]) + LEAST_ROUNDS * sum(step_s[each] for each in running)
            began_s = remaining_s()
            if not _agreed(world, wanted_s <= began_s):
                break
            try:
                made = opened.enter_context(PlanRehearsal(graph, one.plan, optimizer, world))
            except RoomError:  # on all ranks alike
                continue
            if not compiled:
                build_s = began_s - remaining_s() if began_s < inf else 0.0
            first_s = made.run()  # libraries choose and keep what they do, and memory is touched
            if compiled and began_s < inf:
                aside_s += began_s - remaining_s()
            step_s[number] = made.run() if _agreed(world, compiled or first_s < SHORT_S) else first_s
            ready[number] = made
        if len(ready) < 2 or 0 not in ready:
            return [[] for _ in racers]
        return _run_rounds(ready, len(racers), step_s, world, remaining_s)


def _run_rounds(
    ready: dict[int, PlanRehearsal], count: int, step_s: Sequence[float], world: World, left_s: Callable[[], float]
) -> Times:
    """The rounds of a race: every plan has a turn in each, and another is the first each time."""
    told = world.control.gather(json.dumps([step_s[number] for number in ready]).encode())[0]
    steps = {number: max(1, ceil(TURN_S / one)) for number, one in zip(ready, json.loads(told), strict=True)}
    round_s = sum(steps[number] * step_s[number] for number in ready)
    times: Times = [[] for _ in range(count)]
    order = list(ready)
    for _ in range(ROUNDS):
        if not _agreed(world, round_s <= left_s()):
            break
        taken = {number: sum(ready[number].run() for _ in range(steps[number])) for number in order}
        round_s = max(round_s, sum(taken.values()))
        mine = [taken[number] / steps[number] for number in ready]
        for number, one in zip(ready, json.loads(world.control.gather(json.dumps(mine).encode())[0]), strict=True):
            times[number].append(one)
        order = [*order[1:], order[0]]
    return times


def _agreed(world: World, mine: bool) -> bool:  # noqa: FBT001  (rank 0's word, whatever it is about)
    """What rank 0 says."""
    return world.control.gather(b"\1" if mine else b"\0")[0] == b"\1"


def winner(racers: Sequence[Racer], times: Times) -> int:
    """The number of the plan that is taken.

    Args:
        racers: the plans, data parallelism first.
        times: of their steps.
    """
    if not times[0]:
        fastest = min(range(len(racers)), key=lambda number: (racers[number].step_s, number))
        return fastest if NEAR * racers[fastest].step_s <= racers[0].step_s else 0
    middles = {number: median(taken) for number, taken in enumerate(times) if taken}
    good = [number for number in middles if number == 0 or (middles[number] < middles[0] and _often(times, number))]
    return min(good, key=lambda number: (middles[number], number))


def _often(times: Times, number: int) -> bool:
    """Whether a plan was faster than the first in two thirds of the rounds."""
    faster = sum(one < first for first, one in zip(times[0], times[number], strict=True))
    return 3 * faster >= 2 * len(times[0])
