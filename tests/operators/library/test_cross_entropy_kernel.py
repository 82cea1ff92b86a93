"""The fused cross-entropy: torch's numbers for every kind of mean, and the exponential that it is made of."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from maniple.operators.library.losses.cross_entropy_kernels import backward, exponential, forward

TOLERANCE = {"float64": 1e-13, "float32": 2e-6}


@numba.njit
def _exponentials(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exponential(x[i])
    return y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_exponential_is_within_two_units_in_the_last_place(dtype: str) -> None:
    x = np.concatenate([-np.logspace(-9, np.log10(86), 5000), [-0.0]]).astype(dtype)
    expected = np.exp(x.astype(np.longdouble))
    error = np.abs(_exponentials(x) - expected) / expected
    assert float(error.max()) <= 2 * np.finfo(dtype).eps


def test_the_exponential_of_what_is_not_finite() -> None:
    x = np.array([-np.inf, -1e30, np.nan], np.float32)
    assert np.isnan(_exponentials(x)).tolist() == [False, False, True]
    assert float(np.nanmax(_exponentials(x))) < 1e-37


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("classes", [1, 3, 30])
@pytest.mark.parametrize(("smoothing", "weighted"), [(0.0, False), (0.1, False), (0.0, True), (0.3, True)])
def test_the_mean_over_valid_labels_is_torchs(dtype: str, classes: int, smoothing: float, weighted: bool) -> None:
    chance, kind = torch.Generator().manual_seed(classes), getattr(torch, dtype)
    x = (4 * torch.randn(7, classes, generator=chance, dtype=torch.float64)).to(kind)
    labels = torch.randint(classes, (7,), generator=chance)
    labels[2] = -5
    weights = torch.rand(classes, generator=chance, dtype=torch.float64).to(kind) + 0.5
    weights = weights if weighted else torch.ones_like(weights)
    leaf = x.double().clone().requires_grad_()
    expected = F.cross_entropy(leaf, labels, weights.double(), ignore_index=-5, label_smoothing=smoothing)
    (2.5 * expected).backward()
    share = 1 / weights[labels[labels >= 0]].sum()
    number = np.dtype(dtype).type(smoothing)
    read = (x.numpy(), labels.numpy(), share.view(1).numpy(), weights.numpy(), -5, number)
    z, result, target = np.empty(7, dtype), np.empty(1, dtype), np.full((7, classes), np.nan, dtype)
    forward(*read, z, result)
    backward(*read, z, np.array([2.5], dtype), target)
    assert abs(float(result[0]) - expected.item()) <= TOLERANCE[dtype] * max(1.0, expected.item())
    assert leaf.grad is not None
    assert np.abs(target - leaf.grad.numpy()).max() <= TOLERANCE[dtype]


def test_a_nan_among_the_logits_is_a_nan_loss() -> None:
    x = np.ones((1, 9))
    for place in range(9):
        x[:] = 1
        x[0, place] = np.nan
        result = np.zeros(1)
        forward(x, np.array([0]), np.ones(1), np.ones(9), -100, 0.0, np.zeros(1), result)
        assert np.isnan(result[0])


def test_masked_logits_have_no_gradient() -> None:
    x = np.array([[0.0, -np.inf, 1.0]])
    read = (x, np.array([2]), np.ones(1), np.ones(3), -100, 0.0)
    z, result, target = np.zeros(1), np.zeros(1), np.zeros((1, 3))
    forward(*read, z, result)
    backward(*read, z, np.ones(1), target)
    assert abs(result[0] - np.log1p(np.exp(-1.0))) <= 1e-15
    assert target[0, 1] == 0
