"""Input gradients with channels last and weight gradients by a product: torch's values; which tiles they are for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from maniple.operators.library.windows import channels_last_kernels, weight_product
from maniple.operators.library.windows.channel_order import turn
from maniple.operators.library.windows.convolution import Conv2d
from maniple.operators.operator.operator import BackwardTensors, TileContext

TOLERANCE = 1e-5  # of float32, relative to the largest; torch adds up thousands of products


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(1, 50)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_turned_matrices_are_what_they_were(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    given_, found = (
        torch.randn(shape, dtype=dtype),
        torch.full((shape[0], shape[2], shape[1]), float("nan"), dtype=dtype),
    )
    turn(given_.numpy(), found.numpy())
    assert torch.equal(found, given_.transpose(1, 2))


def tile(operator: Conv2d, *operands: Tensor | None, cores: int = 1) -> tuple[TileContext, Tensor]:
    """All of a convolution as one tile, and memory for its result."""
    shapes = tuple(None if each is None else tuple(each.shape) for each in operands)
    bound = operator.rule(shapes).bind(shapes)
    context = TileContext(bound.tiles({})[0], bound.extents(), operator, cores)
    return context, torch.full(bound.result_shapes[0], float("nan"))


def drawn(operator: Conv2d, size: tuple[int, int], samples: int = 2) -> tuple[Tensor, Tensor, Tensor | None]:
    chance = torch.Generator().manual_seed(sum(size))
    weight, *bias = (torch.randn(spec.shape, generator=chance) for spec in operator.parameters())
    return torch.randn(samples, operator.in_channels, *size, generator=chance), weight, *(bias or [None])  # type: ignore[return-value]


def near(found: Tensor, wanted: Tensor) -> bool:
    return float((found.double() - wanted).abs().max()) <= TOLERANCE * max(1.0, float(wanted.abs().max()))


@settings(max_examples=25, deadline=None)
@given(
    channels=st.tuples(st.integers(2, 20), st.integers(1, 20)),
    size=st.tuples(st.integers(16, 24), st.integers(16, 24)),
    window=st.integers(1, 3),
    stride=st.integers(1, 2),
    bias=st.booleans(),
    wanted=st.sets(st.integers(0, 1), min_size=1),
)
def test_a_tile_that_suits_has_torch_s_gradients(
    channels: tuple[int, int], size: tuple[int, int], window: int, stride: int, *, bias: bool, wanted: set[int]
) -> None:
    operator = Conv2d(*channels, (window, window), (stride, stride), (window // 2, window // 2), bias=bias)
    x, weight, shift = drawn(operator, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels_last_kernels, "is_faster_here", lambda: True)
        context, result = tile(operator, x, weight, shift)
        suits = channels_last_kernels.suits(context, weight, result, x)
        slope = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
        targets = tuple(
            torch.full_like(each, float("nan")) if each is not None and min(place, 1) in wanted else None
            for place, each in enumerate((x, weight, shift))
        )
        tensors = BackwardTensors((slope,), (x, weight, shift), (None,), (), targets)
        operator.kernels().bind_backward(context, tensors)()
    leaves = [None if each is None else each.double().requires_grad_() for each in (x, weight, shift)]
    by_torch = torch.nn.functional.conv2d(*leaves, stride, window // 2)  # type: ignore[arg-type]
    by_torch.backward(slope.double())
    assert suits == (x.numel() + result.numel() >= 3 * weight.numel())
    for found, leaf in zip(targets, leaves, strict=True):
        assert found is None or (leaf is not None and leaf.grad is not None and near(found, leaf.grad))


def test_which_tiles_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last_kernels, "is_faster_here", lambda: True)
    operator = Conv2d(4, 8, (3, 3), (1, 1), (1, 1))

    def suits(
        operator: Conv2d, size: tuple[int, int], samples: int = 2, cores: int = 1, *, apart: bool = False
    ) -> bool:
        x, weight, bias = drawn(operator, size, samples)
        context, result = tile(operator, x, weight, bias, cores=cores)
        lies = x.transpose(2, 3) if apart and size[0] == size[1] else x
        return channels_last_kernels.suits(context, weight, result, lies)

    assert suits(operator, (16, 16))
    assert not suits(operator, (16, 16), cores=2)
    assert not suits(operator, (16, 16), apart=True)
    assert not suits(operator, (15, 15), samples=8), "small images"
    assert not suits(Conv2d(256, 256, (3, 3), (1, 1), (1, 1)), (16, 16), samples=2), "larger weights than images"
    assert not suits(Conv2d(4, 8, (3, 3), (1, 1), (1, 1), groups=2), (16, 16))
    monkeypatch.setattr(channels_last_kernels, "is_faster_here", lambda: False)
    assert not suits(operator, (16, 16))


@settings(max_examples=25, deadline=None)
@given(
    channels=st.tuples(st.integers(16, 20), st.integers(1, 20)),
    size=st.tuples(st.integers(2, 4), st.integers(2, 4)),
    window=st.tuples(st.integers(1, 2), st.integers(2, 3)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    adds=st.booleans(),
)
def test_a_product_is_the_gradient_of_the_weight(
    channels: tuple[int, int],
    size: tuple[int, int],
    window: tuple[int, int],
    stride: int,
    dilation: int,
    *,
    bias: bool,
    adds: bool,
) -> None:
    operator = Conv2d(*channels, window, (stride, stride), (1, 2), (dilation, dilation), bias=bias)
    x, weight, shift = drawn(operator, size, samples=64)
    before = torch.full_like(weight, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_product, "is_faster_here", lambda: True)
        context, result = tile(operator, x, weight, shift)
        slope = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
        assert weight_product.suits(context, x, weight, slope) == (result[0, 0].numel() <= 16)
        found = before.clone(), None if shift is None else torch.full_like(shift, float("nan"))
        tensors = BackwardTensors(
            (slope,), (x, weight, shift), (None,), (), (None, *found), frozenset({1} if adds else ())
        )
        run = operator.kernels().bind_backward(context, tensors)
        run()
        if not adds:
            run()
    leaves = [None if each is None else each.double().requires_grad_() for each in (x, weight, shift)]
    torch.nn.functional.conv2d(*leaves, stride, (1, 2), dilation).backward(slope.double())  # type: ignore[arg-type]
    (_, wanted, sums), kept = [None if leaf is None else leaf.grad for leaf in leaves], before.double() * adds
    assert wanted is not None
    assert near(found[0], wanted + kept)
    assert sums is None or (found[1] is not None and near(found[1], sums))


def test_which_tiles_are_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_product, "is_faster_here", lambda: True)

    def suits(operator: Conv2d, size: tuple[int, int], samples: int = 8, cores: int = 1) -> bool:
        x, weight, bias = drawn(operator, size, samples)
        context, result = tile(operator, x, weight, bias, cores=cores)
        return weight_product.suits(context, x, weight, result)

    operator = Conv2d(16, 8, (3, 3), (1, 1), (1, 1))
    assert suits(operator, (4, 4))
    assert not suits(operator, (4, 4), cores=2)
    assert not suits(operator, (4, 4), samples=2), "few rows"
    assert not suits(operator, (5, 4)), "large images"
    assert not suits(Conv2d(8, 8, (3, 3), (1, 1), (1, 1)), (4, 4)), "few channels"
    assert not suits(Conv2d(32, 8, (3, 3), (1, 1), (1, 1), groups=2), (4, 4))
    assert not suits(Conv2d(16, 8, (1, 1), (1, 1), (0, 0)), (4, 4)), "a product already"
    monkeypatch.setattr(weight_product, "is_faster_here", lambda: False)
    assert not suits(operator, (4, 4))
