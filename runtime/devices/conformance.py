"""The device law: what the runtime relies on of every device, as checks that a device of one's own can be put to.

    law          what is done                                                   what is expected
    order        work is queued on all streams, behind events                   it runs once, in order, after its events
    values       tiles come, are computed with and go, again and again          no copy overtakes what it waits for
    views        a row of bytes is cut, viewed as numbers and permuted          elements lie where torch says
    scratch      tensors are made in bodies and under `binding`                 they lie beside the device's own
    failure      work fails                                                     what follows does not run, all hear why
    telling      ends are heard of by whoever asked                             in order, at once where they are over
    room         more is allocated than the device holds; what was let go of    refused; used again
    taking       work is run to hear of its allocations                         it runs, once
    body         work asks where it runs                                        inside a task, and without autograd

    for law in DEVICE_LAWS:
        law(MyDevice)

What these cannot see is whether a whole program means the same: train one with `--device cpu` and with the device, and
compare the losses.
"""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import torch

from maniple.process.error import RunError
from maniple.runtime.devices.event import DONE, Event, when_all
from maniple.runtime.devices.processor import inside_task, run_as_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.devices.device import Device

__all__: list[str] = []

PATIENCE_S = 30.0
"""How long a law waits for the end of work that takes no time."""
_CAPACITY = 1 << 20
_COUNT = 256
_ROUNDS = 24


def check_device_laws(make: Callable[[int, int], Device]) -> None:
    """Put a device to every law.

    Args:
        make: its class, or what opens one by number and capacity.

    Raises:
        RunError: it breaks one; says which, what was expected, and what was found.
    """
    for law in DEVICE_LAWS:
        law(make)


def order_law(make: Callable[[int, int], Device]) -> None:
    """Work runs in the order of its stream and after its events, and its times say so."""
    with closing(make(0, _CAPACITY)) as device:
        ran: list[object] = []
        device.timed = True
        first = device.arrivals.submit(lambda: ran.append("arrival"))
        tasks = [device.tasks.submit(_noting(ran, number), [first]) for number in range(_ROUNDS)]
        last = device.departures.submit(lambda: ran.append("departure"), tasks)
        _finish(device, last)
        _expect(device, "order", ["arrival", *range(_ROUNDS), "departure"], ran)
        ends = [first, *tasks, last]
        _expect(device, "order: done", [True] * len(ends), [end.done for end in ends])
        kept = all(one.begun_ns <= one.ended_ns for one in ends) and tasks[-1].ended_ns <= last.ended_ns
        _expect(device, "order: times in their order", True, kept)


def values_law(make: Callable[[int, int], Device]) -> None:
    """No copy and no task overtakes what it waits for, though storage is used again and again."""
    with closing(make(0, _CAPACITY)) as device:
        storage = device.allocate((_COUNT,), torch.float32)
        free: Event = DONE
        went: list[tuple[Event, torch.Tensor, torch.Tensor]] = []
        for number in range(_ROUNDS):
            values = torch.arange(_COUNT, dtype=torch.float32, device="cpu") + number
            row, back = device.stage(_COUNT, torch.float32), device.stage(_COUNT, torch.float32)
            row.copy_(values)
            came = device.arrivals.submit(_copying(storage, row), [free])
            done = device.tasks.submit(lambda: storage.mul_(2), [came])
            free = device.departures.submit(_copying(back, storage), [done])
            went.append((free, back, values * 2))
        for end, back, wanted in went:
            _finish(device, end)
            _expect(device, "values", wanted.tolist(), back.tolist())


def views_law(make: Callable[[int, int], Device]) -> None:
    """Bytes are storage for elements of every kind, and views of them lie where torch says."""
    with closing(make(0, _CAPACITY)) as device:
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int8):
            made = device.allocate((24 * dtype.itemsize,), torch.int8)
            _expect(device, "views: a contiguous tensor", True, made.is_contiguous())
            storage = made.view(dtype).reshape(4, 6)
            part = storage[1:3].permute(1, 0)
            _expect(device, "views: shape and strides", ((6, 2), (1, 6)), (tuple(part.shape), tuple(part.stride())))
            host = torch.arange(24, dtype=dtype, device="cpu").reshape(4, 6)
            row, back = device.stage(24, dtype), device.stage(12, dtype)
            row.copy_(host.reshape(-1))
            came = device.arrivals.submit(_copying(storage, row.view(4, 6)))
            _finish(device, device.departures.submit(_copying(back.view(6, 2), part), [came]))
            _expect(device, f"views of {dtype}", host[1:3].permute(1, 0).reshape(-1).tolist(), back.tolist())


def scratch_law(make: Callable[[int, int], Device]) -> None:
    """What bodies make, and what is made under `binding`, is computed with beside the device's own."""
    with closing(make(0, _CAPACITY)) as device:
        storage, back = device.allocate((_COUNT,), torch.float32), device.stage(_COUNT, torch.float32)
        with device.binding():
            made = torch.ones(_COUNT)

        def body() -> None:
            storage.copy_(torch.arange(_COUNT, dtype=torch.float32))
            storage.add_(made)

        _finish(device, device.departures.submit(_copying(back, storage), [device.tasks.submit(body)]))
        _expect(device, "scratch", [1.0 + number for number in range(_COUNT)], back.tolist())


