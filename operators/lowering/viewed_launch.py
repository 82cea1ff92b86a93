"""Viewed launches: tasks that use a member of a view group use the part of its root where that lies.

    keys are a slice of linear (see `view_group`)

    before    slice.forward        reads linear [0:2, 0:5, 0:24]    writes keys [0:2, 0:2, 0:5, 0:4]
              attention.forward    reads keys [0:2, 1:2, 0:5, 0:4]
    after     attention.forward    reads linear [0:2, 0:5, 12:16], and its body sees that as keys [0:2, 1:2, 0:5, 0:4]

The gradients of members are parts of the root's gradient in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.operator_body import BackwardBinder, ForwardBinder, Look
from maniple.operators.lowering.view_group import view_groups
from maniple.regions.privilege import reduce
from maniple.runtime.schedule.launch_columns import Rects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.lowering.launch_form import LaunchForm
    from maniple.operators.lowering.step_regions import StepRegions
    from maniple.operators.lowering.view_group import Gradients, ViewGroup
    from maniple.operators.rules.bounds import Bounds
    from maniple.operators.rules.view import View
    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule.launch import Launch, Requirement

__all__: list[str] = []

VIEWED = ("value", "gradient")
"""What of a member is a part of the root's."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    """A requirement of a launch that uses a member.

    Args:
        launch: which.
        slot: of its requirements.
        kind: ``value`` or ``gradient``.
        member: the tensor.
        contributes: whether it contributes to a gradient.
    """

    launch: int
    slot: int
    kind: str
    member: int
    contributes: bool


class ViewedLaunches:
    """The launches of a step without those of view groups whose members can all be used where they lie.

    Args:
        launches: of the step.
        forms: of each that is an operator's the form.
        groups: by the numbers of the graph that is lowered.
        regions: of the step.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        forms: Sequence[LaunchForm | None],
        groups: Sequence[ViewGroup],
        regions: StepRegions,
    ) -> None:
        self._launches, self._regions = list(launches), regions
        self._bounds: dict[int, Bounds] = {}
        self._moved: dict[tuple[int, View], Rects] = {}
        owner = {node: number for number, group in enumerate(groups) for node in group.nodes}
        member_of = {tensor: number for number, group in enumerate(groups) for tensor in group.members}
        uses: list[list[_Use]] = [[] for _ in groups]
        own: list[list[int]] = [[] for _ in groups]
        for place, form in enumerate(forms):
            if form is not None and form.node.id in owner:
                own[owner[form.node.id]].append(place)
            elif form is not None:
                for slot, need in enumerate(form.requirements):
                    kind, tensor = need.region
                    if kind in VIEWED and tensor in member_of:
                        uses[member_of[tensor]].append(_Use(place, slot, kind, tensor, need.access == "gradient"))
        self.elided: list[ViewGroup] = []
        """The groups whose operators have no launches."""
        gone: set[int] = set()
        for group, found, places in zip(groups, uses, own, strict=True):
            tiles = ((use.member, self._tiles(use)) for use in found)
            gradients = group.gradients(tiles, [use.member for use in found if use.contributes])
            if gradients is not None:
                self.elided.append(group)
                gone.update(places)
                for use in found:
                    self._look(use, group, gradients)
        self.launches = tuple(launch for place, launch in enumerate(self._launches) if place not in gone)
        """What is left."""

    def _tiles(self, use: _Use) -> Bounds:
        """What the tasks of a launch use of a member."""
        rects = self._launches[use.launch].requirements[use.slot].rects
        if id(rects) not in self._bounds:
            self._bounds[id(rects)] = _bounds(rects)
        return self._bounds[id(rects)]

    def _look(self, use: _Use, group: ViewGroup, gradients: Gradients) -> None:
        """Have a launch use the root."""
        launch, view = self._launches[use.launch], group.members[use.member]
        need = launch.requirements[use.slot]
        privilege = reduce("+") if use.contributes and gradients == "shared" else need.privilege
        region = self._regions.region((use.kind, group.root))
        if use.member == group.root:
            changed = replace(need, privilege=privilege)
        else:
            changed = replace(need, region=region, privilege=privilege, rects=self._rects(need, view))
        requirements = (*launch.requirements[: use.slot], changed, *launch.requirements[use.slot + 1 :])
        binder = launch.binder
        if isinstance(binder, ForwardBinder | BackwardBinder) and use.member != group.root:
            binder = replace(binder, looks=(*binder.looks, Look(use.slot, view, need.rects)))
        self._launches[use.launch] = replace(launch, requirements=requirements, binder=binder)

    def _rects(self, need: Requirement, view: View) -> Rects:
        """The boxes of the root, one sequence for all requirements that have one of the member's."""
        key = id(need.rects), view
        if key not in self._moved:
            bounds = view.bounds(_bounds(need.rects))
            if bounds is None:
                msg = f"{need.region.name}: a tile is no box of the root"
                raise TypeError(msg)
            self._moved[key] = Rects(bounds)
        return self._moved[key]


def _bounds(rects: Sequence[IndexSpace]) -> Bounds:
    if isinstance(rects, Rects):
        return rects.bounds
    ends = [(rect.bounds.lo, rect.bounds.hi) for rect in rects]
    return np.asarray(ends, dtype=np.int64).transpose(0, 2, 1)


def lowered_groups(graph: Graph, lowered: Graph, targets: Collection[int]) -> Iterator[ViewGroup]:
    """The view groups of a graph, by the numbers of the graph where its composites are composed of others.

    Args:
        graph: as it was before.
        lowered: as it is lowered, which has the operators of the groups by the same names.
        targets: see ``view_groups``.
    """
    for group in view_groups(graph, targets):
        numbers: dict[int | None, int] = {}
        nodes = []
        for node in (graph.nodes[number] for number in group.nodes):
            found = lowered.node(node.name)
            nodes.append(found.id)
            numbers[node.operands[0]], numbers[node.results[0]] = found.operands[0] or 0, found.results[0]
        members = {numbers[tensor]: view for tensor, view in group.members.items()}
        yield replace(group, root=numbers[group.root], members=members, nodes=tuple(nodes))
