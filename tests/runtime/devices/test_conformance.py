"""The device law: every device keeps it, and each way to break it is seen."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns

import pytest
import torch

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.runtime.devices import conformance
from maniple.runtime.devices.conformance import DEVICE_LAWS, check_device_laws
from maniple.runtime.devices.cuda_device import CudaDevice
from maniple.runtime.devices.device import Device, Stream
from maniple.runtime.devices.event import DONE, Event, Signal
from maniple.runtime.devices.host_device import Cpu, HostDevice, InlineStream
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.devices.processor import inside_task
from maniple.runtime.devices.registry import DEVICES, check_device, open_device

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "custom_device.py"


def example() -> type[Device]:
    found = importlib.util.spec_from_file_location("custom_device", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.FileDevice  # type: ignore[no-any-return]


@pytest.mark.parametrize("law", DEVICE_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("device", [NullDevice, HostDevice, example()], ids=lambda device: device.__name__)
def test_a_device_keeps_the_law(device: type[Device], law: Callable[[type[Device]], None]) -> None:
    law(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("law", DEVICE_LAWS, ids=lambda law: law.__name__)
def test_a_cuda_device_keeps_the_law(law: Callable[[type[Device]], None]) -> None:
    law(CudaDevice)


# ------------------------------------------------------------------------------------------------ ways to break the law


class Deaf(Stream):
    """Does not wait for what its work comes after."""

    def __init__(self) -> None:
        self.real = InlineStream()

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        return self.real.submit(work)


class Late(Stream):
    """Does work when the next comes, or never, and says that it is done."""

    def __init__(self) -> None:
        self.left: list[Callable[[], object]] = []

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        for one in self.left:
            one()
        self.left = [work]
        return InlineStream().submit(lambda: None)


class Blithe(Stream):
    """Goes on after a failure."""

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        return InlineStream().submit(work)


class Silent(Stream):
    """Never tells of an end."""

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        work()
        return Signal()


class Backward(Stream):
    """Does work from the last to the first, when nothing more came for a while."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Callable[[], object], Signal]] = []
        self.changed = threading.Lock()

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        end = Signal()
        with self.changed:
            self.pieces.append((work, end))
        timer = threading.Timer(0.05, self.run)
        timer.daemon = True
        timer.start()
        return end

    def run(self) -> None:
        with self.changed:
            pieces, self.pieces = self.pieces, []
        for work, end in reversed(pieces):
            work()
            end.set()


class Forgetful(HostDevice):
    """Never uses again what was let go of, and knows no end."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)


class Skewed(HostDevice):
    """Lays out its tensors as it likes."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((shape[0], 2), dtype=dtype)[:, 0]


class Restless(HostDevice):
    """Does what it is asked twice."""

    def watch(self, work: Callable[[], object]) -> None:
        work()
        work()


class OwnThread(Stream):
    """Does work in order, on threads that nobody told what they run."""

    def __init__(self) -> None:
        self.last: Event = DONE

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        end, after = Signal(), (self.last, *events)

        def run() -> None:
            failure: BaseException | None = None
            try:
                for event in after:
                    event.wait()
                end.begun_ns = perf_counter_ns()
                self.call(work)
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                failure = error
            end.set(failure)

        self.last = end
        threading.Thread(target=run, daemon=True).start()
        return end

    def call(self, work: Callable[[], object]) -> None:
        work()


class ToldThread(OwnThread):
    """The same, whose threads are told."""

    def call(self, work: Callable[[], object]) -> None:
        with mp.plugins.run_as_task():
            work()


def with_streams(stream: type[Stream]) -> Callable[[int, int], Device]:
    def make(local: int, capacity: int) -> Device:
        made = HostDevice(local, capacity)
        made.tasks, made.arrivals, made.departures = stream(), stream(), stream()
        return made

    return make


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (with_streams(Deaf), "failure"),
        (with_streams(Late), "order"),
        (with_streams(Blithe), "failure"),
        (with_streams(Silent), "ends"),
        (with_streams(Backward), "order"),
        (Forgetful, "room"),
        (Skewed, "views"),
        (Restless, "taking"),
        (with_streams(OwnThread), "body"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_breaks_the_law_is_told_which(
    make: Callable[[int, int], Device], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, closed = list[Device](), list[Device]()

    def watched(local: int, capacity: int) -> Device:
        device = make(local, capacity)
        opened.append(device)
        monkeypatch.setattr(device, "close", lambda: closed.append(device))
        return device

    monkeypatch.setattr(conformance, "PATIENCE_S", 0.5)
    with pytest.raises(RunError, match=law):
        check_device_laws(watched)
    assert closed == opened


def test_a_stream_with_a_thread_of_its_own_keeps_the_law() -> None:
    check_device_laws(with_streams(ToldThread))


# ------------------------------------------------------------------------------------------------------------ the names


def test_built_in_devices_come_by_name() -> None:
    assert {"cpu", "cuda", "null"} <= set(DEVICES.names())
    assert [DEVICES.lookup(name).kind for name in ("cpu", "cuda", "null")] == ["cpu", "gpu", "gpu"]
    assert (check_device("cpu"), check_device("null")) == ("cpu", "null")
    with pytest.raises(RequestError, match=r"device 'nul': there is no such device; did you mean 'null'\?"):
        check_device("nul")
    opened = open_device("null", 3, 100)
    assert (type(opened), opened.name, opened.room.capacity) == (NullDevice, "null device 3", 100)
    opened.close()


def test_nothing_stands_behind_a_cpu() -> None:
    with pytest.raises(RequestError, match="started on CPUs: run it with --device cuda"):
        open_device("cpu", 0, 100)


def test_only_the_hosts_own_processors_are_cpus() -> None:
    class Fake(HostDevice):
        kind = "cpu"

    with pytest.raises(RequestError, match=r"of kind gpu, got Fake of kind 'cpu'"):
        DEVICES.register("fake", Fake)
    with pytest.raises(RequestError, match="expected a class that completes Device"):
        DEVICES.register("fake", NullDevice(0, 1))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="lacks allocate"):
        DEVICES.register("fake", Device)  # type: ignore[type-abstract]
    assert Cpu.kind == "cpu"


def test_work_on_the_host_device_runs_as_the_body_of_a_task() -> None:
    stream, found = InlineStream(), list[bool]()
    stream.submit(lambda: found.append(inside_task() and not torch.is_grad_enabled())).wait()
    assert found == [True]
    assert not inside_task()
    assert torch.is_grad_enabled()


def test_the_launcher_checks_the_host_without_torch() -> None:
    code = "import sys; from maniple.runtime.devices import registry; registry.check_device('cpu'); "
    code += "print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "False\n"
