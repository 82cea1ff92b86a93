"""The tables of OptCNN's costs, made a part at a time beside the chains: its plan is one more seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.strategies.optcnn.optcnn import OptCNN, OptCNNState

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.soap.evaluation import Evaluation

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Tables:
    """Some steps of OptCNN's; the tables themselves are kept beside the state, so the item stays in its process.

    Args:
        state: as far as they have come.
        steps: how many are still to be made.
    """

    state: OptCNNState
    steps: int

    @property
    def plan(self) -> Plan | None:
        """OptCNN's plan, once it is known."""
        return self.state.plan

    @property
    def proposals(self) -> int:
        """None of a search's proposals is made here."""
        return 0

    @property
    def most(self) -> int:
        """None ever."""
        return 0

    @property
    def finished(self) -> bool:
        """Whether the steps are made, or the plan is known before."""
        return self.steps == 0 or self.plan is not None

    def step(self, evaluation: Evaluation) -> Tables:
        """The item after one more step; the evaluation is not touched."""
        del evaluation
        return replace(self, state=OptCNN().step(self.state), steps=self.steps - 1)

    def pack(self) -> None:
        """Nothing: see the class."""
        return
