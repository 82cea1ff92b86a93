"""Instance tables: the instances of one region, and which tasks and movements used which of their elements last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.index_space import meets, without
from maniple.regions.rect_tree import RectTree
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule import InstanceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule import Access

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Node:
    """A task (`use` >= 0, then its point in `item`) or a movement (`use` == -1, then its number) of the region."""

    step: int
    use: int
    item: int


@dataclass(frozen=True, slots=True)
class _Touch:
    """One remembered access of an instance; `number` orders them."""

    number: int
    node: Node
    rect: IndexSpace
    shared: bool


@dataclass(slots=True)
class _Touches:
    """The remembered accesses of one instance: a reader waits for writers only, so the two are kept apart."""

    readers: RectTree[_Touch]
    writers: RectTree[_Touch]


class InstanceTable:
    """The instances of one region in all memories, as a program makes and uses them.

    What a new access waits for is found in time that grows with the accesses that it meets, not with those that are
    remembered. Numbers of instances count up and are not used again.

    `extents` says of every instance its memory, why it is there and what it has room for; `main` how many elements the
    instance of valid values in each memory has room for; `temporary` how many all other instances ever made there had.
    """

    def __init__(self) -> None:
        self.extents: dict[int, tuple[int, InstanceKind, Rect]] = {}
        self.main: dict[int, int] = {}
        self.temporary: dict[int, int] = {}
        self._made = 0
        self._touched = 0
        self._named: dict[tuple[object, ...], int] = {}
        self._touches: dict[int, _Touches] = {}

    def valid(self, memory: int, rect: Rect) -> int:
        """Give the instance of valid values in a memory, made or grown to hold a rectangle."""
        index = self._named.get((memory, InstanceKind.MAIN))
        if index is None:
            self.main[memory] = rect.volume
            return self._make((memory, InstanceKind.MAIN), memory, InstanceKind.MAIN, rect)
        held = self.extents[index][2]
        if not held.contains(rect):
            grown = held.hull(rect)
            self.extents[index] = (memory, InstanceKind.MAIN, grown)
            self.main[memory] = grown.volume
        return index

    def room(self, memory: int) -> tuple[int, Rect] | None:
        """Give the instance of valid values in a memory and what it has room for, if there is one."""
        index = self._named.get((memory, InstanceKind.MAIN))
        return None if index is None else (index, self.extents[index][2])

    def grown(self, memory: int, rect: Rect, bounds: Rect) -> Rect | None:
        """Give the room that a memory's instance must get to hold a rectangle too, None if it has it.

        An instance that grows gets at least twice as wide on the sides to which it grows, as far as the bounds allow,
        so that growing step by step costs as much, all in all, as growing at once.
        """
        found = self.room(memory)
        if found is None:
            return rect
        held = found[1]
        return None if held.contains(rect) else _stretched(held, held.hull(rect)).intersect(bounds)

    def other(self, memory: int, kind: InstanceKind, rect: Rect, tag: tuple[object, ...]) -> int:
        """Give the instance of contributions or of a tile on its way that a tag names, made on first use."""
        name = (memory, kind, *tag)
        index = self._named.get(name)
        if index is None:
            index = self._make(name, memory, kind, rect)
            self.temporary[memory] = self.temporary.get(memory, 0) + rect.volume
        elif not self.extents[index][2].contains(rect):
            self.extents[index] = (memory, kind, self.extents[index][2].hull(rect))
        return index

    def _make(self, name: tuple[object, ...], memory: int, kind: InstanceKind, rect: Rect) -> int:
        index = self._named[name] = self._made
        self._made += 1
        self.extents[index] = (memory, kind, rect)
        self._touches[index] = _Touches(RectTree(), RectTree())
        return index

    def depend(self, node: Node, accesses: Sequence[Access], *, shared: bool = False) -> list[tuple[Node, Node]]:
        """Give an edge from every earlier node whose access conflicts with one of these, in the order of those."""
        found: dict[int, Node] = {}
        for access in accesses:
            touches = self._touches[access.instance]
            boxes = (access.rect.bounds,)
            earlier = touches.writers.over(boxes)
            if access.writes:
                earlier += touches.readers.over(boxes)
            for touch in earlier:
                together = shared and touch.shared
                if touch.node != node and not together and meets(touch.rect, access.rect):
                    found[touch.number] = touch.node
        return [(before, node) for before in dict.fromkeys(found[number] for number in sorted(found))]

    def record(self, node: Node, accesses: Sequence[Access], *, shared: bool = False) -> None:
        """Remember accesses; a write hides what it covers of the older ones, for it waits for them."""
        for access in accesses:
            touches = self._touches[access.instance]
            touch = _Touch(self._touched, node, access.rect, shared)
            self._touched += 1
            entry = (access.rect.bounds, touch)
            if not access.writes:
                touches.readers = touches.readers.add((entry,))
                continue
            touches.readers = _hidden(touches.readers, touch)
            touches.writers = _hidden(touches.writers, touch).add((entry,))

    def forget(self, alive: Callable[[Node], bool], pinned: Collection[int]) -> None:
        """Forget the accesses of nodes that nothing can wait for any more, and instances that nothing refers to.

        Args:
            alive: whether a node may still be waited for.
            pinned: instances that hold contributions.
        """
        current = {self._named[memory, InstanceKind.MAIN] for memory in self.main}
        for index, touches in list(self._touches.items()):
            touches.readers = _alive(touches.readers, alive)
            touches.writers = _alive(touches.writers, alive)
            used = len(touches.readers) or len(touches.writers) or index in pinned or index in current
            if not used:
                del self._touches[index], self.extents[index]
        self._named = {name: index for name, index in self._named.items() if index in self.extents}

    def evict(self, memory: int) -> int:
        """Stop to use the instance of valid values in a memory, and give it."""
        del self.main[memory]
        return self._named.pop((memory, InstanceKind.MAIN))


def _stretched(held: Rect, grown: Rect) -> Rect:
    """The grown box, at least twice as wide as the one held on the sides to which it grows."""
    lo, hi = list(grown.lo), list(grown.hi)
    for axis, extent in enumerate(held.shape):
        if grown.lo[axis] < held.lo[axis]:
            lo[axis] = min(lo[axis], held.lo[axis] - extent)
        if grown.hi[axis] > held.hi[axis]:
            hi[axis] = max(hi[axis], held.hi[axis] + extent)
    return Rect(tuple(lo), tuple(hi))


def _hidden(tree: RectTree[_Touch], write: _Touch) -> RectTree[_Touch]:
    """The tree without what a write covers, but for its own node's touches and those that it shares elements with.

    A touch that is covered in part stays for the rest, so that as much is remembered as lies side by side: a region that
    is read with halos and written tile by tile would remember every reader else.
    """
    found, rest = tree.take((write.rect.bounds,))
    kept = []
    for touch in found:
        if touch.node == write.node or (touch.shared and write.shared):
            kept.append(touch)
        else:
            kept += [_Touch(touch.number, touch.node, left, touch.shared) for left in without(touch.rect, write.rect)]
    return rest.add([(touch.rect.bounds, touch) for touch in kept])


def _alive(tree: RectTree[_Touch], alive: Callable[[Node], bool]) -> RectTree[_Touch]:
    kept = [touch for touch in tree if alive(touch.node)]
    return tree if len(kept) == len(tree) else RectTree[_Touch]().add([(touch.rect.bounds, touch) for touch in kept])