def failure_law(make: Callable[[int, int], Device]) -> None:
    """What follows a failure does not run, on its stream or behind its events, and whoever waits hears of it."""
    with closing(make(0, _CAPACITY)) as device:
        failure, ran = ValueError("no good"), list[object]()

        def broken() -> None:
            raise failure

        first = device.tasks.submit(broken)
        behind = device.tasks.submit(_noting(ran, "behind it"))
        after = device.arrivals.submit(_noting(ran, "after it"), [first])
        for end in (first, behind, after):
            heard = _heard(device, end)
            _expect(device, "failure: what is told", failure, heard)
            try:
                end.wait()
            except ValueError as error:
                heard = error
            else:
                heard = None
            _expect(device, "failure: what waiting raises", failure, heard)
        _expect(device, "failure: what ran", [], ran)


def telling_law(make: Callable[[int, int], Device]) -> None:
    """Ends are told in the order of their stream, and at once to whoever asks later."""
    with closing(make(0, _CAPACITY)) as device:
        told: list[object] = []
        ends = [device.tasks.submit(lambda: None) for _ in range(_ROUNDS)]
        for number, end in enumerate(ends):
            end.then(_hearing(told, number))
        _finish(device, ends[-1])
        late: list[object] = []
        when_all(ends, late.append)
        _expect(device, "telling: who asked while work was under way", list(range(_ROUNDS)), told)
        _expect(device, "telling: who asked afterwards", [None], late)


def room_law(make: Callable[[int, int], Device]) -> None:
    """A device holds what it was opened for, refuses more, and uses again what was let go of."""
    with closing(make(0, 4096)) as device:
        refused = False
        try:
            device.allocate((4097,), torch.int8)
        except RunError:
            refused = True
        _expect(device, "room: 4097 bytes of 4096 are refused", True, refused)
        for _ in range(3):
            storage = device.allocate((1024,), torch.float32)
            _finish(device, device.tasks.submit(_filling(storage)))
            del storage


def taking_law(make: Callable[[int, int], Device]) -> None:
    """Work that is run to hear of its allocations runs once, and what is heard of it is no less than nothing."""
    with closing(make(0, _CAPACITY)) as device:
        ran: list[object] = []
        with device.binding():
            found = device.watch(_noting(ran, "ran"))
        _expect(device, "taking: what ran", ["ran"], ran)
        if found is not None and not found.peak >= found.kept >= 0:
            raise _broken(device, "taking", "a peak of at least what is kept", found)


def body_law(make: Callable[[int, int], Device]) -> None:
    """Work runs as the body of a task, on whatever thread: what it launches is refused, and autograd notes nothing."""
    with closing(make(0, _CAPACITY)) as device:
        for name, stream in (("tasks", device.tasks), ("arrivals", device.arrivals)):
            found: list[bool] = []
            with run_as_task():  # as the thread of a processor is
                end = stream.submit(partial(_look, found))
            _finish(device, end)
            _expect(device, f"body: inside a task, and without autograd, on {name}", [True, True], found)


DEVICE_LAWS: tuple[Callable[[Callable[[int, int], Device]], None], ...] = (
    order_law,
    values_law,
    views_law,
    scratch_law,
    failure_law,
    telling_law,
    room_law,
    taking_law,
    body_law,
)
"""All of them; each takes what opens a device, and raises `RunError` where the device breaks it."""


def _look(found: list[bool]) -> None:
    found += inside_task(), not torch.is_grad_enabled()


def _noting(ran: list[object], what: object) -> Callable[[], object]:
    return lambda: ran.append(what)


def _hearing(told: list[object], number: int) -> Callable[[BaseException | None], object]:
    return lambda error: told.append(number if error is None else error)


def _copying(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _filling(storage: torch.Tensor) -> Callable[[], object]:
    return lambda: storage.fill_(1)


def _heard(device: Device, end: Event) -> BaseException | None:
    """Give what is told of an end; not by `wait`, which in a broken device may have no end."""
    over, told = threading.Event(), list[BaseException | None]()

    def hear(error: BaseException | None) -> None:
        told.append(error)
        over.set()

    end.then(hear)
    if not over.wait(PATIENCE_S):
        raise _broken(device, "ends", f"the end of work within {PATIENCE_S:.0f} s", "none")
    return told[0]


def _finish(device: Device, end: Event) -> None:
    failed = _heard(device, end)
    if failed is not None:
        raise RunError(f"{device.name} breaks the device law: work failed ({failed})") from failed
    end.wait()


def _expect(device: Device, law: str, wanted: object, found: object) -> None:
    if found != wanted:
        raise _broken(device, law, wanted, found)


def _broken(device: Device, law: str, wanted: object, found: object) -> RunError:
    shown = [text if len(text) <= 200 else f"{text[:197]}..." for text in (str(wanted), str(found))]
    return RunError(
        f"{device.name} breaks the device law ({law}): expected {shown[0]}, got {shown[1]}; see the table of "
        "maniple.runtime.devices.conformance"
    )
