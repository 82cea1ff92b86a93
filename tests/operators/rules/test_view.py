"""Views: where tensors lie in others, against torch's own views."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from maniple.operators.rules.view import Rearrangement, Strided, View


def split(strided: Strided) -> View:
    """The view of the docstring's root."""
    found = View.of((2, 5, 24), strided)
    assert found is not None
    return found


def keys() -> Strided:
    """Part 1 of 3 of heads and features, heads first: the docstring's member."""
    apart = Strided.whole((2, 5, 24)).reshaped((2, 5, 3, 2, 4))
    assert apart is not None
    alone = apart.permuted((2, 0, 3, 1, 4)).sliced(0, 1, 2).reshaped((2, 2, 5, 4))
    assert alone is not None
    return alone


def tiles(*ranges: tuple[int, int]) -> np.ndarray[tuple[int, int, int], np.dtype[np.int64]]:
    return np.asarray([ranges], dtype=np.int64)


def test_the_table() -> None:
    assert keys() == ((2, 2, 5, 4), (120, 4, 24, 1), 8)
    view = split(keys())
    one_head = view.bounds(tiles((0, 2), (1, 2), (0, 5), (0, 4)))
    assert one_head is not None
    assert one_head.tolist() == [[[0, 2], [0, 5], [12, 16]]]
    assert view.bounds(tiles((0, 2), (0, 2), (0, 5), (0, 2))) is None
    some_features = view.bounds(tiles((0, 2), (1, 2), (0, 5), (1, 3)))
    assert some_features is not None
    assert some_features.tolist() == [[[0, 2], [0, 5], [13, 15]]]
    assert not view.is_whole


def test_a_tile_without_elements_uses_nothing() -> None:
    found = split(keys()).bounds(tiles((0, 2), (1, 1), (0, 5), (0, 4)))
    assert found is not None
    assert found.tolist() == [[[0, 0]] * 3]


def test_of_a_root_without_axes_no_tile_uses_nothing() -> None:
    alone = Strided.whole(()).reshaped((1,))
    assert alone is not None
    view = View.of((), alone)
    assert view is not None
    used = view.bounds(tiles((0, 1)))
    assert used is not None
    assert used.shape == (1, 0, 2)
    assert view.bounds(tiles((0, 0))) is None


def test_an_axis_over_several_of_the_root_is_no_view_that_tiles_could_use() -> None:
    """Though strides say where it is: a tile of the root need not have its rows one behind the other."""
    joined = Strided.whole((3, 4)).reshaped((12,))
    assert joined is not None
    assert View.of((3, 4), joined) is None


def rearranged(chance: Random, values: torch.Tensor) -> tuple[torch.Tensor | None, Rearrangement]:
    """A tensor rearranged by torch, None where that would copy; and how."""
    kind = chance.choice(("order", "cut", "shape"))
    if kind == "order":
        order = tuple(chance.sample(range(values.ndim), values.ndim))
        return values.permute(order), Rearrangement(order=order)
    if kind == "cut":
        axis = chance.randrange(values.ndim)
        start = chance.randrange(values.shape[axis])
        stop = chance.randint(start + 1, values.shape[axis])
        return values.narrow(axis, start, stop - start), Rearrangement(cut=(axis, start, stop))
    left, shape = values.numel(), []
    while left > 1 and len(shape) < 4:
        shape.append(chance.choice([number for number in range(1, left + 1) if left % number == 0]))
        left //= shape[-1]
    shape.append(left)
    try:
        return values.view(shape), Rearrangement(shape=tuple(shape))
    except RuntimeError:
        return None, Rearrangement(shape=tuple(shape))


def drawn(seed: int) -> tuple[Random, torch.Tensor, torch.Tensor, Strided]:
    """A root, and a member that some rearrangements make of it; each is checked against torch's."""
    chance = Random(seed)
    shape = tuple(chance.choice((1, 2, 3, 4, 6)) for _ in range(chance.randint(1, 4)))
    root = torch.arange(int(np.prod(shape))).reshape(shape)
    member, strided = root, Strided.whole(shape)
    for _ in range(chance.randint(1, 4)):
        values, rearrangement = rearranged(chance, member)
        found = rearrangement.result(strided)
        if values is None:
            assert found is None
            break
        assert found is not None
        assert (found.shape, found.offset) == (tuple(values.shape), values.storage_offset())
        pairs = zip(found.strides, values.stride(), found.shape, strict=True)
        assert all(mine == its for mine, its, extent in pairs if extent > 1)
        if rearrangement.cut is None:  # and back
            before = rearrangement.operand(Strided.whole(found.shape), tuple(member.shape))
            again = None if before is None else rearrangement.result(before)
            wanted = Strided.whole(found.shape)
            assert again is None or View.of(wanted.shape, again) == View.of(wanted.shape, wanted)
        member, strided = values, found
    return chance, root, member, strided


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_tiles_of_drawn_views_are_boxes_of_the_root_that_hold_their_elements(first: int) -> None:
    boxes = 0
    for seed in range(first, first + 100):
        chance, root, member, strided = drawn(seed)
        view = View.of(tuple(root.shape), strided)
        for _ in range(0 if view is None else 4):
            assert view is not None
            low = [chance.choice((0, chance.randrange(extent))) for extent in member.shape]
            high = [chance.choice((n, chance.randint(at + 1, n))) for at, n in zip(low, member.shape, strict=True)]
            tile = member[tuple(slice(*ends) for ends in zip(low, high, strict=True))]
            found = view.bounds(tiles(*zip(low, high, strict=True)))
            if found is not None:
                part = root[tuple(slice(*ends) for ends in found[0].tolist())]
                assert part.numel() == tile.numel()
                assert torch.equal(view.tile(part, tuple(tile.shape)), tile)
                boxes += 1
    assert boxes > 100
