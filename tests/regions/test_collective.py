from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.regions.collective import Collective, recognise, recognise_groups
from maniple.regions.movement import Copy, Fold, Movements, Part
from maniple.regions.partition import blocks
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, ReductionOp, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Use, Validity

SUM, MOST = ReductionOp("sum", "+"), ReductionOp("maximum", "max")
A, B, C, D = (Rect((first,), (first + 2,)) for first in (0, 2, 4, 6))
PARTS = (Part(0, ((0, 0),), base=False), Part(1, ((0, 1),), base=False))
WITH_BASE = (Part(0, ((0, 0),), base=True), Part(1, ((0, 1),), base=False))
OUTSIDE = (*PARTS, Part(2, (), base=True))
ALONE = (Part(0, ((0, 0),), base=False),)
THREE = (*PARTS, Part(2, ((0, 2),), base=False))
LEFT, RIGHT = Fold(A, 0, SUM, PARTS), Fold(B, 1, SUM, PARTS)
EXCHANGE = (Copy(A, 0, 1), Copy(B, 1, 0))


@pytest.mark.parametrize(
    ("folds", "copies", "kind", "memories"),
    [
        ((LEFT, RIGHT), EXCHANGE, "all_reduce", (0, 1)),
        ((replace(LEFT, parts=WITH_BASE), RIGHT), EXCHANGE, "all_reduce", (0, 1)),
        ((LEFT,), (Copy(A, 0, 1),), "all_reduce", (0, 1)),
        ((LEFT, Fold(B, 0, SUM, PARTS)), (Copy(Rect((0,), (4,)), 0, 1),), "all_reduce", (0, 1)),
        ((LEFT, RIGHT), (), "reduce_scatter", (0, 1)),
        ((), EXCHANGE, "all_gather", (0, 1)),
        ((), (*EXCHANGE, Copy(A, 0, 2), Copy(B, 1, 2)), "all_gather", (0, 1, 2)),
        ((), (Copy(A, 3, 0), Copy(A, 3, 1)), "broadcast", (0, 1, 3)),
        ((), (Copy(A, 3, 0), Copy(A, 3, 1), Copy(C, 3, 0), Copy(C, 3, 1)), "broadcast", (0, 1, 3)),
    ],
)
def test_collectives(folds: tuple[Fold, ...], copies: tuple[Copy, ...], kind: str, memories: tuple[int, ...]) -> None:
    found = recognise(Movements(folds, copies))
    assert found is not None
    assert (found.kind, found.memories, found.folds, found.copies) == (kind, memories, folds, copies)


@pytest.mark.parametrize(
    ("folds", "copies"),
    [
        ((), ()),
        # One value to one reader; or folded, and kept where it is.
        ((), (Copy(A, 0, 1),)),
        ((Fold(A, 0, SUM, ALONE),), ()),
        ((LEFT,), ()),
        ((Fold(A, 0, SUM, ALONE),), (Copy(A, 0, 1),)),
        # The target is not a contributor, a base comes from outside, the contributors or the operations differ.
        ((Fold(A, 2, SUM, PARTS), RIGHT), ()),
        ((Fold(A, 0, SUM, OUTSIDE), Fold(B, 1, SUM, OUTSIDE)), ()),
        ((Fold(A, 0, SUM, THREE), RIGHT), ()),
        ((LEFT, Fold(B, 1, MOST, PARTS)), EXCHANGE),
        # A copy too few, too many, too short, to a stranger, of something else or twice; a box folded twice.
        ((LEFT, RIGHT), (Copy(A, 0, 1),)),
        ((LEFT, RIGHT), (*EXCHANGE, Copy(A, 0, 2))),
        ((LEFT, RIGHT), (Copy(Rect((0,), (1,)), 0, 1), Copy(B, 1, 0))),
        ((LEFT, RIGHT), (*EXCHANGE, Copy(C, 0, 1))),
        ((LEFT, RIGHT), (*EXCHANGE, Copy(A, 0, 1))),
        ((LEFT, RIGHT), (Copy(A, 1, 0), Copy(B, 0, 1))),
        ((LEFT, Fold(A, 1, SUM, PARTS)), ()),
        # Gathers and broadcasts that leave somebody out, or differ between targets, or send one box from two.
        ((), (*EXCHANGE, Copy(A, 0, 2))),
        ((), (Copy(A, 0, 2), Copy(B, 1, 2))),
        ((), (Copy(A, 3, 0), Copy(B, 3, 1))),
        ((), (Copy(A, 3, 0), Copy(A, 3, 1), Copy(B, 3, 1))),
        ((), (Copy(A, 0, 1), Copy(A, 1, 0))),
        ((), (Copy(A, 3, 0), Copy(A, 3, 0), Copy(A, 3, 1))),
        ((), (Copy(A, 0, 0), Copy(B, 1, 0))),
    ],
)
def test_near_misses(folds: tuple[Fold, ...], copies: tuple[Copy, ...]) -> None:
    assert recognise(Movements(folds, copies)) is None


