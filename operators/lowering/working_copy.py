"""Working copies: what tasks read of a weight apart from its home, for as long as they do.

A home lasts: its blocks with the optimizer's state, spread over memories as the plan says. A working copy is a region
of the step: a launch at the home writes the blocks into it, where tasks read it the analysis of validity gathers them,
and where nobody reads it any more its place is another's. For how long one lives says the home's `copy`:

    home of w      forward reads           backward reads          gathered
    kept           w                       w                       once, after the update; stays from step to step
    step           w.copy                  w.copy                  once, before its first use
    pass           w.copy.forward          w.copy.backward         twice; in a pipeline so often for each micro-batch

A weight that is read as halves is cast into its copy: what is gathered are halves then.

    kept           w.half                  w.half
    pass           w.half.forward          w.half.backward

Launches take turns where there are such copies, so that each is made right before its first use: all could be made when
a step begins, and would be there together.

What follows from the gradient of a weight that is whole only in passes takes its turn too, one operator later.

Gradients of micro-batches add up where they are computed, each processor its own contributions, whole; or at home
(`sums`): the gradient of one micro-batch, `w.grad.part#0`, is folded into the blocks of the home, and these are added
to those of `w.grad`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, final

from maniple.operators.operator.operator import HALF_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.launch_form import LaunchForm, RegionRef, RequirementForm
    from maniple.operators.plan.plan import Plan

__all__: list[str] = []

COPY = "copy"
"""The kind of region of a copy that lives for a step and is no cast."""
PART = "partial"
"""The kind of region of one micro-batch's gradient."""


@final
@dataclass(frozen=True, slots=True)
class WorkingCopies:
    """Which weights of a step are read from working copies, and where their gradients add up.

    Args:
        lives: of each weight that is, by its tensor, ``step`` or ``pass``.
        at_home: the weights whose gradients add up at home, micro-batch by micro-batch.
    """

    lives: Mapping[int, str] = field(default_factory=dict)
    at_home: frozenset[int] = frozenset()

    @classmethod
    def of(cls, graph: Graph, plan: Plan) -> Self:
        """What a plan says of a graph's weights."""
        homes = {tensor.id: plan.weight(tensor.name) for tensor in graph.lasting}
        lives = {tensor: home.copy for tensor, home in homes.items() if home.copy != "kept"}
        return cls(lives, frozenset(tensor for tensor, home in homes.items() if home.sums == "home"))

    def worked(self, form: LaunchForm, *, backward: bool, cut: bool) -> LaunchForm:
        """A launch that reads copies, and whose gradients add up where they should.

        Args:
            form: as it is where all weights are kept.
            backward: whether it runs after the loss is known.
            cut: whether there are several micro-batches.
        """
        if not self.lives and not (cut and self.at_home):
            return form

        def turned(need: RequirementForm) -> RequirementForm:
            kind, number = need.region
            if need.access == "gradient" and cut and number in self.at_home:
                return replace(need, region=(PART, number))
            lives = self.lives.get(number) if kind == "value" or kind in HALF_DTYPES else None
            if need.access != "read" or lives is None:
                return need
            base = COPY if kind == "value" else kind
            passing = (".backward" if backward else ".forward") if lives == "pass" else ""
            return replace(need, region=(base + passing, number))

        return replace(form, requirements=tuple([turned(need) for need in form.requirements]))


NONE_WORKING = WorkingCopies()
"""All weights are kept where they are read, and gradients add up there."""


def base_of(kind: str) -> str:
    """What a copy holds, whatever pass it is for: `COPY`, or the dtype of halves; of any other region nothing."""
    base = kind.partition(".")[0]
    return base if base == COPY or base in HALF_DTYPES else ""


def is_passing(kind: str) -> bool:
    """Whether a copy is for one pass of one micro-batch alone."""
    return "." in kind


def copies_read(form: LaunchForm) -> Iterator[RegionRef]:
    """The copies, casts among them, that a launch reads."""
    return (need.region for need in form.requirements if need.access == "read" and base_of(need.region[0]))
