"""The dropout kernel: every tile has the bits of the whole, which are those of Philox in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.library.randomness.dropout_kernels import Mask, bind_dropout, runs
from maniple.operators.operator.philox import philox
from maniple.regions.rectangle import Rect

SEED, OPERATOR = 0xF00000000000000D, 0x123456789ABCDEF0
KEY = ((SEED ^ OPERATOR) & 0xFFFFFFFF, (SEED ^ OPERATOR) >> 32)


def clock(step: int, seed: int = SEED) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([seed, step], np.uint64).view(np.int64)


def dropped(
    mask: Mask, shape: tuple[int, ...], rect: Rect, step: int, values: torch.Tensor, strided: bool = False
) -> torch.Tensor:
    """What the kernel makes of a tile."""
    source = values[rect.slices((0,) * len(shape))]
    target = torch.full((*source.shape[:-1], source.shape[-1] + 2), float("nan"), dtype=values.dtype)[..., 1:-1]
    if not strided:
        source, target = source.contiguous(), target.contiguous()
    bind_dropout(mask, shape, rect, clock(step), source, target)()
    return target


def reference(mask: Mask, shape: tuple[int, ...], step: int) -> torch.Tensor:
    """The factors of the whole, by numpy."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    group, place = index >> np.uint64(2), (index & np.uint64(3)).astype(int)
    low, high = np.uint64(step & 0xFFFFFFFF), np.uint64(step >> 32)
    words = np.stack(philox((group & np.uint64(0xFFFFFFFF), group >> np.uint64(32), low, high), KEY))
    kept = words[place, np.arange(index.size)] >= mask.threshold
    return torch.from_numpy(np.where(kept, mask.scale, 0.0).reshape(shape))


@given(data=st.data())
def test_a_tile_has_what_the_whole_has_at_its_place(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    low = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    high = tuple(data.draw(st.integers(first + 1, extent)) for first, extent in zip(low, shape, strict=True))
    rect = Rect(low, high)
    step = data.draw(st.integers(0, 2**63 - 1))
    mask = Mask(OPERATOR, data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = (values * reference(mask, shape, step))[rect.slices((0,) * len(shape))]
    assert torch.equal(dropped(mask, shape, rect, step, values, strided=data.draw(st.booleans())), expected)


def test_the_runs_of_a_tile() -> None:
    starts, length = runs((4, 6, 5), Rect((1, 2, 0), (3, 4, 5)))
    assert starts.tolist() == [40, 70]
    assert length == 10
    starts, length = runs((4, 6, 5), Rect((1, 2, 1), (3, 4, 3)))
    assert starts.tolist() == [41, 46, 71, 76]
    assert length == 2
    assert runs((7,), Rect((2,), (5,)))[0].tolist() == [2]
    assert runs((4, 6), Rect((1, 0), (3, 6)))[1] == 12


def test_elements_beyond_32_bits_have_their_own_numbers() -> None:
    shape = (1 << 20, 1 << 15)  # never allocated
    tile = Rect((1 << 19, 0), ((1 << 19) + 1, 64))  # its groups begin at 2^32
    ones = torch.ones((1, 64), dtype=torch.float64)

    def factors(rect: Rect) -> torch.Tensor:
        target = torch.empty((1, 64), dtype=torch.float64)
        bind_dropout(Mask(OPERATOR, 0.5), shape, rect, clock(0), ones, target)()
        return target

    low = np.arange(16, dtype=np.uint64)
    words = np.stack(philox((low, np.ones_like(low), np.zeros_like(low), np.zeros_like(low)), KEY), axis=1)
    assert torch.equal(factors(tile).view(-1), torch.from_numpy(np.where(words.reshape(-1) >= 2**31, 2.0, 0.0)))
    assert not torch.equal(factors(tile), factors(Rect((0, 0), (1, 64))))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p(p: float) -> None:
    shape = (400, 500)
    factors = dropped(Mask(OPERATOR, p), shape, Rect.of_shape(shape), 0, torch.ones(shape, dtype=torch.float64))
    zeros = float((factors == 0).double().mean())
    assert abs(zeros - p) <= 5 * (p * (1 - p) / factors.numel()) ** 0.5
    assert set(factors.unique().tolist()) == {0.0, 1 / (1 - p)}


def test_steps_and_operators_and_seeds_draw_different_masks() -> None:
    shape, ones = (8, 8), torch.ones(8, 8, dtype=torch.float64)
    masks = []
    for operator, seed, step in ((1, 7, 0), (2, 7, 0), (1, 8, 0), (1, 7, 1)):
        target = torch.empty(shape, dtype=torch.float64)
        bind_dropout(Mask(operator, 0.5), shape, Rect.of_shape(shape), clock(step, seed), ones, target)()
        masks.append(target)
    assert len({tuple(mask.view(-1).tolist()) for mask in masks}) == 4


def test_the_step_is_read_when_the_kernel_runs() -> None:
    shape, now = (4, 16), clock(0)
    ones, target = torch.ones(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
    run = bind_dropout(Mask(OPERATOR, 0.5), shape, Rect.of_shape(shape), now, ones, target)
    for number in (0, 1, 0):
        now[1] = number
        run()
        assert torch.equal(target, reference(Mask(OPERATOR, 0.5), shape, number))


def test_a_nan_is_not_dropped() -> None:
    values = torch.full((16,), float("nan"), dtype=torch.float64)
    assert bool(dropped(Mask(OPERATOR, 0.5), (16,), Rect((0,), (16,)), 0, values).isnan().all())