@pytest.mark.parametrize("memories", [2, 3, 4, 7])
def test_launches_become_the_collectives_that_they_are_known_as(memories: int) -> None:
    whole = Rect.of_shape((9, 2))
    tiles = blocks((memories, 1)).bind(whole).tiles
    everywhere = [Use(m, whole, READ, (2, m)) for m in range(memories)]
    spread = [Use(m, tile, READ_WRITE, (2, m)) for m, tile in enumerate(tiles)]
    _, summed = Validity.initial().advance([Use(m, whole, reduce("+"), (1, m)) for m in range(memories)])
    _, tiled = Validity.initial().advance([Use(m, tile, WRITE_DISCARD, (1, m)) for m, tile in enumerate(tiles)])
    kinds: list[str | None] = []
    for state, uses in [
        (summed, everywhere),
        (summed, spread),
        (tiled, everywhere),
        (Validity.of_holdings({9: whole}), everywhere),
    ]:
        found = recognise(state.advance(uses)[0])
        kinds.append(None if found is None else found.kind)
        assert found is not None
        assert found.memories[:memories] == tuple(range(memories))
    assert kinds == ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]


@st.composite
def movements(draw: st.DrawFn) -> Movements:
    memory = st.integers(0, 3)
    box = st.sampled_from([A, B, C])
    part = st.sampled_from([PARTS, WITH_BASE, OUTSIDE, ALONE])
    folds = draw(st.lists(st.builds(Fold, box, memory, st.just(SUM), part), max_size=3))
    copies = draw(st.lists(st.builds(Copy, box, memory, memory), max_size=6))
    return Movements(tuple(folds), tuple(copies))


@given(movements())
@settings(derandomize=True, deadline=None, max_examples=500)
def test_recognising_never_changes_what_moves(moved: Movements) -> None:
    found = recognise(moved)
    if found is not None:
        assert Movements(found.folds, found.copies) == moved
        assert Movements(found.folds, found.copies).volume() == moved.volume()
        seen = {memory for copy in moved.copies for memory in (copy.source, copy.target)}
        seen |= {part.memory for fold in moved.folds for part in fold.parts}
        assert found.memories == tuple(sorted(seen))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=500)
def test_a_collective_of_a_launch_has_its_closed_volume(reads: list[tuple[int, int]], reduced: bool) -> None:
    whole = Rect.of_shape((6,))
    tiles = blocks((3,)).bind(whole).tiles
    state = Validity.initial()
    first = [
        Use(m, whole, reduce("+"), (0, m)) if reduced else Use(m, tiles[m], WRITE_DISCARD, (0, m)) for m in range(3)
    ]
    _, state = state.advance(first)
    moved, _ = state.advance([Use(memory, tiles[tile], READ, (1, i)) for i, (memory, tile) in enumerate(reads)])
    found = recognise(moved)
    if found is None:
        return
    size = len(found.memories)
    points = sum(fold.rect.volume for fold in moved.folds)
    if found.kind == "all_reduce":
        assert moved.volume() == 2 * (size - 1) * points
    elif found.kind == "reduce_scatter":
        assert moved.volume() == (size - 1) * points
    else:
        sent = {(copy.source, point) for copy in moved.copies for point in copy.rect.points()}
        assert moved.volume() == (size - 1) * len(sent)


def told(moved: Movements) -> list[tuple[str, tuple[int, ...]] | tuple[int, int]]:
    """Each group's collective, or how many folds and copies it makes by themselves."""
    return [
        (one.kind, one.memories) if isinstance(one, Collective) else (len(one.folds), len(one.copies))
        for one in recognise_groups(moved)
    ]


def test_groups_move_side_by_side() -> None:
    """The table: two all-gathers; a broadcast beside one copy; sums of two groups; and who is no group of its own."""
    beside = (Copy(C, 2, 3), Copy(D, 3, 2))
    assert told(Movements((), (*EXCHANGE, *beside))) == [("all_gather", (0, 1)), ("all_gather", (2, 3))]
    assert told(Movements((), (Copy(C, 4, 0), Copy(A, 3, 1), Copy(A, 3, 2)))) == [(0, 1), ("broadcast", (1, 2, 3))]
    third, fourth = Fold(C, 2, SUM, SHIFTED), Fold(D, 3, SUM, SHIFTED)
    sums = Movements((LEFT, RIGHT, third, fourth), ())
    assert told(sums) == [("reduce_scatter", (0, 1)), ("reduce_scatter", (2, 3))]
    # One collective of all, and no group that makes one, stay as they are.
    assert told(Movements((), EXCHANGE)) == [("all_gather", (0, 1))]
    assert told(Movements((), (Copy(A, 0, 1), Copy(B, 2, 3)))) == [(0, 2)]
    # 1 and 3 get one point, from the nearest that has it each: they are of one group, and that makes no collective.
    assert told(Movements((), (*EXCHANGE, Copy(A, 2, 3), Copy(B, 3, 2)))) == [(0, 4)]


SHIFTED = tuple(replace(part, memory=part.memory + 2) for part in PARTS)


@given(movements())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_groups_share_neither_movements_nor_memories(moved: Movements) -> None:
    found = recognise_groups(moved)
    for kind in ("folds", "copies"):
        assert sorted(map(repr, (one for group in found for one in getattr(group, kind)))) == sorted(
            map(repr, getattr(moved, kind))
        )
    seen: set[int] = set()
    for group in found:
        own = {memory for copy in group.copies for memory in (copy.source, copy.target)}
        own |= {memory for fold in group.folds for memory in (fold.target, *(part.memory for part in fold.parts))}
        assert not own & seen
        seen |= own
