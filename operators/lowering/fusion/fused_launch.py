"""Fused launches: what is done one after the other at one home is one task for each of its blocks.

    before    linear.weight.update    p0 [0:5, 0:64]   p1 [5:10, 0:64]     linear.bias.update    p0 [0:5]   p1 [5:10]
    after     linear.weight+linear.bias.update    p0 [0:5, 0:64] and [0:5]    p1 [5:10, 0:64] and [5:10]

Updates that follow one another are one launch where their weights have the same operators for readers and live alike:
on the same processors, block for block. Their gradients are complete at the same time, so nobody waits longer, and
nothing else is kept. So are assignments of buffers. The price of a task is paid once, and on a device that of a kernel,
where one updates all blocks that differ in nothing else. Where operators take turns each update keeps its own task, as
one may come between two passes of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, final

from maniple.operators.lowering.operator_body import AssignBinder, PureBinder, UpdateBinder
from maniple.runtime.schedule.launch import Launch
from maniple.runtime.schedule.launch_columns import Points

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    import torch

    from maniple.operators.graph.graph import Graph
    from maniple.runtime.schedule.launch import Point
    from maniple.runtime.storage.scratchpad import Scratchpad

__all__: list[str] = []

Use = TypeVar("Use")
Part = TypeVar("Part")


@final
@dataclass(frozen=True)
class FusedBinder(PureBinder):
    """Binds bodies that run one after the other as one.

    Args:
        parts: their binders.
        slots: by part, which of the views are its.
    """

    parts: tuple[UpdateBinder | AssignBinder, ...]
    slots: tuple[tuple[int, ...], ...]

    def pad(self, point: int) -> Scratchpad | None:
        """See ``PureBinder.pad``."""
        return next((pad for part in self.parts if (pad := part.pad(point)) is not None), None)

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        return "fused", self.slots, tuple([part.signature(point) for part in self.parts])

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block of each; updates that are the same but for their blocks are bound as one."""
        groups: dict[Hashable, list[int]] = {}
        for number, (part, slots) in enumerate(zip(self.parts, self.slots, strict=True)):
            company = _company(part, slots)
            groups.setdefault(number if company is None else company, []).append(number)
        bodies = tuple([self._bind(point, numbers, views, cores) for numbers in groups.values()])
        if len(bodies) == 1:
            return bodies[0]

        def run() -> None:
            for body in bodies:
                body()

        return run

    def _bind(
        self, point: int, numbers: Sequence[int], views: Sequence[torch.Tensor | None], cores: int
    ) -> Callable[[], object]:
        """Bind the parts that keep company as one."""
        first, seen = self.parts[numbers[0]], [[views[slot] for slot in self.slots[number]] for number in numbers]
        if len(numbers) == 1 or not isinstance(first, UpdateBinder):
            return first(point, seen[0], cores)
        blocks, rows, others = zip(*map(first.parts, seen), strict=True)
        return first.optimizer.bind_updates(blocks, cores, rows[0], *others[0])


def _company(part: UpdateBinder | AssignBinder, slots: Sequence[int]) -> Hashable:
    """What is the same for updates that differ in nothing but their blocks; None of what is bound alone."""
    if not isinstance(part, UpdateBinder) or part.scaled is not None:
        return None
    return part.optimizer, part.row, tuple(slots[2 + len(part.optimizer.states) :])


def home_users(graph: Graph) -> dict[str, tuple[int, ...]]:
    """By parameter or buffer the operators that read it or make its next value: the same for those that are fused.

    Args:
        graph: as it is before operators are composed of others.
    """
    found: dict[int, set[int]] = {tensor.id: set() for tensor in graph.lasting}
    for node in graph.nodes:
        for operand in node.operands:
            if operand in found:
                found[operand].add(node.id)
    for buffer, value in graph.assignments.items():
        producer = graph.producer(value)
        if producer is not None:
            found[buffer].add(producer.id)
    return {graph.tensors[tensor].name: tuple(sorted(users)) for tensor, users in found.items()}


def fused_name(names: Sequence[str]) -> str:
    """The name of a launch that is made of others, such as ``linear.weight+linear.bias.update``."""
    kind = names[0].rpartition(".")[2]
    return f"{'+'.join([name.rpartition('.')[0] for name in names])}.{kind}"


def merged(uses: Iterable[Sequence[Use]]) -> tuple[list[Use], tuple[tuple[int, ...], ...]]:
    """What several launches use, each use once, and by launch where its are: all read the same numbers of a step."""
    found: list[Use] = []
    slots = []
    for own in uses:
        for use in own:
            if use not in found:
                found.append(use)
        slots.append(tuple([found.index(use) for use in own]))
    return found, tuple(slots)


def alike(parts: Iterable[tuple[Part, Hashable]]) -> list[list[Part]]:
    """Neighbours put together that live alike: of each, where it lives."""
    found: dict[Hashable, list[Part]] = {}
    for part, home in parts:
        found.setdefault(home, []).append(part)
    return list(found.values())


def fuse(launches: Sequence[Launch]) -> Launch:
    """Make one launch of updates or assignments whose points are alike; of one it is that one.

    Args:
        launches: in program order; those of a simulation have no bodies.
    """
    if len(launches) == 1:
        return launches[0]
    first = launches[0]
    requirements, slots = merged([launch.requirements for launch in launches])
    parts = tuple([one.binder for one in launches if isinstance(one.binder, UpdateBinder | AssignBinder)])
    flops = tuple([sum(each) for each in zip(*(launch.flops for launch in launches), strict=True)])
    return replace(
        first,
        name=fused_name([launch.name for launch in launches]),
        requirements=tuple(requirements),
        binder=FusedBinder(parts, slots) if len(parts) == len(launches) else None,
        flops=flops,
    )


def fused_at_home(launches: Iterable[Launch], users: Mapping[int, tuple[int, ...]]) -> Iterator[Launch]:
    """The launches of a step, of which those at homes that can be are fused.

    Args:
        launches: in program order.
        users: by region of a parameter's or buffer's value, see ``home_users``.
    """
    waiting: list[Launch] = []
    last: object = None
    for launch in launches:
        kind = type(launch.binder)
        fits = kind in {UpdateBinder, AssignBinder} and not launch.in_turn
        now = (kind, users[launch.requirements[0].region.id]) if fits else None
        if now != last:
            yield from _fused(waiting)
            waiting = []
        last = now
        if now is None:
            yield launch
        else:
            waiting.append(launch)
    yield from _fused(waiting)


def _fused(launches: Sequence[Launch]) -> Iterator[Launch]:
    for group in alike((launch, _place(launch.points)) for launch in launches):
        yield fuse(group)


def _place(points: Sequence[Point]) -> Hashable:
    """Where the tasks of a launch run, and which of them are replicas."""
    if isinstance(points, Points):
        return points.numbers.tobytes(), points.processors.tobytes()
    return tuple([(point.processor, point.replica) for point in points])


def home_names(launch: Launch) -> tuple[str, ...]:
    """The parameters or buffers that a launch gives their next values; none where it is none of these."""
    binder = launch.binder
    if isinstance(binder, UpdateBinder | AssignBinder):
        return (launch.requirements[0].region.name,)
    if isinstance(binder, FusedBinder):
        return tuple([launch.requirements[slots[0]].region.name for slots in binder.slots])
    return ()
