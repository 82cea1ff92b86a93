"""The doctor: what this installation and this host offer to Maniple, and what is missing."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass
from importlib import metadata, util
from typing import final

__all__: list[str] = []

REQUIRED = ("torch", "numba", "numpy", "pyzmq", "msgpack", "networkx", "safetensors", "click", "rich")
OPTIONAL = {"matplotlib": "plot", "scikit-learn": "examples"}


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: what.
        value: how it is.
        ok: whether Maniple can work with it.
        next: what to do about it; empty where there is nothing to do.
    """

    name: str
    value: str
    ok: bool = True
    next: str = ""


def examine() -> tuple[Finding, ...]:
    """Look at versions, processors, memory, shared memory, ports and threads."""
    return (*_versions(), *_processors(), *_memories(), _port(), _threads())


def text(findings: tuple[Finding, ...]) -> str:
    """Print findings as a table, with what is missing and the next step at the end."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"{finding.name:{width}}  {finding.value}" for finding in findings]
    missing = [finding for finding in findings if not finding.ok]
    advice = [finding for finding in findings if finding.ok and finding.next]
    lines += ["", f"missing: {len(missing)}" if missing else "nothing is missing"]
    lines += [f"  {finding.name}: {finding.value}; {finding.next}" for finding in missing]
    lines += [f"  {finding.name}: {finding.next}" for finding in advice]
    return "\n".join(lines)


def _versions() -> list[Finding]:
    system = sys.platform
    found = [
        Finding("python", platform.python_version()),
        Finding(
            "system",
            f"{platform.system()} {platform.release()} {platform.machine()}",
            ok=system != "win32",
            next="run Maniple in WSL2" if system == "win32" else "",
        ),
        _version("maniple", "pip install ."),
    ]
    found += [_version(name, f"pip install {name}") for name in REQUIRED]
    for name, extra in OPTIONAL.items():
        finding = _version(name, "")
        hint = "" if finding.ok else f"optional; pip install '.[{extra}]' brings it"
        found.append(Finding(name, finding.value, next=hint))
    return found


def _version(name: str, following: str) -> Finding:
    try:
        return Finding(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "not installed", ok=False, next=following)


def _processors() -> list[Finding]:
    from maniple.process.inventory import available_cores, take_inventory

    usable, present = available_cores(), os.cpu_count() or 1
    found = [Finding("cores", f"{usable} usable of {present}")]
    return [*found, *_gpus()] if take_inventory().has_gpu else found


def _gpus() -> list[Finding]:
    """What torch and numba say of the NVIDIA devices that seem to be here."""
    import torch

    from maniple.process.error import RequestError
    from maniple.runtime.devices.cuda_device import check_cuda

    found = []
    # torch counts devices whose driver it cannot use, too.
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        seen = torch.cuda.get_device_properties(number)
        found.append(Finding("gpu", f"{seen.name}, {_size(seen.total_memory)}, capability {seen.major}.{seen.minor}"))
    try:
        check_cuda()
    except RequestError as error:
        found.append(Finding("gpu", "not usable", ok=False, next=str(error)))
    return found


def _memories() -> list[Finding]:
    from maniple.process.inventory import take_inventory

    found = [Finding("memory", _size(take_inventory().memory_bytes))]
    from maniple.process.error import RequestError
    from maniple.runtime.transports.shared_memory import SharedMemory, shared_files

    name, following = "shared memory", "tiles between ranks of one host need maniple run --transport zmq"
    try:
        with shared_files(1) as files:
            memory = SharedMemory(0, dict(enumerate(files)))
            memory.arena.reserve([1])
    except (OSError, RequestError) as error:
        return [*found, Finding(name, f"not to be had: {error}", next=following)]
    kind = "memory files, which /dev/shm does not bound" if sys.platform == "linux" else "temporary files"
    found.append(Finding(name, f"carries tiles between ranks of one host ({kind})"))
    return found


def _port() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return Finding("ports", f"127.0.0.1 binds (tried {server.getsockname()[1]})")
    except OSError as error:
        following = "allow this user to bind ports of 127.0.0.1"
        return Finding("ports", f"127.0.0.1 does not bind: {error}", ok=False, next=following)


def _threads() -> Finding:
    if util.find_spec("torch") is None:
        return Finding("torch threads", "unknown, torch is not installed", ok=False, next="pip install torch")
    import torch

    return Finding("torch threads", str(torch.get_num_threads()))


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
