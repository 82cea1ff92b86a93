"""Arrangements: overlapping index spaces cut into disjoint cells, and which of two sets of cells meet."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from maniple.regions.index_space import IndexSpace, crossing, intersect, meets, unite, without

# Below this many comparisons, comparing everything costs less than a sweep's sorting.
_FEW = 64
# Of more index spaces it is not kept which ones meet.
_MANY = 256


def arrange(rects: Sequence[IndexSpace]) -> list[tuple[IndexSpace, tuple[int, ...]]]:
    """The disjoint cells that index spaces cut each other into, each with the positions of those that cover it.

    ::

        0: [0:4]                       [0:2] (0,)
        1:     [2:6]           ->      [2:4] (0, 1)
        2: [0:4]           would add   (0, 2) and (0, 1, 2) instead
    """
    positions: dict[IndexSpace, list[int]] = {}
    for position, rect in enumerate(rects):
        if not rect.is_empty:
            positions.setdefault(rect, []).append(position)
    boxes = list(positions)
    earlier: dict[int, list[int]] = {}
    for first, second in meeting(tuple(boxes)):
        earlier.setdefault(second, []).append(first)
    if not earlier:
        return [(rect, tuple(members)) for rect, members in positions.items()]
    # Every cell is kept under the first box that covers it, so a box meets only cells of boxes that overlap it.
    born: list[list[tuple[IndexSpace, tuple[int, ...]]]] = []
    for index, rect in enumerate(boxes):
        rest: list[IndexSpace] = [rect]
        for other in sorted(earlier.get(index, ())):
            rest = [piece for part in rest for piece in without(part, boxes[other])]
            cut: list[tuple[IndexSpace, tuple[int, ...]]] = []
            for box, members in born[other]:
                both = intersect(box, rect)
                if both.is_empty:
                    cut.append((box, members))
                    continue
                cut += [(piece, members) for piece in without(box, rect)]
                cut.append((both, (*members, index)))
            born[other] = cut
        born.append([(piece, (index,)) for piece in rest])
    groups: dict[tuple[int, ...], list[IndexSpace]] = {}
    for cells in born:
        for box, members in cells:
            groups.setdefault(members, []).append(box)
    result: list[tuple[IndexSpace, tuple[int, ...]]] = []
    for members, pieces in groups.items():
        covering = tuple(sorted([position for index in members for position in positions[boxes[index]]]))
        result += [(piece, covering) for piece in unite(pieces)]
    return result


def meeting(spaces: tuple[IndexSpace, ...]) -> Iterable[tuple[int, int]]:
    """The pairs that `crossing` gives; of partitions that are not large they are kept, for these are named again."""
    return crossing(spaces) if len(spaces) > _MANY else _meeting(spaces)


@functools.lru_cache(maxsize=1024)
def _meeting(spaces: tuple[IndexSpace, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(crossing(spaces))


def meetings(first: Sequence[IndexSpace], second: Sequence[IndexSpace]) -> list[tuple[int, int]]:
    """The pairs (position in first, position in second) that share a point, ascending.

    Args:
        first: index spaces that are disjoint from each other and not empty.
        second: likewise.
    """
    # Equal tilings are the usual case. Spaces of either side that have an equal meet nothing else.
    places = {rect: j for j, rect in enumerate(second)}
    pairs: list[tuple[int, int]] = []
    left: list[int] = []
    for i, rect in enumerate(first):
        j = places.pop(rect, None)
        if j is None:
            left.append(i)
        else:
            pairs.append((i, j))
    right = sorted(places.values())
    if len(left) * len(right) <= _FEW:
        pairs += [(i, j) for i in left for j in right if meets(first[i], second[j])]
    else:
        # Those of one side are disjoint, so every pair that the sweep finds has one of each.
        for a, b in crossing([first[i] for i in left] + [second[j] for j in right]):
            pairs.append((left[a], right[b - len(left)]))
    return sorted(pairs)
