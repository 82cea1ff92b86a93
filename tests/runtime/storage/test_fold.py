"""The fused sum: the bits of adding from the left, in fewer passes."""

from __future__ import annotations

import pytest
import torch

from maniple.runtime.storage.fold import DTYPES, bind_sum


def drawn(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Parts of so different sizes that another order of adding gives other bits."""
    chance = torch.Generator().manual_seed(count)
    return [(torch.randn((3, 5), generator=chance, dtype=dtype) * 10.0 ** (part % 5)) for part in range(count)]


def from_the_left(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [3, 4, 5, 7, 8, 11])
def test_a_sum_has_the_bits_of_adding_from_the_left(dtype: torch.dtype, count: int) -> None:
    parts, target = drawn(count, dtype), torch.full((3, 5), float("nan"), dtype=dtype)
    expected = from_the_left(parts)
    fold = bind_sum(target, parts)
    assert fold is not None
    for _ in range(2):  # bound once, run again and again
        fold()
        assert torch.equal(target, expected)


def test_the_order_of_parts_shows_in_the_bits() -> None:
    """Otherwise the test above could not fail by order."""
    parts = drawn(5, torch.float32)
    assert not torch.equal(from_the_left(parts), from_the_left(parts[::-1]))


def test_a_sum_may_be_written_over_its_first_part() -> None:
    parts = drawn(6, torch.float64)
    expected, rest = from_the_left(parts), [part.clone() for part in parts[1:]]
    fold = bind_sum(parts[0], parts)
    assert fold is not None
    fold()
    assert torch.equal(parts[0], expected)
    assert all(torch.equal(part, before) for part, before in zip(parts[1:], rest, strict=True))


@pytest.mark.parametrize(
    "parts",
    [
        [torch.ones(4), torch.ones(4)],
        [torch.ones(4, dtype=torch.int64)] * 3,
        [torch.ones(4, 4).t()[:, :2]] * 3,
    ],
    ids=["two parts", "whole numbers", "views with gaps"],
)
def test_where_torch_is_as_good_nothing_is_bound(parts: list[torch.Tensor]) -> None:
    assert bind_sum(torch.empty_like(parts[0]), parts) is None
