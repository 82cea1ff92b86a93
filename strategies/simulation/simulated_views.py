"""Simulated views: the launches of operators as the runtime has them where some results are used where they lie.

The rule is the runtime's (`operators/lowering/view_group.py`): a view group whose members' tiles are all boxes of the
root has no launches of its own operators, and all others use the root. A change of one operator's configuration may
bring those of its groups about, or back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.regions.columns.boxes import HIGH, LOW
from maniple.regions.columns.validity import GRADIENT, REDUCE, WRITE_DISCARD
from maniple.strategies.simulation.operator_split import boxes_of_bounds
from maniple.strategies.simulation.region_cache import Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maniple.operators.lowering.view_group import Gradients, ViewGroup
    from maniple.operators.rules.bounds import Bounds
    from maniple.operators.rules.view import View
    from maniple.strategies.simulation.launch_table import LaunchTable, PlacedLaunch
    from maniple.strategies.simulation.plan_free_step import PlanFreeStep, RegionKey
    from maniple.strategies.simulation.region_cache import Shapes, UseShape

__all__: list[str] = []

KEPT = 20_000
"""So many shapes are kept to be found again, and then forgotten together."""


@final
class SimulatedViews:
    """The view groups of a step under a plan that changes.

    Args:
        plan_free: what the plan does not change.
        shapes: where equal uses are found again.
    """

    def __init__(self, plan_free: PlanFreeStep, shapes: Shapes) -> None:
        self._shapes, self._groups = shapes, plan_free.groups
        self.placed: dict[int, dict[int, PlacedLaunch]] = {}
        """By operator its launches by place, as if all tensors were regions."""
        self.elided: dict[int, Gradients] = {}
        """The groups whose operators have no launches, by number, and how gradients add up."""
        self._group_of = {tensor: number for number, group in enumerate(self._groups) for tensor in group.members}
        self._owner = {node: number for number, group in enumerate(self._groups) for node in group.nodes}
        self._users: list[list[int]] = [[] for _ in self._groups]
        self._uses: dict[int, tuple[int, ...]] = {}
        for node in plan_free.nodes:
            if node.id in plan_free.needed:
                tensors = (*node.results, *(operand for operand in node.operands if operand is not None))
                groups = tuple(dict.fromkeys(self._group_of[t] for t in tensors if t in self._group_of))
                self._uses[node.id] = groups
                for group in groups:
                    self._users[group].append(node.id)
        self._kept: dict[tuple[View, UseShape, int], UseShape] = {}

    def seen(self, table: LaunchTable, changed: Sequence[int]) -> Iterator[tuple[int, PlacedLaunch | None]]:
        """The launches of operators whose configurations changed, and of those that see it, by place; None for none.

        Args:
            table: notes what changes.
            changed: the numbers of the operators.
        """
        again = dict.fromkeys(changed)
        for group in dict.fromkeys(group for number in changed for group in self._uses[number]):
            found = self._gradients(group)
            if found != self.elided.get(group):
                table.set(self.elided, group, found)
                again.update(dict.fromkeys(self._users[group]))
        for number in again:
            gone = self._owner.get(number) in self.elided
            for place, launch in self.placed[number].items():
                yield place, None if gone else self._seen(launch, self._uses[number])

    def _gradients(self, number: int) -> Gradients | None:
        """How the gradients of a group's members add up where its operators have no launches."""
        group = self._groups[number]
        users = [user for user in self._users[number] if self._owner.get(user) != number]
        if not all(user in self.placed for user in users):
            return None
        uses = [use for user in users for launch in self.placed[user].values() for use in _member_uses(launch, group)]
        tiles = ((tensor, _bounds(use.shape, group.members[tensor])) for tensor, use in uses)
        return group.gradients(tiles, [tensor for tensor, use in uses if use.shape.access == GRADIENT])

    def _seen(self, launch: PlacedLaunch, groups: Iterable[int]) -> PlacedLaunch:
        """A launch that uses roots instead of members."""
        uses = launch.uses
        for number in groups:
            if number in self.elided:
                group, gradients = self._groups[number], self.elided[number]
                uses = tuple([self._look(key, use, group, gradients) for key, use in uses])
        return launch if uses is launch.uses else replace(launch, uses=uses)

    def _look(self, key: RegionKey, use: Use, group: ViewGroup, gradients: Gradients) -> tuple[RegionKey, Use]:
        kind, number, tensor = key
        if not _is_member(key, group):
            return key, use
        view, access = group.members[tensor], use.shape.access
        if access == GRADIENT and gradients == "apart":
            access = WRITE_DISCARD if use.shape.disjoint else REDUCE
        known = view, use.shape, access
        if known not in self._kept:
            if len(self._kept) > KEPT:
                self._kept.clear()
            self._kept[known] = self._shape(*known)
        shape = self._kept[known]
        return (kind, number, group.root), Use(shape, use.processors, (shape.number, use.processors.tobytes()))

    def _shape(self, view: View, shape: UseShape, access: int) -> UseShape:
        """What tasks use of a root."""
        bounds = view.bounds(_bounds(shape, view))
        if bounds is None:
            msg = "a tile is no box of the root"
            raise TypeError(msg)
        return self._shapes.shape(access, shape.points, shape.colors, boxes_of_bounds(bounds))


def _member_uses(launch: PlacedLaunch, group: ViewGroup) -> Iterator[tuple[int, Use]]:
    """The uses of a launch that are of members of a group, or of their gradients."""
    return ((key[2], use) for key, use in launch.uses if _is_member(key, group))


def _is_member(key: RegionKey, group: ViewGroup) -> bool:
    kind, number, tensor = key
    return number < 0 and kind in {"value", "gradient"} and tensor in group.members


def _bounds(shape: UseShape, view: View) -> Bounds:
    """What tasks use of a member, by task, axis and end."""
    axes, boxes = len(view.member), shape.boxes
    found: Bounds = np.stack([boxes[:, LOW : LOW + axes], boxes[:, HIGH : HIGH + axes]], axis=2)
    return found
