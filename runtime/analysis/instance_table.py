"""Instance tables: the instances of one region, and which tasks and movements used which of their elements last."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from maniple.regions.index_space import by_place, meets, without
from maniple.regions.rect_tree import RectTree
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.schedule import InstanceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule.schedule import Access

__all__: list[str] = []


# Fewer remembered accesses of an instance are kept when their nodes are forgotten: the same will come again.
FEW = 64

# A sparse index space of no more boxes is remembered box by box.
FEW_BOXES = 8


class Node(NamedTuple):
    """A task (`use` >= 0, then its point in `item`) or a movement (`use` == -1, then its number) of the region."""

    step: int
    use: int
    item: int


Edge = tuple[Node, Node]
"""A node, and another that waits for it."""
Names = list[list[Node]]
"""Who made each access of a structure."""
Member = tuple[int, Node]
"""A node that uses what a touch says, after a number that orders uses."""


class Touch(NamedTuple):
    """Remembered accesses of the same elements of an instance; `slot` names who made them."""

    slot: int
    rect: IndexSpace
    shared: bool


@dataclass(slots=True)
class Touches:
    """The remembered accesses of one instance: a reader waits for writers only, so the two are kept apart."""

    readers: RectTree[Touch]
    writers: RectTree[Touch]


@dataclass(frozen=True, eq=False, slots=True)
class Structure:
    """What is remembered of a region whose only instances are those of valid values, without who did it.

    Args:
        description: the instances, and which elements of them were used last; equal for equal structures.
        touches: the same as trees, whose slots count up from 0 in the order of the description.
    """

    description: object
    touches: dict[int, Touches]


class InstanceTable:
    """The instances of one region in all memories, as a program makes and uses them.

    What a new access waits for is found in time that grows with the accesses that it meets, not with those that are
    remembered. Numbers of instances count up and are not used again.

    `extents` says of every instance its memory, why it is there and what it has room for; `main` how many elements the
    instance of valid values in each memory has room for; `temporary` how many all other instances ever made there had;
    `made` how many instances there ever were.
    """

    def __init__(self) -> None:
        self.extents: dict[int, tuple[int, InstanceKind, Rect]] = {}
        self.main: dict[int, int] = {}
        self.temporary: dict[int, int] = {}
        self.made = 0
        self._touched = 0
        self._named: dict[tuple[object, ...], int] = {}
        self._touches: dict[int, Touches] = {}
        self._slots = 0
        self._members: dict[int, list[Member]] = {}
        self._held: tuple[Structure, Names] | None = None  # in place of the touches and their members

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

    def growth(self, memory: int, rect: Rect, bounds: Rect) -> Rect | None:
        """Give the room that a memory's instance must get to hold a rectangle too, None if it has it.

        An instance that grows gets at least twice as wide on the sides to which it grows, as far as the bounds allow,
        so that growing step by step costs as much, all in all, as growing at once.
        """
        found = self.room(memory)
        if found is None:
            return rect
        held = found[1]
        return None if held.contains(rect) else _stretch(held, held.hull(rect)).intersect(bounds)

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
        self._unfold()
        index = self._named[name] = self.made
        self.made += 1
        self.extents[index] = (memory, kind, rect)
        self._touches[index] = Touches(RectTree(), RectTree())
        return index

    def depend(self, node: Node, accesses: Sequence[Access], *, shared: bool = False) -> list[Edge]:
        """Give an edge from every earlier node whose access conflicts with one of these, in the order of those."""
        self._unfold()
        found: dict[int, Node] = {}
        for access in accesses:
            touches = self._touches[access.instance]
            for rect in _pieces(access.rect):
                self._meet(touches.writers, rect, found, shared=shared)
                if access.writes:
                    self._meet(touches.readers, rect, found, shared=shared)
        return _edges(found, node)

    def record(self, node: Node, accesses: Sequence[Access], *, shared: bool = False) -> list[Edge]:
        """Remember accesses, and give the edges that `depend` gives; a write hides what it covers of the older ones.

        Those need no remembering, for whoever waits for the write waits for them.
        """
        self._unfold()
        found: dict[int, Node] = {}
        for access in accesses:
            touches = self._touches[access.instance]
            member = (self._touched, node)
            self._touched += 1
            for rect in _pieces(access.rect):
                if access.writes:
                    touches.readers = self._hide(touches.readers, rect, found, shared=shared)
                    left = self._hide(touches.writers, rect, found, shared=shared)
                    touches.writers = left.add((self._touch(rect, [member], shared=shared),))
                    continue
                self._meet(touches.writers, rect, found, shared=shared)
                for touch in touches.readers.at(rect.bounds):
                    if touch.shared == shared and touch.rect == rect:
                        self._members[touch.slot].append(member)
                        break
                else:
                    touches.readers = touches.readers.add((self._touch(rect, [member], shared=shared),))
        return _edges(found, node)

    def follow(self, node: Node, accesses: Sequence[Access], *, shared: bool = False) -> list[Edge]:
        """Give the edges that `depend` gives, and forget what the accesses hide, without remembering them."""
        self._unfold()
        found: dict[int, Node] = {}
        for access in accesses:
            touches = self._touches[access.instance]
            for rect in _pieces(access.rect):
                if access.writes:
                    touches.readers = self._hide(touches.readers, rect, found, shared=shared)
                    touches.writers = self._hide(touches.writers, rect, found, shared=shared)
                else:
                    self._meet(touches.writers, rect, found, shared=shared)
        return _edges(found, node)

    @property
    def remembers(self) -> bool:
        """Whether there is anything that an access could wait for."""
        self._unfold()
        return any(len(touches.writers) or len(touches.readers) for touches in self._touches.values())

    def _touch(self, rect: IndexSpace, members: list[Member], *, shared: bool) -> tuple[Rect, Touch]:
        """Make an entry of a tree."""
        touch = Touch(self._slots, rect, shared)
        self._slots += 1
        self._members[touch.slot] = members
        return rect.bounds, touch

    def _meet(self, tree: RectTree[Touch], rect: IndexSpace, found: dict[int, Node], *, shared: bool) -> None:
        """Add who made the touches of a tree that conflict with an access."""
        for touch in tree.at(rect.bounds):
            if not (shared and touch.shared) and _clash(touch.rect, rect):
                found.update(self._members[touch.slot])

    def _hide(
        self, tree: RectTree[Touch], rect: IndexSpace, found: dict[int, Node], *, shared: bool
    ) -> RectTree[Touch]:
        """The tree without what a write covers, but for touches that it shares elements with; adds whom it waits for.

        A touch that is covered in part stays for the rest, so that as much is remembered as lies side by side: a region
        that is read with halos and written tile by tile would remember every reader else.
        """
        taken, rest = tree.take((rect.bounds,))
        if not taken:
            return tree
        entries: list[tuple[Rect, Touch]] = []
        for touch in taken:
            if (shared and touch.shared) or not _clash(touch.rect, rect):
                entries.append((touch.rect.bounds, touch))
                continue
            members = self._members.pop(touch.slot)
            found.update(members)
            left = without(touch.rect, rect)
            entries += [self._touch(piece, list(members), shared=touch.shared) for piece in left]
        return rest.add(entries)

    def forget(self, alive: Callable[[Node], bool], pinned: Collection[int]) -> None:
        """Forget the accesses of nodes that nothing can wait for any more, and instances that nothing refers to.

        Args:
            alive: whether a node may still be waited for.
            pinned: instances that hold contributions.
        """
        if self._held is not None:
            structure, names = self._held
            self._held = structure, [[node for node in nodes if alive(node)] for nodes in names]
            return
        for slot, members in self._members.items():
            self._members[slot] = [member for member in members if alive(member[1])]
        current = {self._named[memory, InstanceKind.MAIN] for memory in self.main}
        for index, touches in list(self._touches.items()):
            kept = index in pinned or index in current
            touches.readers = self._prune_touches(touches.readers, few=kept)
            touches.writers = self._prune_touches(touches.writers, few=kept)
            if not (len(touches.readers) or len(touches.writers) or kept):
                del self._touches[index], self.extents[index]
        self._named = {name: index for name, index in self._named.items() if index in self.extents}

    def _prune_touches(self, tree: RectTree[Touch], *, few: bool) -> RectTree[Touch]:
        """The tree without touches that nobody is left of; as it is if there are few and few are to be kept."""
        if few and len(tree) < FEW:
            return tree
        kept = []
        for touch in tree:
            if self._members[touch.slot]:
                kept.append((touch.rect.bounds, touch))
            else:
                del self._members[touch.slot]
        return tree if len(kept) == len(tree) else RectTree[Touch]().add(kept)

    def structure(self) -> tuple[Structure, Names] | None:
        """Give what is remembered, and who did it by slot; None where that is much, or not of valid values only."""
        if self._held is not None:
            return self._held
        if len(self._members) > FEW or any(kind != InstanceKind.MAIN for _, kind, _ in self.extents.values()):
            return None
        names: Names = []
        described: list[object] = []
        touches: dict[int, Touches] = {}
        for index, found in sorted(self._touches.items()):
            sides: list[RectTree[Touch]] = []
            for tree in (found.readers, found.writers):
                ordered = sorted(tree, key=lambda touch: (by_place(touch.rect), touch.slot))
                described.append((index, self.extents[index], tuple((touch.rect, touch.shared) for touch in ordered)))
                entries = []
                for touch in ordered:
                    entries.append((touch.rect.bounds, Touch(len(names), touch.rect, touch.shared)))
                    names.append([node for _, node in self._members[touch.slot]])
                sides.append(RectTree[Touch]().add(entries))
            touches[index] = Touches(*sides)
        return Structure(tuple(described), touches), names

    def adopt(self, structure: Structure, names: Names) -> None:
        """Remember a structure of the same instances, and who made each of its accesses."""
        self._held = structure, names

    def _unfold(self) -> None:
        """Make the trees of a structure that was adopted, which are about to change."""
        if self._held is None:
            return
        structure, names = self._held
        self._held = None
        self._touches = {
            index: Touches(touches.readers, touches.writers) for index, touches in structure.touches.items()
        }
        numbers = count(self._touched)
        self._members = {slot: [(next(numbers), node) for node in nodes] for slot, nodes in enumerate(names)}
        self._touched, self._slots = next(numbers), len(names)

    def rename(self, named: Callable[[Node], Sequence[Node]]) -> None:
        """Put others in the place of the nodes that are remembered."""
        self._unfold()
        numbers = count(self._touched)
        for slot, members in self._members.items():
            self._members[slot] = [(next(numbers), node) for _, old in members for node in named(old)]
        self._touched = next(numbers)

    def evict(self, memory: int) -> int:
        """Stop to use the instance of valid values in a memory, and give it."""
        del self.main[memory]
        return self._named.pop((memory, InstanceKind.MAIN))


def _edges(found: dict[int, Node], node: Node) -> list[Edge]:
    """Edges to a node from others, each once, in the order of their numbers."""
    if len(found) > 1:
        return [(each, node) for each in dict.fromkeys([found[number] for number in sorted(found)]) if each != node]
    return [(each, node) for each in found.values() if each != node]


def _clash(one: IndexSpace, other: IndexSpace) -> bool:
    """Whether index spaces whose bounds share a point do so themselves."""
    return (isinstance(one, Rect) and isinstance(other, Rect)) or meets(one, other)


def _pieces(space: IndexSpace) -> tuple[IndexSpace, ...]:
    """An index space as boxes if it is of few, for these are compared faster; else as it is."""
    return (space,) if isinstance(space, Rect) or len(space) > FEW_BOXES else space.rects


def _stretch(held: Rect, grown: Rect) -> Rect:
    """The grown box, at least twice as wide as the one held on the sides to which it grows."""
    lo, hi = list(grown.lo), list(grown.hi)
    for axis, extent in enumerate(held.shape):
        if grown.lo[axis] < held.lo[axis]:
            lo[axis] = min(lo[axis], held.lo[axis] - extent)
        if grown.hi[axis] > held.hi[axis]:
            hi[axis] = max(hi[axis], held.hi[axis] + extent)
    return Rect(tuple(lo), tuple(hi))
