"""The watch over bodies hears of everything in its table, and of nothing that only puts work into a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from maniple.process.error import RunError
from maniple.runtime.devices.null_device import NullDevice, NullTensor, StrictNullDevice

KEPT: list[object] = []


@pytest.fixture
def strict() -> Iterator[NullDevice]:
    KEPT.clear()
    made = StrictNullDevice(0, 1 << 20, 0.0)
    yield made
    made.close()


HOST = torch.arange(4.0)

REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda x: x[0].item(), r"\.item\(\) brings values"),
    "bool": (lambda x: bool((x > 0).any()), r"bool\(\) brings values"),
    "float": (lambda x: float(x.sum()), r"float\(\) brings values"),
    "tolist": (lambda x: x.tolist(), r"\.tolist\(\) brings values"),
    "numpy": (lambda x: x.numpy(), r"\.numpy\(\) brings values"),
    "cpu": (lambda x: x.cpu(), r"\.cpu\(\) brings values"),
    "nonzero": (lambda x: x.nonzero(), r"\.nonzero\(\) brings values"),
    "where": (lambda x: torch.where(x > 0), "shape that torch.nonzero gives depends on values"),
    "unique": (lambda x: x.unique(), "shape that torch._?unique.* gives depends on values"),
    "a mask": (lambda x: x[x > 0], "a mask as index"),
    "a mask to write": (lambda x: x.__setitem__(x > 0, 0.0), "a mask as index"),
    "equal": (lambda x: torch.equal(x, x), "torch reads a value"),
    "a blocking copy here": (lambda x: x.copy_(HOST), "copy_ between host and device without non_blocking"),
    "a blocking copy there": (lambda x: HOST.clone().copy_(x), "copy_ between host and device without non_blocking"),
    "values of the host": (lambda x: x.add_(torch.tensor([1.0, 2.0, 3.0, 4.0])), r"torch.tensor\(\) puts values"),
    "torch's dice": (lambda x: x.copy_(torch.rand(4)), "draws of torch's own random numbers"),
    "dropout": (lambda x: torch.dropout(x, 0.5, train=True), "draws of torch's own random numbers"),
    "what is kept": (lambda x: KEPT.append(x * 2), "it keeps 1 tensors that it made"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_body_that_stops_the_host_fails_by_name(strict: NullDevice, name: str) -> None:
    body, message = REFUSED[name]
    x = strict.allocate((4,), torch.float32)
    strict.tasks.submit(lambda: x.fill_(1.0))
    with pytest.raises(RunError, match=f"must not do that: .*{message}"):
        strict.tasks.submit(lambda: body(x)).wait()


ALLOWED: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: x.copy_((x * 2).exp().sum(0, keepdim=True).expand(4)),
    "views": lambda x: x[1:].mul_(2),
    "rows by number": lambda x: x.copy_(x[torch.arange(4)]),
    "an index": lambda x: x.index_add_(0, torch.arange(4), x.clone()),
    "a choice": lambda x: x.copy_(torch.where(x > 0, x, 0.0)),
    "what is made on it": lambda x: x.add_(torch.ones(4)).add_(torch.arange(4)),
    "a copy that nobody waits for": lambda x: x.copy_(HOST, non_blocking=True),
    "a copy to the host": lambda x: torch.empty(4, device="cpu").copy_(x, non_blocking=True),
    "a gradient": lambda x: x.copy_(torch.autograd.grad((leaf := x.data.requires_grad_()).sum(), leaf)[0]),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_body_that_only_puts_work_into_its_stream_is_left_alone(strict: NullDevice, name: str) -> None:
    x = strict.allocate((4,), torch.float32)
    strict.tasks.submit(lambda: x.fill_(1.0))

    def body() -> None:
        with torch.enable_grad():
            ALLOWED[name](x)

    strict.tasks.submit(body).wait()


def test_a_body_may_not_take_memory_of_the_device(strict: NullDevice) -> None:
    with pytest.raises(RunError, match="takes memory of the device's own allocator"):
        strict.tasks.submit(lambda: strict.allocate((4,), torch.float32)).wait()
    assert isinstance(strict.allocate((4,), torch.float32), NullTensor)


def test_a_null_device_that_is_not_strict_runs_them_all() -> None:
    device = NullDevice(0, 1 << 20, 0.0)
    x = device.allocate((4,), torch.float32)
    found: list[object] = []
    device.tasks.submit(lambda: found.append(float(x.fill_(1.0).sum()))).wait()
    assert found == [4.0]
    device.close()
