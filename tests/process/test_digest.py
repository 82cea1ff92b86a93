"""Digests: equal for equal values, however the tensors that hold them lie."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.digest import SAMPLES, digest, digest_tensors, flat_bytes

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Elements of a tensor by any strides, 0 among them, of which torch calls those of one element contiguous."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape)))
    held = torch.arange(64).to(draw(st.sampled_from(DTYPES)))
    return held.as_strided(shape, strides, draw(st.integers(0, 9)))


@given(views())
def test_the_bytes_of_a_tensor_are_those_of_its_elements_in_order(view: torch.Tensor) -> None:
    dense = torch.empty(view.shape, dtype=view.dtype).copy_(view)
    expected = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if view.numel() else b""
    assert flat_bytes(view).numpy().tobytes() == expected


@given(views(), st.booleans())
def test_equal_tensors_have_one_digest(view: torch.Tensor, sampled: bool) -> None:
    copied = torch.empty(view.shape, dtype=view.dtype).copy_(view)
    assert digest([view], sampled=sampled) == digest([copied], sampled=sampled)
    assert digest([{"x": (view, 1)}]) == digest([{"x": (copied, 1)}])


@given(st.sampled_from(DTYPES), st.integers(1, 4), st.booleans(), st.booleans())
def test_large_tensors_have_one_digest_however_they_lie(
    dtype: torch.dtype, rows: int, sampled: bool, apart: bool
) -> None:
    """Those that numpy sees are read by it, others by torch; of both what differs in all elements is told apart."""
    dense = torch.arange(rows * 3 * SAMPLES).reshape(rows, -1).to(dtype)
    turned = dense.t().contiguous().t()
    assert digest_tensors([dense, dense], sampled=sampled) == digest([turned, dense], sampled=sampled)
    other = [dense.logical_not() if apart else dense, dense.reshape(-1)]
    assert digest_tensors(other, sampled=sampled) != digest_tensors([dense, dense], sampled=sampled)
