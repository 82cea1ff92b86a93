"""Stage groups: the processors of a stage, and those of the stages that it has something to do with.

    4 stages of 2 processors; a table of words is the classifier, too      own     beside    sharing
    stage 0                                                                p0 p1           table: p6 p7
    stage 1                                                                p2 p3   p0 p1
    stage 2                                                                p4 p5   p2 p3
    stage 3                                                                p6 p7   p4 p5     table: p0 p1

What a stage takes is worked out once for all groups that are alike in their processors, their memories, and the ways
between them, link by link.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.optcnn.placed_operators import PlacedOperators

__all__: list[str] = []

Processors = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class StageGroup:
    """The processors of a stage and around it.

    Args:
        own: its own.
        beside: those of the stage before it, if there is one.
        sharing: of each weight that other stages use, too, the weight, and the processors of each of these.
    """

    own: Processors
    beside: Processors = ()
    sharing: tuple[tuple[int, tuple[Processors, ...]], ...] = ()


@final
class AlikeProcessors:
    """Groups of processors of a machine, of which those that are alike are known by the first that were asked for.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._first: dict[object, tuple[Processors, ...]] = {}
        self._known: dict[tuple[Processors, ...], tuple[Processors, ...]] = {}

    def first(self, *groups: Processors) -> tuple[Processors, ...]:
        """The first groups that are like these, one by one and to one another.

        Args:
            groups: the groups.
        """
        if groups not in self._known:
            likeness = tuple(map(len, groups)), _likeness(self._machine, tuple(chain(*groups)))
            self._known[groups] = self._first.setdefault(likeness, groups)
        return self._known[groups]

    def likeness(self, group: StageGroup) -> object:
        """What decides what a stage takes where it runs: of each part of its group, which it is like.

        Args:
            group: its group.
        """
        shared = tuple((tensor, self.first(group.own, *others)) for tensor, others in group.sharing)
        return self.first(group.own), self.first(group.own, group.beside), shared


def shared_weights(operators: PlacedOperators, bounds: Sequence[int]) -> dict[tuple[int, int], frozenset[int]]:
    """The weights that operators of a stage use and others, too, by the places where it begins and ends.

    Args:
        operators: the operators.
        bounds: those before which a stage may begin or end, by place; none, and all of them, among them.
    """
    users: dict[int, list[int]] = {}
    for number in range(bounds[-1]):
        for tensor in operators.weights(number):
            users.setdefault(tensor, []).append(number)
    found = {}
    for begin, end in combinations(range(len(bounds)), 2):
        inside = range(bounds[begin], bounds[end])
        mine = {tensor: sum(user in inside for user in every) for tensor, every in users.items()}
        found[begin, end] = frozenset(tensor for tensor, count in mine.items() if 0 < count < len(users[tensor]))
    return found


def _likeness(machine: Machine, processors: Sequence[int]) -> object:
    """What tells processors from others: what they, their memories and the ways between them reach, and no name."""
    found = [machine.processor(processor) for processor in processors]
    each = [repr(replace(one, id=0, memory=0, name="", device=None)) for one in found]
    devices = {device: place for place, device in enumerate(dict.fromkeys(one.device for one in found))}
    own = [machine.memory_of(processor) for processor in processors]
    return tuple(each), tuple(devices[one.device] for one in found), _memory_likeness(machine, own)


def _memory_likeness(machine: Machine, memories: Sequence[int]) -> object:
    """What tells memories, given by processor, from others."""
    numbers = {memory: place for place, memory in enumerate(dict.fromkeys(memories))}
    held = [repr(replace(machine.memories[memory], id=0, rank=0, host=0)) for memory in numbers]
    links: dict[int, int] = {}  # the number of each by where it comes first: ways that share one differ from others
    ways = tuple(
        tuple(
            (links.setdefault(link, len(links)), machine.routes.rate(link)) for link in machine.routes.route(one, other)
        )
        for one in numbers
        for other in numbers
        if one != other
    )
    return tuple(numbers[memory] for memory in memories), tuple(held), ways
