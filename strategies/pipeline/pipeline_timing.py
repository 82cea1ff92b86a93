"""A pipeline of stages in time: an event-by-event account of one mini-batch, whatever the closed forms say.

Three stages, four micro-batches, forward and backward one unit each, transfers free:

    1F1B       stage 0  F0 F1 F2 -- -- B0 F3 B1 -- B2 -- B3
               stage 1  -- F0 F1 -- B0 F2 B1 F3 B2 -- B3 --
               stage 2  -- -- F0 B0 F1 B1 F2 B2 F3 B3 -- --

(Narayanan et al., PipeDream, SOSP 2019, section 3.2, with a flush; Huang et al., GPipe; Zhao et al., BaPipe, for
1f1b-so and fbp.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from maniple.operators.pipeline_order.named_order import named_order
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.strategies.pipeline.stage_costs import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.pipeline.stage_costs import Overlap

__all__: list[str] = []

Action = tuple[str, int]
"""``F`` or ``B``, and the micro-batch."""
RUNS_AS: Final[Mapping[Order, str]] = {
    "1f1b": "1f1b",
    "1f1b-so": "early_backward",
    "fbp": "early_backward",
    "gpipe": "gpipe",
}
"""The orders of `operators/pipeline_order` for those that searches know. A processor runs one pass at a time, so where
both passes were to run at once they take turns, with as many micro-batches in flight."""


@final
@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one micro-batch takes in a stage.

    Args:
        forward_s: seconds of its forward pass.
        backward_s: seconds of its backward pass.
        transfer_s: seconds over the cut after it, in one direction.
    """

    forward_s: float
    backward_s: float
    transfer_s: float = 0.0

    @property
    def both_s(self) -> float:
        """Seconds of both passes."""
        return self.forward_s + self.backward_s


def actions(order: Order, stages: int, stage: int, micro_batches: int) -> list[Action]:
    """What a stage does, in order.

    Args:
        order: a pipeline order that ends with a flush.
        stages: how many there are.
        stage: which one, the first is 0.
        micro_batches: how many there are.
    """
    lanes = named_order(RUNS_AS[order], StageGraph.chain(stages), micro_batches).lanes
    return [(action.kind, action.micro_batch) for action in lanes[stage]]


def pipeline_s(stages: Sequence[StageTimes], order: Order, micro_batches: int, transfers: Overlap = "overlap") -> float:
    """Seconds from the first forward to the last backward of one mini-batch.

    With ``overlap`` every cut has a link for each direction, which carries one micro-batch after the other while the
    stages compute; with ``add`` a stage is busy while it sends and while it receives. Under ``fbp`` a stage runs a
    forward and a backward at once, at the pace of both together.

    Args:
        stages: the stages.
        order: the pipeline order.
        micro_batches: how many.
        transfers: whether they overlap with computation.
    """
    count = len(stages)
    queues = [actions(order, count, stage, micro_batches) for stage in range(count)]
    lanes = ("F", "B") if order == "fbp" else ("FB",)
    todo = {(s, lane): [a for a in queues[s] if a[0] in lane] for s in range(count) for lane in lanes}
    free = dict.fromkeys(todo, 0.0)
    link = {(s, kind): 0.0 for s in range(count) for kind in "FB"}
    arrived: dict[tuple[int, str, int], float] = {(0, "F", n): 0.0 for n in range(micro_batches)}
    end, moving = 0.0, True
    while moving:
        moving = False
        for key, queue in todo.items():
            stage = key[0]
            while queue and (stage, *queue[0]) in arrived:
                kind, n = queue.pop(0)
                begun = max(free[key], arrived[stage, kind, n])
                done = begun + _busy_s(stages, stage, kind, order, transfers)
                free[key], end, moving = done, max(end, done), True
                _pass_on(stages, stage, (kind, n), done, transfers, link, arrived)
    return end


def _busy_s(stages: Sequence[StageTimes], stage: int, kind: str, order: Order, transfers: Overlap) -> float:
    """Seconds that an action keeps its stage busy."""
    times = stages[stage]
    own = times.forward_s if kind == "F" else times.backward_s
    if order == "fbp":
        own = times.forward_s + times.backward_s
    if transfers == "add":
        own += times.transfer_s if stage < len(stages) - 1 else 0.0
        own += stages[stage - 1].transfer_s if stage else 0.0
    return own


def _pass_on(
    stages: Sequence[StageTimes],
    stage: int,
    action: Action,
    done: float,
    transfers: Overlap,
    link: dict[tuple[int, str], float],
    arrived: dict[tuple[int, str, int], float],
) -> None:
    """Send a result to the stage that needs it, or turn around at the last stage."""
    kind, n = action
    last = len(stages) - 1
    if kind == "F" and stage == last:
        arrived[stage, "B", n] = done
        return
    if kind == "B" and stage == 0:
        return
    target = stage + 1 if kind == "F" else stage - 1
    if transfers == "add":
        arrived[target, kind, n] = done
        return
    cut = min(stage, target)
    # A backward also needs its own forward, which the order of actions sees to.
    link[cut, kind] = max(link[cut, kind], done) + stages[cut].transfer_s
    arrived[target, kind, n] = link[cut, kind]
