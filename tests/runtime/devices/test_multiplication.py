"""TF32 is off and halves are added up in float32 while a device is open, but where a plan asks for TF32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from maniple.runtime.devices import multiplication
from maniple.runtime.devices.multiplication import Multiplication


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    multiplication._allow_tf32(convolutions=True, products=False)
    yield
    multiplication._allow_tf32(convolutions=before[0], products=before[1])


def in_tf32() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def test_tf32_is_off_and_halves_are_added_up_in_float32_while_any_device_is_open() -> None:
    switches, products = Multiplication(), torch.backends.cuda.matmul
    switches.open()
    switches.open()
    switches.close()
    assert in_tf32() == (False, False)
    assert not products.allow_bf16_reduced_precision_reduction  # sums of halves are float32
    assert not products.allow_fp16_reduced_precision_reduction
    switches.close()
    assert in_tf32() == (True, False)
    assert products.allow_bf16_reduced_precision_reduction
    assert products.allow_fp16_reduced_precision_reduction


def test_tf32_is_on_while_anybody_is_inside() -> None:
    switches = Multiplication()
    with switches.tf32():
        assert in_tf32() == (True, True)
    assert in_tf32() == (True, False)  # as it was: no device is open
    switches.open()
    with switches.tf32():
        with switches.tf32():
            assert in_tf32() == (True, True)
        assert in_tf32() == (True, True)
    assert in_tf32() == (False, False)
    with pytest.raises(ValueError, match="no good"), switches.tf32():
        raise ValueError("no good")
    assert in_tf32() == (False, False)
    switches.close()
