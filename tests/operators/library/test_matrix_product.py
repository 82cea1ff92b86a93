"""Products of halves as float32 sums: nothing of them is rounded, written or added."""

from __future__ import annotations

import pytest
import torch

from maniple.operators.library.dense.matrix_product import bind_column_sums, bind_product


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("adds", [False, True])
def test_products_and_sums_are_float32(half: torch.dtype, adds: bool) -> None:
    chance = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=chance).to(half) for shape in ((7, 300), (300, 5)))
    exact, sums = a.double() @ b.double(), a.double().sum(0)
    out, row = torch.ones(7, 5), torch.ones(300)
    bind_product(a, b, out, adds=adds)()
    bind_column_sums(a, row, adds=adds)()
    # A sum of n products in float32 is off by at most n 2^-24 of the sum of their absolute values.
    assert bool((out - float(adds) - exact).abs().le(301 * 2.0**-24 * (1 + a.double().abs() @ b.double().abs())).all())
    assert bool((row - float(adds) - sums).abs().le(8 * 2.0**-24 * (1 + a.double().abs().sum(0))).all())


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_product_of_halves_is_rounded_once(half: torch.dtype) -> None:
    a, b = (torch.randn(shape).to(half) for shape in ((6, 40), (40, 5)))
    out = torch.empty(6, 5, dtype=half)
    bind_product(a, b, out)()
    exact = a.double() @ b.double()
    unit = 2.0**-8 if half == torch.bfloat16 else 2.0**-11
    assert bool((out.double() - exact).abs().le(unit * exact.abs() + 1e-4).all())
