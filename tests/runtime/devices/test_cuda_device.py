"""CUDA devices: what is refused before anything starts, and which switches of torch are held."""

from __future__ import annotations

import pytest
import torch

from maniple.process.error import RequestError
from maniple.runtime.devices import cuda_device
from maniple.runtime.devices.cuda_device import check_cuda


def test_a_host_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device.torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match=r"--device cuda: .*--device null"):
        check_cuda()


def test_a_numba_that_cannot_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    monkeypatch.setattr(cuda_device.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_device, "import_module", broken)
    with pytest.raises(
        RequestError, match=r"numba \S+, numba-cuda \S+, numpy \S+ \(AttributeError: .*row_stack.*numpy<2.5"
    ):
        check_cuda()


def test_tf32_is_off_while_any_device_is_open() -> None:
    switches = cuda_device._ExactMultiplication()
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        cuda_device._allow_tf32(convolutions=True, products=False)
        switches.open()
        switches.open()
        switches.close()
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        switches.close()
        assert torch.backends.cudnn.allow_tf32
    finally:
        cuda_device._allow_tf32(convolutions=before[0], products=before[1])
