"""The losses of a hundred steps in halves stay beside torch.autocast's, as docs/how-to/precision.md says."""

from __future__ import annotations

from argparse import Namespace

import precision_loss
import pytest
import torch

# Half as much again as what was seen with torch 2.13, which the page tells: roundings differ between its versions.
PAIRS = [("bf16", torch.bfloat16, 1.7e-3), ("fp16", torch.float16, 8e-4), ("float32", None, 3e-4)]


@pytest.mark.parametrize(("precision", "dtype", "most"), PAIRS)
def test_a_hundred_steps_beside_autocast(precision: str, dtype: torch.dtype | None, most: float) -> None:
    arguments = Namespace(steps=100, width=32, batch=128)
    ours, theirs = precision_loss.ours(precision, arguments), precision_loss.theirs(dtype, arguments)
    assert len(ours) == len(theirs) == arguments.steps
    assert ours[-1] < 0.6 * ours[0]
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) < most
