"""The order of a pipeline: for each lane the actions of its stages, one after the other.

    1F1B, two stages, three micro-batches           as ticks, backward as long as forward

    lane 0   0F0 0F1 0B0 0F2 0B1 0B2                0F0  0F1  --   0B0  0F2  0B1  --   0B2
    lane 1   1F0 1B0 1F1 1B1 1F2 1B2                --   1F0  1B0  1F1  1B1  1F2  1B2  --

Forward of a stage comes after forward of the stages that it reads from, backward after backward of those that read
from it; so much follows from the stages and is not written. What is written is what comes next on a lane. That an order
is one of its stages and micro-batches is checked when it is made; that its lanes can meet, when they are merged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.operators.pipeline_order.action import Action, Kind
from maniple.operators.pipeline_order.lockstep import in_lockstep
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []

_SHOWN = 3


@final
class MisplacedActionError(RequestError):
    """An action that is missing, stands twice or in the wrong place.

    Args:
        message: what is wrong.
        lane: where.
    """

    def __init__(self, message: str, lane: int) -> None:
        super().__init__(message)
        self.lane = lane


@final
@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """For each lane its actions in order.

    Args:
        lanes: the actions; all those of a stage stand in one lane.
        stages: how many stages there are.
        micro_batches: how many micro-batches.

    Raises:
        RequestError: an action is missing, stands twice or in the wrong place, or there are none.
    """

    lanes: tuple[tuple[Action, ...], ...]
    stages: int
    micro_batches: int

    def __post_init__(self) -> None:
        if self.micro_batches < 1 or self.stages < 1:
            raise RequestError(
                f"order: expected at least 1 stage and 1 micro-batch, got {self.stages} and {self.micro_batches}"
            )
        home: dict[int, int] = {}
        for number, lane in enumerate(self.lanes):
            seen: dict[tuple[int, int], str] = {}
            for place, action in enumerate(lane):
                self._check_place(number, place, home.setdefault(action.stage, number))
                before = seen.get((action.stage, action.micro_batch), "")
                if expected := _wrong_after(before, action):
                    raise self._fault(number, place, f"{action} {expected}")
                seen[action.stage, action.micro_batch] = before + action.kind
            self._check_whole(number, seen, {stage for stage, lane_of in home.items() if lane_of == number})
        if lost := sorted(set(range(self.stages)) - set(home)):
            raise RequestError(
                f"order: stage {lost[0]} of {self.stages} does nothing; expected {lost[0]}F0 in some lane"
            )

    def ticks(self, graph: StageGraph) -> list[list[Action | None]]:
        """What each lane does in every tick, where every action takes one; None where it waits.

        Args:
            graph: the stages.

        Raises:
            RequestError: the lanes cannot meet; the message has the circle that they wait in.
        """
        if graph.stages != self.stages:
            raise RequestError(f"order: is of {self.stages} stages, and there are {graph.stages}")
        backward = {(a.stage, a.micro_batch): a for lane in self.lanes for a in lane if a.kind in "BI"}
        readers = graph.readers

        def needs(action: Action) -> list[Action]:
            stage, kind, part = action
            if kind == "F":
                return [Action(source, "F", part) for source in graph.reads[stage]]
            if kind in "BI":
                return [backward[reader, part] for reader in readers[stage]]
            return []

        return in_lockstep(self.lanes, needs)

    def merged(self, graph: StageGraph) -> tuple[Action, ...]:
        """All actions in one order that each lane agrees with, and what stages read of each other.

        Args:
            graph: the stages.

        Raises:
            RequestError: the lanes cannot meet; the message has the circle that they wait in.
        """
        return tuple(action for tick in self.ticks(graph) for action in tick if action is not None)

    def in_flight(self) -> tuple[int, ...]:
        """For each stage the most micro-batches whose activations it holds at once: from F to B or to W."""
        most, now = Counter[int](), Counter[int]()
        for lane in self.lanes:
            for action in lane:
                now[action.stage] += (action.kind == "F") - (action.kind in "BW")
                most[action.stage] = max(most[action.stage], now[action.stage])
        return tuple(most[stage] for stage in range(self.stages))

    def lane_in_flight(self) -> tuple[int, ...]:
        """For each lane the most micro-batches that its stages hold together, one counted once for each stage."""
        found = []
        for lane in self.lanes:
            now, most = 0, 0
            for action in lane:
                now += (action.kind == "F") - (action.kind in "BW")
                most = max(most, now)
            found.append(most)
        return tuple(found)

    def _check_place(self, number: int, place: int, home: int) -> None:
        """Refuse an action of a stage or micro-batch that there is not, or of another lane's stage."""
        action = self.lanes[number][place]
        if not 0 <= action.stage < self.stages:
            raise self._fault(number, place, f"{action} is of stage {action.stage}; expected 0 to {self.stages - 1}")
        if not 0 <= action.micro_batch < self.micro_batches:
            last = self.micro_batches - 1
            raise self._fault(number, place, f"{action} is of micro-batch {action.micro_batch}; expected 0 to {last}")
        if home != number:
            raise self._fault(
                number, place, f"{action} is of stage {action.stage}, which stands in lane {home}; a stage has one lane"
            )

    def _check_whole(self, number: int, seen: dict[tuple[int, int], str], stages: set[int]) -> None:
        """Refuse a lane whose stages leave something out."""
        for stage in sorted(stages):
            for part in range(self.micro_batches):
                found = seen.get((stage, part), "")
                if missing := _missing_after(found):
                    action = Action(stage, missing, part)
                    raise self._fault(number, len(self.lanes[number]), f"{action} is missing")

    def _fault(self, number: int, place: int, problem: str) -> MisplacedActionError:
        text = f"order: lane {number}, position {place}: {problem}\n  {instant(self.lanes[number], place)}"
        return MisplacedActionError(text, number)


def instant(lane: Sequence[Action], place: int) -> str:
    """A lane around one of its places, which is marked: ``... 1F0 1F1 >1W0< 1I0 ...``.

    Args:
        lane: the actions.
        place: which of them, or their number for the end.
    """
    low, high = max(0, place - _SHOWN), min(len(lane), place + _SHOWN + 1)
    words = [f">{action}<" if at == place else str(action) for at, action in enumerate(lane[low:high], low)]
    if place == len(lane):
        words.append("><")
    return " ".join(["..."] * (low > 0) + words + ["..."] * (high < len(lane)))


def _wrong_after(before: str, action: Action) -> str:
    """What is wrong with an action after others of its stage and micro-batch; empty if nothing."""
    stage, kind, part = action
    if kind in before:
        return "stands twice"
    if kind != "F" and "F" not in before:
        return f"comes before {stage}F{part}: expected forward first"
    if kind in "BIR" and ("B" in before or "I" in before):
        return f"comes after {stage}{'B' if 'B' in before else 'I'}{part}: expected " + (
            "forward again before backward" if kind == "R" else "either B, or I and W"
        )
    if kind == "W" and "B" in before:
        return f"comes after {stage}B{part}, which has the gradients of weights: expected either B, or I and W"
    if kind == "W" and "I" not in before:
        return f"comes before {stage}I{part}: expected gradients of weights after those of inputs"
    return ""


def _missing_after(before: str) -> Kind | None:
    """What a stage has not done with a micro-batch, of which it did some; None if nothing."""
    if "F" not in before:
        return "F"
    if "B" in before:
        return None
    if "I" not in before:
        return "B"
    return None if "W" in before else "W"
