"""Memory of CUDA devices that other processes open; what needs a device is skipped where there is none."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

from maniple.process.error import RunError
from maniple.runtime.devices import cuda_memory
from maniple.runtime.devices.cuda_memory import HANDLE_BYTES, CudaIpcMemory

SIZE = 1 << 16
MAKER = f"""
import sys
import torch
from maniple.runtime.devices.cuda_memory import CudaIpcMemory, PinnedFileMemory
made = [memory.export({SIZE}) for memory in (CudaIpcMemory(torch.device("cuda", 0)), PinnedFileMemory())]
for one in made:
    one.memory.fill_(5)
torch.cuda.synchronize()
print(*[f"{{one.handle.hex()}}:{{one.memory.numel()}}" for one in made], flush=True)
for _ in sys.stdin:
    print([int(one.memory[0]) for one in made], flush=True)
"""


class Driver:
    """A driver of CUDA that refuses everything, as one in a container may."""

    class CUipcMemHandle:
        def __init__(self) -> None:
            self._bytes = torch.zeros(HANDLE_BYTES, dtype=torch.uint8)

        def getPtr(self) -> int:  # noqa: N802  (the driver's name)
            return self._bytes.data_ptr()

    @staticmethod
    def cuIpcOpenMemHandle(handle: object, flags: int) -> tuple[int, None]:  # noqa: N802
        return 801, None


def test_what_the_driver_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = object.__new__(CudaIpcMemory)
    monkeypatch.setattr(cuda_memory, "_driver", Driver)
    monkeypatch.setattr(CudaIpcMemory, "_current", lambda _: torch.no_grad())
    with pytest.raises(RunError, match=f"CUDA IPC: expected a handle of {HANDLE_BYTES} bytes, got 3"):
        memory.open(b"abc", SIZE)
    with pytest.raises(RunError, match="CUDA IPC: cuIpcOpenMemHandle failed: 801"):
        memory.open(bytes(HANDLE_BYTES), SIZE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_two_processes_compute_with_the_same_memory_until_one_is_killed() -> None:
    memories = CudaIpcMemory(torch.device("cuda", 0)), cuda_memory.PinnedFileMemory()
    with subprocess.Popen(
        [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = [part.split(":") for part in process.stdout.readline().split()]
        opened = [
            memory.open(bytes.fromhex(handle), int(size)) for memory, (handle, size) in zip(memories, told, strict=True)
        ]
        assert [bool((one.memory == 5).all()) for one in opened] == [True, True]
        for one in opened:
            one.memory[:1].fill_(9)
        torch.cuda.synchronize()
        process.stdin.write("look\n")
        process.stdin.flush()
        assert process.stdout.readline() == "[9, 9]\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert [one.memory[1:3].tolist() for one in opened] == [[5, 5], [5, 5]]  # what is open outlives its maker
        for one in opened:
            one.close()
    assert float(torch.ones(3, device="cuda").sum()) == 3.0  # and the device works on
