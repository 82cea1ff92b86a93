"""Fragments: all that one region adds to a schedule, analysed by itself and cached by what determines it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from maniple.runtime.analysis.analysis_cache import AnalysisCache
from maniple.runtime.analysis.dependence import Move, Node, PlacedUse, RegionAnalysis, apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Validity
    from maniple.runtime.analysis.instance_table import InstanceTable
    from maniple.runtime.analysis.placed_use import AnalysedUse
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Access, InstanceKind

__all__: list[str] = []

# In fewer uses a region is not looked at for states that recur.
MANY_USES = 32

Home = tuple[tuple[int, tuple["Rect", ...]], ...]
Accesses = tuple[tuple[int, "Access"], ...]


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


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Fragment:
    """One region's part of a step.

    Args:
        moves: the movements, in program order.
        serves: for each of them the use that needs it.
        accesses: for each use (point, access) of the tasks.
        instances: (memory, kind, rectangle) of every instance.
        edges: dependences within a step.
        carried: dependences of a step on the one before.
        leaves: what is valid where after a step.
    """

    moves: tuple[Move, ...]
    serves: tuple[int, ...]
    accesses: tuple[Accesses, ...]
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
    moves: list[Move] = []
    serves: list[int] = []
    accesses: list[Accesses] = []
    edges: list[tuple[Node, Node]] = []
    known: dict[tuple[tuple[int, int], ...], Accesses] = {}
    for ordinal, use in enumerate(_analyse_uses(key, region)):
        moves += use.moves
        serves += [ordinal] * len(use.moves)
        edges += use.edges
        names = tuple([(point, id(access)) for point, _, access in use.accesses])
        found = known.get(names)
        if found is None:
            found = known[names] = tuple([(point, access) for point, _, access in use.accesses])
        accesses.append(found)
    instances = tuple(region.extents.values())
    fragment = Fragment(tuple(moves), tuple(serves), tuple(accesses), instances, tuple(edges), (), region.validity)
    return replace(fragment, carried=tuple(_carry(key, fragment, region.instances)))


def _analyse_uses(key: FragmentKey, region: RegionAnalysis) -> Iterator[AnalysedUse]:
    """Analyse the uses; where they are many, from memory once the region is in a state again that it was in before."""
    cache = AnalysisCache({0: region})
    for privilege, tasks in key.uses:
        analyse_one = partial(_one, region, privilege, tasks)
        if len(key.uses) < MANY_USES or cache.derived > MANY_USES + cache.followed:
            yield from analyse_one()
        else:
            yield from cache.launch((privilege, tasks), (0,), analyse_one)


def _one(region: RegionAnalysis, privilege: Privilege, tasks: tuple[PlacedUse, ...]) -> tuple[AnalysedUse, ...]:
    return (region.use_again(0, privilege, tasks),)


def _carry(key: FragmentKey, step: Fragment, left: InstanceTable) -> Iterator[tuple[Node, Node]]:
    """Give what the next step waits for: it moves and uses the same, and each of its writes hides what came before.

    Args:
        key: the uses.
        step: what a step comes to.
        left: who used which elements last in the step before; used up.
    """
    number = 0
    for ordinal, (_, tasks) in enumerate(key.uses):
        if not left.remembers:
            return
        while number < len(step.moves) and step.serves[number] == ordinal:
            yield from left.follow(Node(1, -1, number), step.moves[number].accesses)
            number += 1
        together = {task.point: task.shared for task in tasks}
        nodes = [(Node(1, ordinal, point), (access,), together[point]) for point, access in step.accesses[ordinal]]
        if not apart(tasks):
            for node, used, shared in nodes:
                yield from left.depend(node, used, shared=shared)
        for node, used, shared in nodes:
            yield from left.follow(node, used, shared=shared)
