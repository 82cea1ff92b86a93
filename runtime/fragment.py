"""Fragments: all that one region adds to a schedule, analysed by itself and cached by what determines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.runtime.analysis import Move, Node, PlacedUse, RegionAnalysis, apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Validity
    from maniple.runtime.instance_table import InstanceTable
    from maniple.runtime.machine import Machine
    from maniple.runtime.schedule import Access, InstanceKind

__all__: list[str] = []

Home = tuple[tuple[int, tuple["Rect", ...]], ...]


@dataclass(frozen=True, slots=True)
class FragmentKey:
    """What determines a fragment: nothing in it names the region, so equal layers share one.

    Args:
        bounds: the elements of the region.
        home: (memory, rectangles) valid before each step; empty for a region that does not outlive a step.
        uses: every use in program order: a privilege and the tasks.
    """

    bounds: Rect
    home: Home
    uses: tuple[tuple[Privilege, tuple[PlacedUse, ...]], ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """One region's part of a step.

    Args:
        moves: the movements, in program order; `Move.use` says which use each serves.
        accesses: for each use (point, access) of the tasks.
        instances: (memory, kind, rectangle) of every instance.
        edges: dependences within a step.
        carried: dependences of a step on the one before.
        leaves: what is valid where after a step.
    """

    moves: tuple[Move, ...]
    accesses: tuple[tuple[tuple[int, Access], ...], ...]
    instances: tuple[tuple[int, InstanceKind, Rect], ...]
    edges: tuple[tuple[Node, Node], ...]
    carried: tuple[tuple[Node, Node], ...]
    leaves: Validity


def distance(machine: Machine) -> Callable[[int, int], int]:
    """How far two memories are apart: 0 for the same one, 1 within a host, 2 between hosts."""
    hosts = [memory.host for memory in machine.memories]
    return lambda first, second: 0 if first == second else 1 if hosts[first] == hosts[second] else 2


def analyse(key: FragmentKey, near: Callable[[int, int], int]) -> Fragment:
    """Analyse a region's uses as a step that repeats.

    Raises:
        RequestError: interfering tasks, or a read before the first write.
    """
    region = RegionAnalysis(key.bounds, dict(key.home), near=near)
    for memory, rects in key.home:
        for rect in rects:
            region.reserve(memory, rect)
    accesses = tuple([tuple(region.use(privilege, tasks)) for privilege, tasks in key.uses])
    moves, edges, leaves = tuple(region.moves), tuple(region.edges), region.validity
    carried = tuple(_carried(key, moves, accesses, region.instances))
    return Fragment(moves, accesses, tuple(region.extents.values()), edges, carried, leaves)


def _carried(
    key: FragmentKey, moves: Sequence[Move], accesses: Sequence[Sequence[tuple[int, Access]]], left: InstanceTable
) -> Iterator[tuple[Node, Node]]:
    """Give what the next step waits for: it moves and uses the same, and each of its writes hides what came before.

    Args:
        key: the uses.
        moves: the movements of a step.
        accesses: (point, access) of the tasks of each use.
        left: who used which elements last in the step before; used up.
    """
    number = 0
    for ordinal, (_, tasks) in enumerate(key.uses):
        if not left.remembers:
            return
        while number < len(moves) and moves[number].use == ordinal:
            yield from left.follow(Node(1, -1, number), moves[number].accesses)
            number += 1
        together = {task.point: task.shared for task in tasks}
        nodes = [(Node(1, ordinal, point), (access,), together[point]) for point, access in accesses[ordinal]]
        if not apart(tasks):
            for node, used, shared in nodes:
                yield from left.depend(node, used, shared=shared)
        for node, used, shared in nodes:
            yield from left.follow(node, used, shared=shared)
