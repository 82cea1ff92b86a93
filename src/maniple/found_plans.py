"""What a search found: its answer, and the plans that are to race for it; found on rank 0 and given to all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from maniple.operators.plan.plan import Plan
from maniple.strategies.interface.plan_frontier import Frontier

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

PARETO = "pareto"
"""The objective whose answer is a frontier."""
PIECE_BYTES = 1 << 18
"""A plan reaches the other ranks in pieces of this size, which a control message carries."""
NAME = "the plan of rank 0"
"""What messages call what was told wrongly."""


@final
@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Args:
        answer: a plan, or a frontier.
        racers: plans of which steps are to be run, data parallelism first; none where the answer stands.
    """

    answer: Plan | Frontier
    racers: tuple[Plan, ...] = ()

    def text(self) -> str:
        """All of it as one text."""
        return json.dumps([one.text() for one in (self.answer, *self.racers)])

    @classmethod
    def parse(cls, text: str, objective: str) -> Self:
        """What was found for an objective, of the text that `text` gave."""
        answer, *racers = json.loads(text)
        read = Frontier.parse if objective == PARETO else Plan.parse
        return cls(read(answer, NAME), tuple(Plan.parse(one, NAME) for one in racers))


def headway_step() -> Callable[[], object]:
    """What a rank that others wait for calls as it gets on with searching or measuring; alone, it does nothing."""
    from maniple.runtime.control import world

    here = world.joined()
    return int if here is None else here.headway.step


def find_on_rank_0(call: str, drive: Callable[[], Found], objective: str) -> Found:
    """Search on rank 0 and give what it finds to all; alone, just search.

    Args:
        call: what messages call it; a rank that waits for rank 0's plan says so.
        drive: searches.
        objective: for what.
    """
    from maniple.process import environment
    from maniple.runtime.control import world

    if not environment.is_launched():
        return drive()
    here = world.current()
    here.control.call(call)
    told = b""
    if here.rank == 0:
        told = drive().text().encode()
    size = int.from_bytes(here.control.gather(len(told).to_bytes(8, "big"))[0], "big")
    pieces = [here.control.gather(told[at : at + PIECE_BYTES])[0] for at in range(0, size, PIECE_BYTES)]
    return Found.parse(b"".join(pieces).decode(), objective)
