"""The descent: every choice of every operator is tried until none helps, so that the result is locally optimal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from maniple.strategies.soap.chain import Evaluator
    from maniple.strategies.soap.move import Choices
    from maniple.strategies.space import Space

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Descent:
    """A descent's state.

    Args:
        choices: of every operator; the evaluator is at the same plan.
        cost: the predicted step time of ``choices``.
        operator: whose choices are tried now.
        choice: the number of its next choice.
        quiet: how many operators in a row had no choice that helps.
        proposals: how many choices were evaluated.
    """

    choices: Choices
    cost: float
    operator: int = 0
    choice: int = 0
    quiet: int = 0
    proposals: int = 0

    @property
    def finished(self) -> bool:
        """Whether no choice of any single operator is faster."""
        return self.quiet >= len(self.choices)


def descend(descent: Descent, space: Space, evaluator: Evaluator) -> Descent:
    """The descent after one more choice was tried, and kept if it is faster.

    Args:
        descent: the state.
        space: what can be chosen.
        evaluator: predicts step times; it is at the descent's choices before and after.
    """
    options = space.operators[descent.operator].choices()
    if descent.choice == len(options):
        return replace(
            descent, operator=(descent.operator + 1) % len(descent.choices), choice=0, quiet=descent.quiet + 1
        )
    option = options[descent.choice]
    descent = replace(descent, choice=descent.choice + 1)
    if option == descent.choices[descent.operator]:
        return descent
    cost = evaluator.evaluate([(descent.operator, option)], descent.cost)
    descent = replace(descent, proposals=descent.proposals + 1)
    if cost >= descent.cost:
        evaluator.reject()
        return descent
    evaluator.accept()
    place = descent.operator
    choices = (*descent.choices[:place], option, *descent.choices[place + 1 :])
    # The other choices of this operator are tried against the new one as well.
    return replace(descent, choices=choices, cost=cost, choice=0, quiet=0)
