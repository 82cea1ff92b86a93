"""The devices by name, for ``--device``: built-ins and those of other packages come through one door."""

from __future__ import annotations

from maniple.process.error import RequestError
from maniple.process.registry import Registry, class_check
from maniple.runtime.devices.device import Device

__all__: list[str] = []

CPU = "cpu"
"""The name of the host's own processors, behind which there is no device."""

_completes = class_check("device", Device, "see docs/extending.md, A device")  # type: ignore[type-abstract]


def _check(name: str, found: object) -> type[Device]:
    device = _completes(name, found)
    kind = "cpu" if name == CPU else "gpu"
    if device.kind != kind:
        raise RequestError(
            f"device {name!r}: expected one that stands behind processors of kind {kind}, got {device.__name__} of "
            f"kind {device.kind!r}; the kind cpu is that of the host's own processors alone"
        )
    return device


DEVICES: Registry[type[Device]] = Registry("device", _check)
"""What may stand behind a processor: a CPU, or behind one of kind ``gpu`` a device."""


def check_device(name: str) -> str:
    """Give the name of the device that a launch asks for.

    Raises:
        RequestError: there is none of the name, or none here.
    """
    DEVICES.lookup(name).check()
    return name


def open_device(name: str, local: int, capacity: int) -> Device:
    """Open what stands behind a processor of kind `gpu`.

    Args:
        name: of the device.
        local: the number of the processor among those of its host; those beyond its devices share them in turn.
        capacity: bytes that its memory may hold.

    Raises:
        RequestError: there is no such device.
    """
    found = DEVICES.lookup(name)
    if found.kind != "gpu":
        raise RequestError(
            "the machine has processors of kind gpu, and this program was started on CPUs: run it with --device cuda "
            "where there are GPUs, or with --device null to try it without any"
        )
    return found(local, capacity)
