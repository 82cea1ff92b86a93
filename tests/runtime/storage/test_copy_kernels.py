"""The runtime's own kernels: folds in fixed order, pack and unpack."""

from __future__ import annotations

import pytest
import torch

from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.copy_kernels import (
    LOAN_BYTES,
    bind_fold,
    bind_loan,
    bind_pack,
    bind_unpack,
    stretch,
    torch_dtype,
)

OPS = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "min": torch.minimum,
    "max": torch.maximum,
}


def test_a_tile_in_one_stretch_is_lent_until_nobody_refers_to_its_bytes() -> None:
    held = torch.arange(LOAN_BYTES, dtype=torch.float32).reshape(8, -1)
    rows = Rect((2, 0), (6, LOAN_BYTES // 8))
    lend = bind_loan(held[2:6], rows)
    assert lend is not None
    back: list[int] = []
    lent = lend(lambda: back.append(1))
    again = lend(lambda: back.append(2))
    assert lent == bind_pack(held[2:6])()
    part = lent[LOAN_BYTES // 2 :]
    del lent
    assert back == []  # a part is still referred to
    held[5, -1] = -1.0
    assert torch.frombuffer(bytearray(part), dtype=torch.float32)[-1] == -1.0  # its own bytes, and no copy
    del part
    assert back == [1]
    del again
    assert back == [1, 2]
    assert bind_loan(held[:, 1:], Rect((0, 1), (8, LOAN_BYTES // 8))) is None  # gaps
    assert bind_loan(held[0, :9], Rect((0,), (9,))) is None  # not worth it
    assert bind_loan(held, RectSet.of([Rect((0, 0), (2, 9)), Rect((4, 0), (6, 9))])) is None


@pytest.mark.parametrize("op", sorted(OPS))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("within", [False, True])
def test_a_fold_is_the_fold_from_the_left(op: str, count: int, within: bool) -> None:
    chance = torch.Generator().manual_seed(count)
    parts = [torch.randn((3, 4), generator=chance) for _ in range(count)]
    held = [part.clone() for part in parts]
    expected = parts[0].clone()
    for part in parts[1:]:
        expected = OPS[op](expected, part)
    target = parts[0] if within else torch.full((3, 4), float("nan"))
    bind_fold(op, target, parts)()
    assert torch.equal(target, expected)
    for part, before in list(zip(parts, held, strict=True))[1:]:
        assert torch.equal(part, before)


def test_a_fold_into_its_second_part_keeps_the_sum() -> None:
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    bind_fold("+", second, [first, second])()
    assert second.tolist() == [11.0, 22.0]


def test_a_fold_is_bound_once_and_run_often() -> None:
    target, one, two = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    fold = bind_fold("+", target, [one, two])
    for step in range(3):
        one.fill_(step)
        two.fill_(10.0)
        fold()
        assert target.tolist() == [10.0 + step] * 2


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_bytes_travel_unchanged(dtype: str) -> None:
    chance = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 2, (6, 5), generator=chance).to(torch_dtype(dtype))
    tile = whole[1:4, 2:5]
    packed = bind_pack(tile)()
    assert packed.nbytes == 9 * whole.element_size()
    assert packed.format == "B"
    target = torch.zeros((8, 8), dtype=whole.dtype)
    bind_unpack(target[5:8, 0:3])(packed)
    assert torch.equal(target[5:8, 0:3], tile)
    assert int(target.to(torch.int64).sum()) == int(tile.to(torch.int64).sum())
    assert stretch(target[5:8, 0:3], Rect((5, 0), (8, 3))) is None, "it has gaps"
    place = stretch(target[5:8], Rect((5, 0), (8, 8)))
    assert place is not None
    place[:] = bind_pack(target[2:5])()
    assert torch.equal(target[5:8], target[2:5])


def test_packed_bytes_do_not_change_with_their_source() -> None:
    source = torch.ones(4)
    pack = bind_pack(source)
    first = pack()
    source.fill_(2.0)
    assert torch.frombuffer(bytearray(first), dtype=torch.float32).tolist() == [1.0] * 4
    assert torch.frombuffer(bytearray(pack()), dtype=torch.float32).tolist() == [2.0] * 4


def test_nan_and_minus_zero_travel_bit_by_bit() -> None:
    source = torch.tensor([float("nan"), -0.0, float("inf")])
    target = torch.zeros(3)
    bind_unpack(target)(bind_pack(source)())
    assert torch.equal(source.view(torch.int32), target.view(torch.int32))


def test_a_scalar_travels() -> None:
    target = torch.zeros(())
    bind_unpack(target)(bind_pack(torch.tensor(3.5))())
    assert target.item() == 3.5


def test_a_name_of_torch_that_is_no_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match="'nn' is not a dtype"):
        torch_dtype("nn")


SPARSE = [
    RectSet.of([Rect((1,), (2,)), Rect((4,), (5,)), Rect((6,), (9,))]),
    RectSet.of([Rect((0,), (40,)), Rect((50,), (99,))]),
    RectSet.of([Rect((1, 1), (2, 2)), Rect((3, 0), (4, 2))]),
    RectSet.of([Rect((0, 0), (2, 40)), Rect((5, 1), (7, 30))]),
]


@pytest.mark.parametrize("points", SPARSE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_only_a_sparse_spaces_elements_are_packed_and_unpacked(points: RectSet, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    storage = torch.randint(2, [extent + 3 for extent in points.bounds.hi], generator=draw).to(dtype)
    view = storage[points.bounds.slices((0,) * points.ndim)]
    payload = bind_pack(view, points)()
    assert payload.nbytes == points.volume * view.element_size()
    assert stretch(view, points) is None
    target = torch.zeros_like(storage)
    bind_unpack(target[points.bounds.slices((0,) * points.ndim)], points)(payload)
    wanted = torch.zeros_like(storage)
    for point in points.points():
        wanted[point] = storage[point]
    assert torch.equal(target, wanted)


@pytest.mark.parametrize("points", SPARSE, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_only_a_sparse_spaces_elements_are_folded(points: RectSet, in_place: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    parts = [torch.rand(points.bounds.shape, generator=draw, dtype=torch.float64) for _ in range(3)]
    target = parts[1] if in_place else torch.full(points.bounds.shape, -1.0, dtype=torch.float64)
    order = [parts[1], parts[0], parts[2]] if in_place else parts
    wanted = target.clone()
    for point in points.points():
        place = tuple(i - low for i, low in zip(point, points.lo, strict=True))
        wanted[place] = order[0][place] + order[1][place] + order[2][place]
    bind_fold("+", target, parts, points)()
    assert torch.equal(target, wanted)
