"""Systems that run task graphs: what the benchmark asks of each, and which there are."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from maniple.process.error import RequestError, RunError, nearest

if TYPE_CHECKING:
    from types import TracebackType

    from taskbench.graph import TaskGraph

NODES = 2
"""Nodes of one core each: as many processes as a system may compute in."""

# Each system's class, and the package that it needs beside Maniple's own.
SYSTEMS: dict[str, tuple[str, str | None]] = {
    "maniple": ("taskbench.regions:Traced", None),
    "maniple-replayed": ("taskbench.regions:Replayed", None),
    "maniple-untraced": ("taskbench.regions:Untraced", None),
    "ray": ("taskbench.ray_systems:RayActors", "ray"),
    "ray-compiled": ("taskbench.ray_systems:RayCompiled", "ray"),
    "dask": ("taskbench.dask_systems:DaskDistributed", "distributed"),
    "dask-threads": ("taskbench.dask_systems:DaskThreads", "dask"),
    "parsl": ("taskbench.parsl_system:ParslProcesses", "parsl"),
    "static": ("taskbench.static:Static", None),
}


class System(AbstractContextManager["System"], ABC):
    """A system that is up, with its processes; entered and left once."""

    @abstractmethod
    def prepare(self, graph: TaskGraph) -> None:
        """Get ready to run a graph: whatever a program would do once, outside its loop."""

    @abstractmethod
    def run(self, iterations: int) -> float:
        """Run the graph that was prepared last.

        Args:
            iterations: of each task's kernel.

        Returns:
            Seconds from the first task's launch to the last one's end.

        Raises:
            RunError: a task found an input that is not what it must read.
        """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its processes."""


def make(name: str) -> System:
    """Import one system; peers are imported here and nowhere else.

    Raises:
        RequestError: there is no such system, or its package is not installed.
    """
    if name not in SYSTEMS:
        raise RequestError(f"there is no system {name!r}{nearest(name, SYSTEMS)}")
    home, package = SYSTEMS[name]
    module, _, attribute = home.partition(":")
    try:
        if package is not None:
            import_module(package)
    except ImportError as error:
        raise RequestError(
            f"system {name!r} needs the package {package}, which cannot be imported ({error}); "
            "next: pip install 'maniple[bench]'"
        ) from error
    made: System = getattr(import_module(module), attribute)()
    return made


class Worker:
    """A process that answers one line of JSON with one line of JSON.

    Args:
        command: its program and arguments.
        variables: its whole environment.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=dict(variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, request: Mapping[str, object]) -> None:
        """Ask."""
        self._pipe(self._process.stdin).write(json.dumps(request) + "\n")
        self._pipe(self._process.stdin).flush()

    def receive(self) -> dict[str, Any]:
        """Give the answer.

        Raises:
            RunError: the process ended, or says that the run failed.
        """
        while (line := self._pipe(self._process.stdout).readline()) and not line.startswith("{"):
            sys.stderr.write(line)
        if not line:
            raise RunError(f"a worker process ended with status {self._process.wait()}; see what it wrote above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunError(answer["error"])
        return answer

    def __enter__(self) -> Self:
        """Give the worker."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let it end, having no more to read; after an error, in which it may wait for others for ever, make it."""
        if error is not None:
            self._process.terminate()
        self._process.__exit__(kind, error, trace)  # closes the pipes, and waits

    @staticmethod
    def _pipe(pipe: Any) -> Any:
        if pipe is None:
            raise TypeError("the process was started without pipes")
        return pipe
