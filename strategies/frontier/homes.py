"""Homes: where the weights of an operator may live, as alternatives of one choice of it.

    home          where a weight is                                  against the first
    spread        cut over all who use it, where they do not each
                  use a part of their own
    where used    each part at all who use it                        nothing to gather; states and updates several times
    passing       spread, and whole only while it is used            gathered twice; neither its value nor its gradient
                                                                     stays whole anywhere
    summed        spread; gradients of micro-batches add up there    each is sent, not their sum, which is whole nowhere
    gathered      as passing, but gradients add up where they are    each micro-batch gathers it twice, and the sum is
                  computed                                           sent once

They are those of ZeRO's stages 1, 0, 3 and 2 (`operators/plan/sharding.py`), and stage 3 with the sums of stage 1. So
in the first a weight is whole at all who use it, and an optimizer's state is not: it is spread apart from the weight.
The last two are there for micro-batches alone. A weight that several operators use lives where its default home is.

What is read of a weight may also be kept for a step (`copy="step"`). That is no home here: by the model it is gathered
as often as what is spread, and held beside its home, where what is kept is one instance with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maniple.operators.rules.configuration import Copy, Sums, WeightPlan
from maniple.strategies.optcnn.home_table import GATHERED, PASSING, SPREAD, SUMMED, WHERE_USED

if TYPE_CHECKING:
    from maniple.operators.plan.weight_home import Users
    from maniple.strategies.interface.space import Choice
    from maniple.strategies.optcnn.placed_operators import PlacedOperators
    from maniple.strategies.simulation.home_boxes import HomeBoxes

__all__: list[str] = []

Weights = list[tuple[int, "HomeBoxes"]]
"""The weights of an operator, and where each lives."""
WORKING: dict[int, tuple[Copy, Sums]] = {
    PASSING: ("pass", "home"),
    SUMMED: ("kept", "home"),
    GATHERED: ("pass", "use"),
}
"""Of the homes that are spread how long what is read is there, and where gradients of micro-batches add up."""


def homes_of(operators: PlacedOperators, number: int, choice: Choice) -> dict[int, Weights]:
    """The homes of an operator's weights by number: the first, and others in which any weight is not there.

    Args:
        operators: the operators, placed.
        number: the operator.
        choice: its choice.
    """
    spread = [(tensor, operators.home(tensor, (number,), (choice,))) for tensor in operators.weights(number)]
    found = {SPREAD: spread}
    for home in (WHERE_USED, PASSING):
        plans = [weight_plan(operators, tensor, number, choice, home) for tensor, _ in spread]
        if any(plan is not None for plan in plans):
            found[home] = [
                (tensor, old if plan is None else operators.home_boxes(tensor, plan))
                for plan, (tensor, old) in zip(plans, spread, strict=True)
            ]
    return found


def weight_plan(operators: PlacedOperators, tensor: int, number: int, choice: Choice, home: int) -> WeightPlan | None:
    """A home of a weight; None where that is its first one.

    Args:
        operators: the operators, placed.
        tensor: the weight.
        number: one that uses it.
        choice: how.
        home: the number of the home.
    """
    if home == SPREAD or operators.sharing(tensor) > 1:
        return None
    used = plan_where_used(operators.users(tensor, number, choice))
    if used is None or home == WHERE_USED:
        return used
    if operators.plan_free.tensors[tensor].kind != "parameter":
        return None
    copy, sums = WORKING[home]
    return replace(operators.home(tensor, (number,), (choice,)).home.plan, copy=copy, sums=sums)


def plan_where_used(users: Users) -> WeightPlan | None:
    """The home whose blocks are the tiles that are used, each at all that use it; None where one uses each.

    Args:
        users: the tiles, and by tile the processors that use it.
    """
    tiles, processors = users
    owners: dict[tuple[int, ...], list[int]] = {}
    for tile, found in zip(tiles.reshape(len(tiles), -1).tolist(), processors.tolist(), strict=True):
        mine = owners.setdefault(tuple(tile), [])
        mine += [processor for processor in found if processor not in mine]
    counts = {len(found) for found in owners.values()}
    if len(counts) != 1 or counts == {1}:
        return None
    ordered = sorted(owners)
    axes = len(ordered[0]) // 2
    degrees = tuple(len({tile[2 * axis] for tile in ordered}) for axis in range(axes))
    if int(np.prod(degrees)) != len(ordered):
        return None
    return WeightPlan(degrees, tuple(place for tile in ordered for place in owners[tile]), counts.pop())
