"""Measured devices: what measurements are of, a CPU or a GPU, and the software that runs on it."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import maniple.operators
from maniple.process.error import RequestError
from maniple.runtime.devices.registry import CPU, DEVICES

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


def name_device(kind: str = CPU) -> str:
    """Name what is measured.

    Args:
        kind: a device of the registry: of a GPU its first, by its driver's word.
    """
    if kind == CPU:
        return _processor()
    found = DEVICES.lookup(kind)
    return next(iter(found.names()), found.__name__)


@cache
def _processor() -> str:
    """Name this computer's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor() or platform.machine())


@cache
def name_software(kind: str = CPU) -> str:
    """Name the versions that kernels depend on, and the contents of the folders that hold them and what times them.

    Args:
        kind: a device of the registry.
    """
    digest = hashlib.blake2b(digest_size=8)
    for folder in (Path(maniple.operators.__path__[0]), Path(__file__).parent):
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    named = " ".join(f"{name} {version(name)}" for name in ("maniple", "numba", "torch"))
    if kind != CPU:
        import torch

        named = f"{named} {kind} {torch.version.cuda}"
    return f"{named} operators {digest.hexdigest()}"


def measured_kind(machine: Machine) -> str:
    """Give the device on which the tasks of a machine are measured: the launch's, or for GPUs CUDA.

    Raises:
        RequestError: the machine has processors of both kinds, or GPUs, and there are none here.
    """
    kinds = {processor.kind for processor in machine.processors}
    if len(kinds) > 1:
        raise RequestError(
            f"costs 'measured': {machine.name} has CPUs and GPUs, and one kind is measured at a time; use 'analytic'"
        )
    if kinds == {CPU}:
        return CPU
    from maniple.process import environment

    launch = environment.read()
    kind = "cuda" if launch is None or launch.device == CPU else launch.device
    try:
        DEVICES.lookup(kind).check()
    except RequestError as error:
        raise RequestError(
            f"costs 'measured': {machine.name} has processors of kind gpu, and their tasks are measured where there is "
            f"one ({error}); use 'analytic', or a file that was measured there"
        ) from error
    return kind
