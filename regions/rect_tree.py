"""Rectangle trees: entries found by where they are, in time that grows with what is found and not with what exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, final

from maniple.regions.rectangle import Rect

T = TypeVar("T")

# Most entries of a leaf, and most children of a node above.
_FANOUT = 16


class _Node(Generic[T]):
    """A leaf, which has entries, or a node with others below it; all leaves are at one depth.

    Args:
        entries: of a leaf, each with its bounds.
        nodes: those below, if it is no leaf.
    """

    __slots__ = ("_bounds", "count", "entries", "nodes")

    def __init__(self, entries: Sequence[tuple[Rect, T]], nodes: Sequence[_Node[T]] = ()) -> None:
        self.entries = entries
        self.nodes = nodes
        self.count: int = sum([node.count for node in nodes]) if nodes else len(entries)
        self._bounds: Rect | None = None

    @property
    def bounds(self) -> Rect:
        if self._bounds is None:
            boxes = [node.bounds for node in self.nodes] if self.nodes else [box for box, _ in self.entries]
            self._bounds = boxes[0]
            if len(boxes) > 1:
                lo = tuple(map(min, *[box.lo for box in boxes]))
                self._bounds = Rect(lo, tuple(map(max, *[box.hi for box in boxes])))
        return self._bounds


@final
class RectTree(Generic[T]):
    """An immutable R-tree of entries with bounding boxes; changed by making another that shares all but the paths.

    After Guttman, "R-trees: a dynamic index structure for spatial searching" (SIGMOD 1984), with splits at the median
    along the axis on which the centres are spread most.

    Build one with ``RectTree()`` and :meth:`add`.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[T] | None = None

    def __len__(self) -> int:
        """The number of entries."""
        return 0 if self._root is None else self._root.count

    def __iter__(self) -> Iterator[T]:
        """Every entry, in no particular order."""
        found: list[T] = []
        if self._root is not None:
            _collect(self._root, found)
        return iter(found)

    def over(self, boxes: Sequence[Rect]) -> list[T]:
        """The entries whose bounds share a point with one of the boxes, in no particular order."""
        found: list[T] = []
        if self._root is not None:
            _find(self._root, boxes, found)
        return found

    def at(self, box: Rect) -> list[T]:
        """The entries whose bounds share a point with a box, in no particular order."""
        root = self._root
        if root is None:
            return []
        if not root.nodes:
            return [entry for bounds, entry in root.entries if bounds.overlaps(box)]
        return self.over((box,))

    def take(self, boxes: Sequence[Rect]) -> tuple[list[T], RectTree[T]]:
        """The entries whose bounds share a point with one of the boxes, and the tree without them."""
        root = self._root
        if root is None:
            return [], self
        found: list[T] = []
        rest = _take(root, boxes, found)
        return found, self._with(rest) if found else self

    def add(self, entries: Sequence[tuple[Rect, T]]) -> RectTree[T]:
        """The tree with further entries, each with its bounds."""
        if not entries:
            return self
        nodes = _leaves(entries) if self._root is None else _insert(self._root, entries)
        while len(nodes) > 1:
            nodes = _parents(nodes)
        return self._with(nodes[0])

    @staticmethod
    def _with(root: _Node[T] | None) -> RectTree[T]:
        while root is not None and len(root.nodes) == 1:
            root = root.nodes[0]
        made: RectTree[T] = RectTree()
        made._root = root
        return made


def _collect(node: _Node[T], found: list[T]) -> None:
    found += [entry for _, entry in node.entries]
    for below in node.nodes:
        _collect(below, found)


def _near(boxes: Sequence[Rect], bounds: Rect) -> list[Rect]:
    return [box for box in boxes if box.overlaps(bounds)]


def _find(node: _Node[T], boxes: Sequence[Rect], found: list[T]) -> None:
    found += [entry for bounds, entry in node.entries if _near(boxes, bounds)]
    for below in node.nodes:
        near = _near(boxes, below.bounds)
        if near:
            _find(below, near, found)


def _take(node: _Node[T], boxes: Sequence[Rect], found: list[T]) -> _Node[T] | None:
    """The node without the entries that are found, itself if there are none; None if nothing is left."""
    if not node.nodes:
        kept: list[tuple[Rect, T]] = []
        only = boxes[0] if len(boxes) == 1 else None
        for place in node.entries:
            if _near(boxes, place[0]) if only is None else only.overlaps(place[0]):
                found.append(place[1])
            else:
                kept.append(place)
        return node if len(kept) == len(node.entries) else _Node(kept) if kept else None
    below: list[_Node[T]] = []
    changed = False
    for child in node.nodes:
        near = _near(boxes, child.bounds)
        rest = _take(child, near, found) if near else child
        changed = changed or rest is not child
        if rest is not None:
            below.append(rest)
    return node if not changed else _Node((), below) if below else None


def _insert(node: _Node[T], entries: Sequence[tuple[Rect, T]]) -> list[_Node[T]]:
    """The node with the entries below it, as one or several nodes of its height."""
    if not node.nodes:
        return _leaves([*node.entries, *entries])
    given: list[list[tuple[Rect, T]]] = [[] for _ in node.nodes]
    bounds = [child.bounds for child in node.nodes]
    for entry in entries:
        given[_nearest(bounds, entry[0])].append(entry)
    below: list[_Node[T]] = []
    for child, mine in zip(node.nodes, given, strict=True):
        below += _insert(child, mine) if mine else [child]
    return _parents(below)


def _nearest(children: Sequence[Rect], box: Rect) -> int:
    """The child whose sides must move least to contain the box; the first of several."""
    nearest, least = 0, -1
    for index, bounds in enumerate(children):
        excess = 0
        for low, high, first, last in zip(box.lo, box.hi, bounds.lo, bounds.hi, strict=True):
            excess += max(first - low, 0) + max(high - last, 0)
        if not excess:
            return index
        if least < 0 or excess < least:
            nearest, least = index, excess
    return nearest


def _leaves(entries: Sequence[tuple[Rect, T]]) -> list[_Node[T]]:
    """Leaves for any number of entries."""
    if len(entries) <= _FANOUT:
        return [_Node(entries)]
    return [_Node([entries[i] for i in group]) for group in _groups([box for box, _ in entries])]


def _parents(nodes: Sequence[_Node[T]]) -> list[_Node[T]]:
    """Nodes above any number of nodes of one height."""
    if len(nodes) <= _FANOUT:
        return [_Node((), nodes)]
    return [_Node((), [nodes[i] for i in group]) for group in _groups([node.bounds for node in nodes])]


def _groups(boxes: Sequence[Rect]) -> list[list[int]]:
    """The positions of boxes in groups that a node can hold: halved along the axis on which centres are spread most."""
    centres = [[low + high for low, high in zip(box.lo, box.hi, strict=True)] for box in boxes]
    done: list[list[int]] = []
    open_: list[list[int]] = [list(range(len(boxes)))]
    while open_:
        group = open_.pop()
        if len(group) <= _FANOUT:
            done.append(group)
            continue
        columns = list(zip(*[centres[i] for i in group], strict=True))
        if columns:
            spread = [max(column) - min(column) for column in columns]
            axis = spread.index(max(spread))
            group.sort(key=dict(zip(group, columns[axis], strict=True)).__getitem__)
        middle = len(group) // 2
        open_ += [group[middle:], group[:middle]]
    return done
