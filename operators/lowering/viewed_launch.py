"""Viewed launches: tasks that use a member of a view group use the part of its root where that lies.

    keys are a slice of linear (see `view_group`)

    before    slice.forward        reads linear [0:2, 0:5, 0:24]    writes keys [0:2, 0:2, 0:5, 0:4]
              attention.forward    reads keys [0:2, 1:2, 0:5, 0:4]
    after     attention.forward    reads linear [0:2, 0:5, 12:16], and its body sees that as keys [0:2, 1:2, 0:5, 0:4]

The gradients of members are parts of the root's gradient in the same way.

Where operators take turns, each micro-batch has regions of its own of the root and of each member, in which its samples
begin at 0. There a member lies in the root as it does among all samples, if a sample is as many elements of either
along the axes that the micro-batches cut:

    micro-batch 1 of 2, of 4 samples    reads linear#1 [0:2, 0:5, 12:16], which is linear [2:4, 0:5, 12:16]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.operator_body import BackwardBinder, ForwardBinder, Look
from maniple.operators.lowering.operator_launch import used_rects
from maniple.operators.lowering.view_group import view_groups
from maniple.regions.privilege import reduce
from maniple.runtime.schedule.launch_columns import Rects

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import LaunchForm, RequirementForm
    from maniple.operators.lowering.operator_launch import LaunchPattern
    from maniple.operators.lowering.script import Script
    from maniple.operators.lowering.step_regions import StepRegions
    from maniple.operators.lowering.view_group import Gradients, ViewGroup
    from maniple.operators.rules.bounds import Bounds
    from maniple.operators.rules.task_placement import PlacedTasks
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
            self._moved[key] = _rects(view, _bounds(need.rects), need.region.name)
        return self._moved[key]


@final
class TurnedViews:
    """The view groups of a step whose operators take turns.

    Args:
        groups: by the numbers of the graph that is lowered.
        script: what the step does.
        regions: of the step.
        place: gives the tasks of an operator in a micro-batch.
    """

    def __init__(
        self,
        groups: Sequence[ViewGroup],
        script: Script,
        regions: StepRegions,
        place: Callable[[Node, int], PlacedTasks],
    ) -> None:
        self._script, self._regions, self._place = script, regions, place
        self._groups = [group for group in groups if all(self._is_aligned(group, tensor) for tensor in group.members)]
        self._users = [
            [
                node
                for node in script.nodes
                if node.id not in group.nodes and not group.members.keys().isdisjoint((*node.operands, *node.results))
            ]
            for group in self._groups
        ]
        self._known: dict[int, tuple[tuple[PlacedTasks, ...], Gradients | None]] = {}
        self._member = self._find()
        self.nodes = frozenset(node for group, _ in self._member.values() for node in group.nodes)
        """The operators that have no launches."""

    def holds(self) -> bool:
        """Whether the same groups are used where they lie as operators are placed now."""
        return self._find() == self._member

    def _find(self) -> dict[int, tuple[ViewGroup, Gradients]]:
        """By member the groups whose operators have no launches, and how gradients add up."""
        found: dict[int, tuple[ViewGroup, Gradients]] = {}
        for number, group in enumerate(self._groups):
            gradients = self._gradients(number)
            if gradients is not None:
                found.update(dict.fromkeys(group.members, (group, gradients)))
        return found

    def look(self, pattern: LaunchPattern, part: int) -> LaunchPattern:
        """A pattern that uses roots instead of members.

        Args:
            pattern: of an operator that has launches.
            part: the micro-batch for which it was made.
        """
        form, launch, binder = pattern.form, pattern.launch, pattern.launch.binder
        needs, refs, later, looks = [], list(form.requirements), list(pattern.later), list[Look]()
        for slot, (ref, need) in enumerate(zip(form.requirements, launch.requirements, strict=True)):
            kind, tensor = ref.region
            if kind not in VIEWED or tensor not in self._member:
                needs.append(need)
                continue
            group, gradients = self._member[tensor]
            first, rects = need.privilege, need.rects
            if ref.access == "gradient" and gradients == "shared":
                first = later[slot] = reduce("+")
            refs[slot] = replace(ref, region=(kind, group.root))
            if tensor != group.root:
                view = group.members[tensor]
                rects = _rects(view, _bounds(rects), need.region.name)
                looks.append(Look(slot, view, need.rects))
            region = self._regions.region(refs[slot].region, part)
            needs.append(replace(need, region=region, privilege=first, rects=rects))
        if isinstance(binder, ForwardBinder | BackwardBinder) and looks:
            binder = replace(binder, looks=tuple(looks))
        launch = replace(launch, requirements=tuple(needs), binder=binder)
        return replace(pattern, form=replace(form, requirements=tuple(refs)), launch=launch, later=tuple(later))

    def _is_aligned(self, group: ViewGroup, tensor: int) -> bool:
        """Whether a micro-batch's part of a member lies in its part of the root as the member does in the root."""
        parts, view = self._regions.parts, group.members[tensor]
        axis, at = parts.written(tensor), parts.written(group.root)
        if parts.count == 1:
            return True
        if axis is None or at is None or not (parts.apart(tensor) and parts.apart(group.root)):
            return False
        own, further = parts.start(view.member[axis], 1), parts.start(view.shape[at], 1)
        return any(cut.axis == axis and cut.step * own == further for cut in view.parts[at])

    def _gradients(self, number: int) -> Gradients | None:
        """How the gradients of a group's members add up where its operators have no launches."""
        group, parts = self._groups[number], self._regions.parts
        placed = tuple([self._place(node, part) for node in self._users[number] for part in parts.ends(node)])
        known = self._known.get(number)
        if known is None or any(one is not other for one, other in zip(known[0], placed, strict=True)):
            needs = [
                (form, need)
                for node in self._users[number]
                for kind in ("forward", "backward")
                for form in self._script.forms.of(kind, node)
                for need in form.requirements
                if need.region[0] in VIEWED and need.region[1] in group.members
            ]
            uses = [
                (need.region[1], self._tiles(form, need, part))
                for form, need in needs
                for part in parts.ends(form.node)
            ]
            contributed = [need.region[1] for _, need in needs if need.access == "gradient"]
            known = self._known[number] = placed, group.gradients(uses, contributed)
        return known[1]

    def _tiles(self, form: LaunchForm, need: RequirementForm, part: int) -> Bounds:
        """What the tasks of a launch use of a member, in the region that a micro-batch has of it."""
        placed = self._place(form.node, part)
        tasks = placed if form.is_forward else placed.primary()
        return _bounds(used_rects(need, form.node, tasks, self._regions, part))


def _rects(view: View, bounds: Bounds, name: str) -> Rects:
    """What tiles of a member use of its root."""
    found = view.bounds(bounds)
    if found is None:
        msg = f"{name}: a tile is no box of the root"
        raise TypeError(msg)
    return Rects(found)


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
