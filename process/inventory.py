"""What one rank finds on its host: the only place where planning looks at the system."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RunError
from maniple.process.file_entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@final
@dataclass(frozen=True, slots=True)
class Inventory:
    """The facts about one host that a machine description needs.

    Args:
        host: the host's name.
        cores: how many cores this process may use.
        memory_bytes: bytes of main memory that processes of this host may use.
        has_gpu: whether an NVIDIA device seems to be there.
        gpu_bytes: bytes of memory of each device, where the program was started on devices that say it.
        gpu_names: what its driver calls each.
        gpu_properties: what each says of its rates; see ``Device.properties``.
    """

    host: str
    cores: int
    memory_bytes: int
    has_gpu: bool
    gpu_bytes: tuple[int, ...] = ()
    gpu_names: tuple[str, ...] = ()
    gpu_properties: tuple[tuple[int, ...], ...] = ()

    def to_bytes(self) -> bytes:
        """The facts as bytes that a rank sends to the others."""
        return json.dumps([getattr(self, field.name) for field in fields(self)]).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """The facts that another rank sent.

        Raises:
            RunError: these are no such bytes.
        """
        try:
            document = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise RunError(f"machine: a rank sent facts about its host that are not JSON ({error})") from error
        root = Entry("facts about a rank's host", "", document)
        entries = root.elements()
        if len(entries) != len(fields(cls)):
            raise RunError(f"machine: expected {len(fields(cls))} facts about a rank's host, got {len(entries)}")
        host, cores, memory_bytes, has_gpu, gpus, names, properties = entries
        sizes = tuple(size.integer(1) for size in gpus.elements())
        own = tuple(name.string() for name in names.elements())
        told = tuple(tuple(number.integer(0) for number in each.elements()) for each in properties.elements())
        if any(len(each) != 6 for each in told) or {len(own), len(told)} - {0, len(sizes)}:
            raise RunError(
                f"machine: a rank told of {len(sizes)} devices by {len(own)} names and {len(told)} properties"
            )
        return cls(host.string(), cores.integer(1), memory_bytes.integer(0), has_gpu.boolean(), sizes, own, told)


def take_inventory() -> Inventory:
    """The facts about the host of this process, read from the system now."""
    return Inventory(
        host=platform.node() or "localhost",
        cores=available_cores(),
        memory_bytes=_memory_bytes(),
        has_gpu=_has_gpu(),
    )


_given: list[tuple[int, ...]] = []  # the cores that this process could choose from before it was bound


def core_numbers() -> tuple[int, ...]:
    """The cores that this process may run on, as the system numbers them; none where it does not say."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return _given[0] if _given else () if affinity is None else tuple(sorted(affinity(0)))


def available_cores() -> int:
    """How many cores this process may run on, bound to some of them or not."""
    return len(core_numbers()) or os.cpu_count() or 1


def bind_to(cores: tuple[int, ...]) -> None:
    """Keep this thread, and those that it starts from now on, on some cores.

    Raises:
        RunError: the system refuses.
    """
    _given[:] = [core_numbers()]
    try:
        os.sched_setaffinity(0, cores)
    except (AttributeError, OSError) as error:
        raise RunError(f"cannot keep to cores {cores} ({error}); run with --no-bind") from error


def spare_cores() -> list[int | None]:
    """The cores beside this thread's: those that it is not bound to; None for each where it is bound to none."""
    every = core_numbers()
    free = sorted(set(every) - os.sched_getaffinity(0)) if every else []
    return [*free] if free else [None] * (available_cores() - 1)


def move_to(core: int) -> None:
    """Keep this thread on a core that `spare_cores` gave."""
    os.sched_setaffinity(0, {core})


@cache
def announce(text: str) -> None:
    """Say something on standard error, once per process and text."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the one place where planning speaks


def _memory_bytes() -> int:
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A container may use less than the host has; "max" and a missing file both mean that there is no such limit.
    with contextlib.suppress(OSError, ValueError):
        return min(installed, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    return installed


def _has_gpu() -> bool:
    if _NVIDIA_DRIVER.exists():
        return True
    # Asked only where the program has paid for the import already: planning must not import torch.
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())
