"""CUDA devices: what is refused before anything starts, which switches of torch are held, and what memory is taken."""

from __future__ import annotations

import gc
import threading
import weakref
from itertools import count
from typing import Any

import pytest
import torch

from maniple.process.error import RequestError
from maniple.process.taken_memory import Taken
from maniple.runtime.devices import cuda_device, device_peaks
from maniple.runtime.devices.cuda_device import CudaDevice, check_cuda
from maniple.runtime.devices.device_peaks import Bytes, DevicePeaks

NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
NO_DEVICE = "No CUDA GPUs are available"


@pytest.mark.parametrize(
    ("built_for", "torch_says", "visible", "wanted"),
    [
        (None, "", None, "this torch is built without CUDA .*; install one that has it"),
        ("13.0", NO_DRIVER, "", "this host has no NVIDIA driver; install it"),
        ("13.0", OLD_DRIVER, None, r"too old \(found version 11040\), and this torch is built for CUDA 13.0; update"),
        ("13.0", NO_DEVICE, "", "CUDA_VISIBLE_DEVICES is '' and hides all devices; unset it"),
        ("13.0", NO_DEVICE, "7", "CUDA_VISIBLE_DEVICES is '7' and hides all devices"),
        ("13.0", NO_DEVICE, None, r"torch finds no CUDA device \(No CUDA GPUs are available\); see whether nvidia-smi"),
    ],
)
def test_a_host_without_cuda_is_refused_with_the_reason(
    built_for: str | None, torch_says: str, visible: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun() -> None:
        raise RuntimeError(torch_says)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "init", begun)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(RequestError, match=f"^--device cuda: .*{wanted}.*; or run on CPUs, or .*--device null"):
        check_cuda()


def test_a_device_that_torch_has_no_kernels_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "compute_120"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    capabilities = [(7, 5), (6, 1)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    with pytest.raises(RequestError, match=r"cuda:1 \(GPU 1\) has capability 6.1, .*kernels from 7.5 on; hide it"):
        check_cuda()
    capabilities[1] = (9, 0)
    monkeypatch.setattr(cuda_device, "import_module", lambda name: None)
    check_cuda()


def test_a_numba_that_cannot_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    monkeypatch.setattr(cuda_device.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_device, "_too_old", str)
    monkeypatch.setattr(cuda_device, "import_module", broken)
    with pytest.raises(
        RequestError, match=r"numba \S+, numba-cuda \S+, numpy \S+ \(AttributeError: .*row_stack.*numpy<2.5"
    ):
        check_cuda()


def unopened() -> CudaDevice:
    """A device without hardware, for what asks torch alone."""
    device = CudaDevice.__new__(CudaDevice)
    device.device, device._pool = torch.device("cuda", 0), None
    device._graphs = weakref.WeakSet()
    return device


class Graph:
    """A CUDA graph that writes down what is asked of it."""

    log: list[object] = []  # noqa: RUF012

    def capture_begin(self, *, pool: object, capture_error_mode: str) -> None:
        self.log.append(("begin", pool, capture_error_mode))

    def capture_end(self) -> None:
        self.log.append("end")

    def replay(self) -> None:
        self.log.append("replay")


@pytest.mark.parametrize("refused", [False, True])
def test_a_capture_has_no_memory_of_the_first_run_beside_its_own(
    monkeypatch: pytest.MonkeyPatch,
    refused: bool,
) -> None:
    log = Graph.log = []

    def part() -> None:
        log.append("part")
        if refused and log.count("part") == 1:
            raise RuntimeError("a synchronisation\nmore")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    handles = count(1)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(handles)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("given back"))
    monkeypatch.setattr(cuda_device, "leave_capture", lambda device, pool: log.append(("left", pool)))
    device = unopened()
    first = device.capture([part])
    begun = ["given back", ("begin", (0, 1), "thread_local"), "part", "end"]
    assert log == [*begun, *([("left", (0, 1)), "part"] if refused else ["replay"])]
    log.clear()
    device.capture([])
    shared = (0, 2) if refused else (0, 1)
    assert log[1] == ("begin", shared, "thread_local"), "graphs of a device share their memory, but for one refused"
    del first


def test_a_pool_whose_graphs_are_gone_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log, handles = [], count(1)
    Graph.log = log
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(handles)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    device = unopened()
    held = device.capture([])
    device.capture([])
    del held
    gc.collect()
    device.capture([])
    assert [entry[1] for entry in log if isinstance(entry, tuple)] == [(0, 1), (0, 1), (0, 2)]


def test_nothing_is_given_back_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Graph.log = []
    others: list[threading.Thread] = []

    def part() -> None:
        others.append(threading.Thread(target=device_peaks.give_back))
        others[0].start()
        others[0].join(0.05)  # as long as it would take if it did not wait
        log.append("part")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (7, 0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("given back"))
    unopened().capture([part])
    others[0].join()
    assert log == ["given back", ("begin", (7, 0), "thread_local"), "part", "end", "replay", "given back"]


class Allocations:
    """An allocator that has 100 bytes, of which work lets go."""

    def __init__(self) -> None:
        self.now = self.peak = 100

    def held(self) -> Bytes:
        return Bytes(self.now, self.now)

    def most(self) -> Bytes:
        return Bytes(self.peak, self.peak)

    def set_back(self) -> None:
        self.peak = self.now

    def have(self, *sizes: int) -> None:
        for size in sizes:
            self.now, self.peak = size, max(self.peak, size)


@pytest.mark.parametrize(
    ("had", "taken"), [((130, 110), Taken(10, 30)), ((40, 60), Taken(0, 0)), ((20, 120, 50), Taken(0, 20))]
)
def test_what_was_there_before_and_is_let_go_of_makes_no_body_keep_less_than_nothing(
    had: tuple[int, ...], taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocations()
    peaks = DevicePeaks(allocator)
    monkeypatch.setattr(cuda_device, "peaks_of", lambda device: peaks)
    assert unopened().watch(lambda: allocator.have(*had)) == taken


def test_a_product_is_what_libraries_keep_a_workspace_for(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[Any] = []
    device = unopened()
    device.device = torch.device("cpu")
    monkeypatch.setattr(torch, "mm", lambda a, b: products.append((a, b)))
    device.settle()
    assert len(products) == 1
