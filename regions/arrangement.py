"""Arrangements: overlapping boxes cut into disjoint cells, and which of two sets of cells meet."""

from __future__ import annotations

from collections.abc import Sequence

from maniple.regions.rectangle import Rect, merged, overlapping

# Below this many comparisons, comparing everything costs less than a sweep's sorting.
_FEW = 64


def arrange(rects: Sequence[Rect]) -> list[tuple[Rect, tuple[int, ...]]]:
    """The disjoint cells that the boxes cut each other into, each with the ascending positions of those that cover it.

    ::

        0: [0:4]                       [0:2] (0,)
        1:     [2:6]           ->      [2:4] (0, 1)
        2: [0:4]           would add   (0, 2) and (0, 1, 2) instead
    """
    positions: dict[Rect, list[int]] = {}
    for position, rect in enumerate(rects):
        if not rect.is_empty:
            positions.setdefault(rect, []).append(position)
    boxes = list(positions)
    earlier: dict[int, list[int]] = {}
    for first, second in overlapping(boxes):
        earlier.setdefault(second, []).append(first)
    if not earlier:
        return [(rect, tuple(members)) for rect, members in positions.items()]
    # Every cell is kept under the first box that covers it, so a box meets only cells of boxes that overlap it.
    born: list[list[tuple[Rect, tuple[int, ...]]]] = []
    for index, rect in enumerate(boxes):
        rest = [rect]
        for other in sorted(earlier.get(index, ())):
            rest = [piece for part in rest for piece in part.subtract(boxes[other])]
            cut: list[tuple[Rect, tuple[int, ...]]] = []
            for box, members in born[other]:
                shared = box.intersect(rect)
                if shared.is_empty:
                    cut.append((box, members))
                    continue
                cut += [(piece, members) for piece in box.subtract(rect)]
                cut.append((shared, (*members, index)))
            born[other] = cut
        born.append([(piece, (index,)) for piece in rest])
    groups: dict[tuple[int, ...], list[Rect]] = {}
    for cells in born:
        for box, members in cells:
            groups.setdefault(members, []).append(box)
    result: list[tuple[Rect, tuple[int, ...]]] = []
    for members, pieces in groups.items():
        covering = tuple(sorted([position for index in members for position in positions[boxes[index]]]))
        result += [(piece, covering) for piece in merged(pieces)]
    return result


def meetings(first: Sequence[Rect], second: Sequence[Rect]) -> list[tuple[int, int]]:
    """The pairs (position in first, position in second) that share a point, ascending.

    Args:
        first: boxes that are disjoint from each other and not empty.
        second: likewise.
    """
    if len(first) * len(second) <= _FEW:
        return [(i, j) for i, rect in enumerate(first) for j, other in enumerate(second) if rect.overlaps(other)]
    # Equal tilings are the usual case. Boxes of either side that have an equal meet nothing else.
    places = {rect: j for j, rect in enumerate(second)}
    pairs = [(i, places[rect]) for i, rect in enumerate(first) if rect in places]
    if len(pairs) < len(first):
        matched = {i for i, _ in pairs}
        taken = {j for _, j in pairs}
        left = [i for i in range(len(first)) if i not in matched]
        right = [j for j in range(len(second)) if j not in taken]
        # Boxes of one side are disjoint, so every pair that the sweep finds has one of each.
        for a, b in overlapping([first[i] for i in left] + [second[j] for j in right]):
            pairs.append((left[a], right[b - len(left)]))
    return sorted(pairs)
