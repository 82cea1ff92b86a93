"""Rectangle trees: entries found by where they are, in time that grows with what is found and not with what exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, final

from maniple.regions.rectangle import Rect

T = TypeVar("T")

# Most entries of a leaf, and most children of a node above.
_FANOUT = 16


class _Node(Generic[T]):
    """A leaf with entries, or a node with nodes below, all leaves at one depth.

    Args:
        children: (bounds, entry) of a leaf, (bounds, node) above.
        height: 0 for a leaf.
    """

    __slots__ = ("_bounds", "children", "count", "height")

    def __init__(self, children: Sequence[tuple[Rect, T | _Node[T]]], height: int) -> None:
        self.children = children
        self.height = height
        below: list[int] = [child.count for _, child in children if isinstance(child, _Node)]
        self.count: int = sum(below) if height else len(children)
        self._bounds: Rect | None = None

    @property
    def bounds(self) -> Rect:
        if self._bounds is None:
            self._bounds = self.children[0][0]
            if len(self.children) > 1:
                lo = tuple(map(min, *[box.lo for box, _ in self.children]))
                self._bounds = Rect(lo, tuple(map(max, *[box.hi for box, _ in self.children])))
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

    def take(self, boxes: Sequence[Rect]) -> tuple[list[T], RectTree[T]]:
        """The entries whose bounds share a point with one of the boxes, and the tree without them."""
        if self._root is None:
            return [], self
        found: list[T] = []
        rest = _take(self._root, boxes, found)
        return found, self._with(rest) if found else self

    def add(self, entries: Sequence[tuple[Rect, T]]) -> RectTree[T]:
        """The tree with further entries, each with its bounds."""
        if not entries:
            return self
        nodes = _packed(entries, 0) if self._root is None else _insert(self._root, entries)
        while len(nodes) > 1:
            nodes = _packed([(node.bounds, node) for node in nodes], nodes[0].height + 1)
        return self._with(nodes[0])

    @staticmethod
    def _with(root: _Node[T] | None) -> RectTree[T]:
        while root is not None and root.height and len(root.children) == 1:
            below = root.children[0][1]
            if isinstance(below, _Node):
                root = below
        made: RectTree[T] = RectTree()
        made._root = root
        return made


def _collect(node: _Node[T], found: list[T]) -> None:
    for _, child in node.children:
        if isinstance(child, _Node):
            _collect(child, found)
        else:
            found.append(child)


def _find(node: _Node[T], boxes: Sequence[Rect], found: list[T]) -> None:
    for bounds, child in node.children:
        near = [box for box in boxes if box.overlaps(bounds)]
        if not near:
            continue
        if isinstance(child, _Node):
            _find(child, near, found)
        else:
            found.append(child)


def _take(node: _Node[T], boxes: Sequence[Rect], found: list[T]) -> _Node[T] | None:
    kept: list[tuple[Rect, T | _Node[T]]] = []
    changed = False
    for bounds, child in node.children:
        near = [box for box in boxes if box.overlaps(bounds)]
        if not near:
            kept.append((bounds, child))
            continue
        if not isinstance(child, _Node):
            found.append(child)
            changed = True
            continue
        rest = _take(child, near, found)
        changed = changed or rest is not child
        if rest is not None:
            kept.append((bounds if rest is child else rest.bounds, rest))
    if not changed:
        return node
    return _Node(kept, node.height) if kept else None


def _insert(node: _Node[T], entries: Sequence[tuple[Rect, T]]) -> list[_Node[T]]:
    """The node with the entries below it, as one or several nodes of its height."""
    if not node.height:
        return _packed([*node.children, *entries], 0)
    below: list[list[tuple[Rect, T]]] = [[] for _ in node.children]
    for entry in entries:
        below[_nearest(node.children, entry[0])].append(entry)
    children: list[tuple[Rect, T | _Node[T]]] = []
    for (bounds, child), mine in zip(node.children, below, strict=True):
        if mine and isinstance(child, _Node):
            children += [(grown.bounds, grown) for grown in _insert(child, mine)]
        else:
            children.append((bounds, child))
    return _packed(children, node.height)


def _nearest(children: Sequence[tuple[Rect, object]], box: Rect) -> int:
    """The child whose sides must move least to contain the box; the first of several."""
    nearest, least = 0, -1
    for index, (bounds, _) in enumerate(children):
        excess = 0
        for low, high, first, last in zip(box.lo, box.hi, bounds.lo, bounds.hi, strict=True):
            excess += max(first - low, 0) + max(high - last, 0)
        if not excess:
            return index
        if least < 0 or excess < least:
            nearest, least = index, excess
    return nearest


def _packed(children: Sequence[tuple[Rect, T | _Node[T]]], height: int) -> list[_Node[T]]:
    """Nodes of one height for any number of children, halved until each has few enough."""
    if len(children) <= _FANOUT:
        return [_Node(children, height)]
    centres = [[low + high for low, high in zip(box.lo, box.hi, strict=True)] for box, _ in children]
    spread = [max(column) - min(column) for column in zip(*centres, strict=True)] or [0]
    axis = spread.index(max(spread))
    order = sorted(range(len(children)), key=lambda i: centres[i][axis]) if centres[0] else range(len(children))
    ranked = [children[i] for i in order]
    middle = len(ranked) // 2
    return _packed(ranked[:middle], height) + _packed(ranked[middle:], height)
