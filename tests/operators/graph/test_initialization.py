"""Initial values: known answers of Philox, slices equal the whole, torch's bounds, rounding."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.operators.graph.initialization import initial
from maniple.operators.graph.node import TensorInfo
from maniple.operators.operator.operator import Initial
from maniple.operators.operator.philox import philox, uniform
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

ONES = 0xFFFFFFFF


def parameter(shape: tuple[int, ...], dtype: str = "float64", fan_in: int = 4, name: str = "w") -> TensorInfo:
    return TensorInfo(0, name, shape, dtype, "parameter", Initial.fan_in(fan_in))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # Random123, kat_vectors: philox4x32 10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    a, b, c, d = (np.array([word, word], np.uint64) for word in counter)
    words = philox((a, b, c, d), key)
    assert tuple(int(word[0]) for word in words) == answer
    assert tuple(int(word[1]) for word in words) == answer
    expected = (answer[0] << 32 | answer[1]) >> 11
    assert uniform((a, b, c, d), key)[0] * 2.0**53 == expected


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_rect_holds_the_slice_of_the_whole(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    low = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    high = tuple(data.draw(st.integers(first + 1, extent)) for first, extent in zip(low, shape, strict=True))
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    seed = data.draw(st.integers(0, 2**64 - 1))
    whole = initial(parameter(shape, dtype), Rect.of_shape(shape), seed)
    rect = Rect(low, high)
    part = initial(parameter(shape, dtype), rect, seed)
    assert part.dtype == np.dtype(dtype)
    assert np.array_equal(part, whole[rect.slices((0,) * len(shape))])


def test_a_rect_across_chunks_holds_the_slice_of_the_whole() -> None:
    shape = (300, 700)
    whole = initial(parameter(shape), Rect.of_shape(shape), 3)
    part = initial(parameter(shape), Rect((1, 5), (290, 690)), 3)
    assert np.array_equal(part, whole[1:290, 5:690])


def test_values_lie_within_torchs_bound_and_fill_it() -> None:
    values = initial(parameter((400, 500), fan_in=25), Rect.of_shape((400, 500)), 0)
    bound = 1 / sqrt(25)
    assert float(np.abs(values).max()) <= bound
    assert float(np.abs(values).max()) > 0.999 * bound
    # Of n uniform numbers the mean is within 5 standard deviations of 0, and the deviation near bound/sqrt(3).
    assert abs(float(values.mean())) < 5 * bound / sqrt(3 * values.size)
    assert abs(float(values.std()) / (bound / sqrt(3)) - 1) < 0.01
    assert len(np.unique(values)) == values.size


def test_float32_is_the_rounded_float64() -> None:
    shape = (50, 60)
    double = initial(parameter(shape), Rect.of_shape(shape), 7)
    single = initial(parameter(shape, "float32"), Rect.of_shape(shape), 7)
    assert np.array_equal(single, double.astype(np.float32))


def test_seeds_and_names_give_other_values() -> None:
    rect = Rect.of_shape((64,))
    draws = [initial(parameter((64,), name=name), rect, seed) for name in ("a", "b") for seed in (0, 1, 2**32, 2**63)]
    for place, one in enumerate(draws):
        for other in draws[:place]:
            assert not np.any(one == other)


def test_refusals() -> None:
    rect = Rect.of_shape((2,))
    for seed in (-1, 2**64):
        with pytest.raises(RequestError, match="seed: expected"):
            initial(parameter((2,)), rect, seed)
    with pytest.raises(RequestError, match="expected a parameter"):
        initial(TensorInfo(0, "x", (2,), "float32", "input"), rect, 0)
