"""Orders of a chain that goes to the last lane and back, so that each lane has two stages: the arms of a V.

A lane holds what its first stage computed for long and what its second computed for short, and all lanes together as
much: memory is even. Two lanes, four micro-batches, all actions as long
(``tests/operators/pipeline_order/test_folded.py``):

    v_zb
        lane 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3 --
        lane 1   --  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3

    v_half
        lane 0   0F0 0F1 --  3F0 3I0 3F1 3W0 0F2 0I0 3I1 0W0 3F2 3W1 0F3 0I1 3I2 0W1 3F3 3I3 0I2 3W2 0I3 3W3 0W2 0W3
        lane 1   --  1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 1F2 2F2 2I1 2W1 1I1 1F3 1W1 2F3 2I2 1I2 2I3 1I3 2W2 1W2 2W3 1W3
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from maniple.operators.pipeline_order.action import KINDS, Action, Kind
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []

_PERIOD = 6
"""Ticks from one micro-batch to the next: two stages of a lane do F, I and W each."""


_KINDS: Final[tuple[Kind, ...]] = ("F", "F", "I", "I", "W", "W")
"""What a lane does with a micro-batch: of the first stage, the second, the second, the first, the second, the first."""


class _Pass(NamedTuple):
    """What a lane does with a micro-batch, first its turn: F down the V, F up, I down, I up; then W of either."""

    turn: int
    part: int


_Ticks = dict[_Pass, int]
"""When a lane has its passes, but for gradients of weights, which have what ticks are left."""


def v_zb(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """No bubble, and the memory of 1F1B (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 6, ZB-V).

    If F, I and W are as long and there are at least 2 p - 1 micro-batches, no lane waits between its first action and
    its last, and each has 2 p pairs of micro-batch and stage in flight, p whole micro-batches. The order of torch's
    ScheduleZBVZeroBubble.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    graph.check_fold("v_zb")
    lanes = len(graph.lanes)
    enough = max(2 * lanes - 1, micro_batches)
    found = tuple(
        tuple(action for action in _zb_lane(lane, lanes, enough) if action.micro_batch < micro_batches)
        for lane in graph.lanes
    )
    return PipelineOrder(found, graph.stages, micro_batches)


