"""The runtime's own kernels: folds in fixed order, pack and unpack."""

from __future__ import annotations

import pytest
import torch

from maniple.runtime.kernels import bind_fold, bind_pack, bind_unpack, torch_dtype

OPS = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "min": torch.minimum,
    "max": torch.maximum,
}


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
