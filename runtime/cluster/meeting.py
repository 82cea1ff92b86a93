"""The meeting of a run's hosts: where they meet, which host this is, and what all of them must agree on."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []

PORT = 29400
"""Where hosts meet if nothing else is said."""


@final
@dataclass(frozen=True, slots=True)
class Meeting:
    """One host's part in a run of several.

    Args:
        node: which node this host is; None where it starts no ranks.
        head: address of the host of the coordinator.
        port: of its socket; None lets the system choose.
        address: of this host, under which the others reach it.
        key: source of the run's key (`key`); None for the default file.
    """

    node: int | None
    head: str
    port: int | None
    address: str
    key: str | None = field(default=None)

    def __post_init__(self) -> None:
        """Refuse a node below 0."""
        if self.node is not None and self.node < 0:
            raise RequestError(f"--node-rank: expected 0 or more, got {self.node}")

    @property
    def endpoint(self) -> str:
        """Where the hosts meet, as `HOST:PORT`."""
        return f"{self.head}:{self.port}"


def host_name() -> str:
    """Give the name of this host."""
    return platform.node() or "localhost"


def terms(request: LaunchRequest) -> tuple[str, ...]:
    """Give what must be the same on all hosts: a word each, then its value.

    Args:
        request: what this host was asked to start; nothing must be the same where hosts are only looked at.
    """
    if request.survey:
        return ()
    options = {
        "--processors": request.processors,
        "--cores": request.cores,
        "--mapper": request.mapper,
        "--memory": request.memory_bytes,
        "--compile": request.compiles,
        "--deterministic": request.deterministic,
        "--transport": request.transport,
        "--encrypt-tiles": request.encrypt_tiles,
        "--verify-tiles": request.verify_tiles,
        "--device": request.device,
        "--hang-timeout": request.hang_timeout_s,
        "program": " ".join(("-m", *request.target[1:]) if request.target[0] == "-m" else ("", *request.target[1:])),
        "script": _digest(request.target[0]),
        "machine": "none" if request.machine is None else _digest(str(request.machine)),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    versions = {name: _version(name) for name in ("maniple", "torch", "numba", "pyzmq")}
    return tuple(f"{word} {value}" for word, value in (options | versions).items())


def _digest(path: str) -> str:
    """Give what stands for the content of a file; nothing for a module, which is a package's."""
    file = Path(path)
    if not file.is_file():
        return "none"
    return blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