def v_half(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """Half the memory of 1F1B (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, section 3).

    Built as told there: the passes of one micro-batch stand in a *building block*, where what lanes hold is even;
    the block is repeated every six ticks, and gradients of weights fill what is free; then passes go to earlier
    ticks as far as memory allows, which matters where a step begins and where it ends. Each lane has at most 2 ((p
    + 2) // 2) pairs of micro-batch and stage in flight. If F, I and W are as long and there are 2 p micro-batches
    or more, the worst lane waits for 3 p - 4 of these ticks if p is odd and 3 p - 7 if p is even, 1 if p is 2: 1F1B
    waits for 6 (p - 1).

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    graph.check_fold("v_half")
    lanes = [_repeated(block, micro_batches) for block in half_block(len(graph.lanes))]
    _move_earlier(lanes, micro_batches)
    found = []
    for ticks, (first, second) in zip(lanes, graph.lanes, strict=True):
        stages = (first, second, second, first, second, first)
        passes = sorted((tick, at) for at, tick in _filled(ticks).items())
        found.append(tuple(Action(stages[at.turn], _KINDS[at.turn], at.part) for _, at in passes))
    return PipelineOrder(tuple(found), graph.stages, micro_batches)


def half_block(lanes: int) -> list[tuple[int, int, int, int]]:
    """For each lane the ticks of one micro-batch's passes: F down, F up, I down, I up.

    Down the V a pass takes a tick and waits one, up it does not wait. If lanes are even in number, what comes down
    again waits three ticks longer, or blocks repeated every six would fall on each other.

    Args:
        lanes: how many.
    """
    late = 3 * (lanes % 2 == 0)
    return [
        (2 * lane, 3 * lanes - lane - 2, 3 * lanes + late + 2 * lane - 1, 6 * lanes + late - lane - 2)
        for lane in range(lanes)
    ]


def _repeated(block: tuple[int, ...], micro_batches: int) -> _Ticks:
    """A block once for each micro-batch."""
    return {
        _Pass(turn, part): tick + _PERIOD * part for turn, tick in enumerate(block) for part in range(micro_batches)
    }


def _move_earlier(lanes: list[_Ticks], micro_batches: int) -> None:
    """Move passes, from the first on, to the first free tick where their lane holds no more than lanes did before.

    What lies between the first micro-batch's end and the last one's begin stays: there blocks leave nothing to gain.
    """
    if micro_batches < 1:
        return
    most = max(map(_most_held, lanes))
    low, high = lanes[0][_Pass(3, 0)], lanes[0][_Pass(0, micro_batches - 1)]
    for tick, lane, at in sorted((tick, lane, at) for lane, ticks in enumerate(lanes) for at, tick in ticks.items()):
        if low <= tick <= high:
            continue
        ticks = lanes[lane]
        taken = set(ticks.values())
        for sooner in range(_ready(lanes, lane, at), tick):
            if sooner not in taken:
                ticks[at] = sooner
                if _most_held(ticks) <= most:
                    break
                ticks[at] = tick


def _ready(lanes: list[_Ticks], lane: int, at: _Pass) -> int:
    """The first tick at which a pass could come: after what it reads, and the same of the micro-batch before."""
    turn, part = at
    before = [lanes[lane][_Pass(turn - 1, part)]] if turn else []
    neighbour = lane + (-1 if turn in {0, 2} else 1)
    if 0 <= neighbour < len(lanes):
        before.append(lanes[neighbour][at])
    if part:
        before.append(lanes[lane][_Pass(turn, part - 1)])
    return max(before, default=-1) + 1


def _most_held(ticks: _Ticks) -> int:
    """The most pairs of micro-batch and stage that a lane holds."""
    now = most = waiting = 0
    before = -1
    for tick, turn in sorted((tick, at.turn) for at, tick in ticks.items()):
        done = min(tick - before - 1, waiting)
        before, waiting, now = tick, waiting - done, now - done
        if turn < 2:
            now += 1
            most = max(most, now)
        else:
            waiting += 1
    return most


def _filled(ticks: _Ticks) -> _Ticks:
    """The passes of a lane with gradients of weights in the free ticks, in the order of those of inputs."""
    at_tick = {tick: at for at, tick in ticks.items()}
    found, waiting = dict(ticks), deque[_Pass]()
    for tick in range(max(at_tick, default=-1) + 1 + len(ticks)):
        at = at_tick.get(tick)
        if at is None and waiting:
            found[waiting.popleft()] = tick
        elif at is not None and at.turn >= 2:
            waiting.append(_Pass(at.turn + 2, at.part))
    return found


def _zb_lane(stages: tuple[int, ...], lanes: int, micro_batches: int) -> Iterator[Action]:
    """A lane of ZB-V: forward down, forward up in turn, then six actions a micro-batch, then what is left of W."""
    first, second = stages
    number = first
    counts = dict.fromkeys(((stage, kind) for stage in stages for kind in KINDS), 0)

    def next_of(stage: int, *kinds: Kind) -> Iterator[Action]:
        for kind in kinds:
            yield Action(stage, kind, counts[stage, kind])
            counts[stage, kind] += 1

    for _ in range(2 * (lanes - number) - 1):
        yield from next_of(first, "F")
    for _ in range(number):
        yield from next_of(second, "F")
        yield from next_of(first, "F")
    for _ in range(lanes - number):
        yield from next_of(second, "F", "I", "W")
    while counts[second, "F"] < micro_batches:
        if counts[first, "F"] < micro_batches:
            yield from next_of(first, "F")
        yield from next_of(first, "I", "W")
        yield from next_of(second, "F", "I", "W")
    for _ in range(number):
        yield from next_of(first, "I")
        yield from next_of(second, "I")
    for _ in range(lanes - number):
        yield from next_of(first, "I", "W")
    for stage in (second, first):
        while counts[stage, "W"] < micro_batches:
            yield from next_of(stage, "W")
