"""The dropout kernel: every tile has the bits of the whole, which are those of Philox in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.kernels.dropout import Mask, bind_dropout, runs
from maniple.operators.philox import philox, stream
from maniple.regions.rectangle import Rect

KEY = stream(7, "dropout")


def dropped(
    mask: Mask, shape: tuple[int, ...], rect: Rect, step: int, values: torch.Tensor, strided: bool = False
) -> torch.Tensor:
    """What the kernel makes of a tile."""
    source = values[rect.slices((0,) * len(shape))]
    target = torch.full((*source.shape[:-1], source.shape[-1] + 2), float("nan"), dtype=values.dtype)[..., 1:-1]
    if not strided:
        source, target = source.contiguous(), target.contiguous()
    bind_dropout(mask, shape, rect, np.array([step], np.uint64), source, target)()
    return target


def reference(mask: Mask, shape: tuple[int, ...], step: int) -> torch.Tensor:
    """The factors of the whole, by numpy."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    group, place = index >> np.uint64(2), (index & np.uint64(3)).astype(int)
    low, high = np.uint64(step & 0xFFFFFFFF), np.uint64(step >> 32)
    words = np.stack(philox((group & np.uint64(0xFFFFFFFF), group >> np.uint64(32), low, high), mask.key))
    kept = words[place, np.arange(index.size)] >= mask.threshold
    return torch.from_numpy(np.where(kept, mask.scale, 0.0).reshape(shape))


@given(data=st.data())
def test_a_tile_has_what_the_whole_has_at_its_place(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    low = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    high = tuple(data.draw(st.integers(first + 1, extent)) for first, extent in zip(low, shape, strict=True))
    rect = Rect(low, high)
    step = data.draw(st.integers(0, 2**64 - 1))
    mask = Mask(KEY, data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))
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
        bind_dropout(Mask(KEY, 0.5), shape, rect, np.zeros(1, np.uint64), ones, target)()
        return target

    low = np.arange(16, dtype=np.uint64)
    words = np.stack(philox((low, np.ones_like(low), np.zeros_like(low), np.zeros_like(low)), KEY), axis=1)
    assert torch.equal(factors(tile).view(-1), torch.from_numpy(np.where(words.reshape(-1) >= 2**31, 2.0, 0.0)))
    assert not torch.equal(factors(tile), factors(Rect((0, 0), (1, 64))))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p(p: float) -> None:
    shape = (400, 500)
    factors = dropped(Mask(KEY, p), shape, Rect.of_shape(shape), 0, torch.ones(shape, dtype=torch.float64))
    zeros = float((factors == 0).double().mean())
    assert abs(zeros - p) <= 5 * (p * (1 - p) / factors.numel()) ** 0.5
    assert set(factors.unique().tolist()) == {0.0, 1 / (1 - p)}


def test_steps_and_operators_and_seeds_draw_different_masks() -> None:
    shape, ones = (8, 8), torch.ones(8, 8, dtype=torch.float64)
    keys = [stream(7, "dropout"), stream(7, "dropout_1"), stream(8, "dropout")]
    masks = [dropped(Mask(key, 0.5), shape, Rect.of_shape(shape), 0, ones) for key in keys]
    masks.append(dropped(Mask(keys[0], 0.5), shape, Rect.of_shape(shape), 1, ones))
    assert len({tuple(mask.view(-1).tolist()) for mask in masks}) == 4


def test_the_step_is_read_when_the_kernel_runs() -> None:
    shape, step = (4, 16), np.zeros(1, np.uint64)
    ones, target = torch.ones(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
    run = bind_dropout(Mask(KEY, 0.5), shape, Rect.of_shape(shape), step, ones, target)
    for number in (0, 1, 0):
        step[0] = number
        run()
        assert torch.equal(target, reference(Mask(KEY, 0.5), shape, number))


def test_a_nan_is_not_dropped() -> None:
    values = torch.full((16,), float("nan"), dtype=torch.float64)
    assert bool(dropped(Mask(KEY, 0.5), (16,), Rect((0,), (16,)), 0, values).isnan().all())
