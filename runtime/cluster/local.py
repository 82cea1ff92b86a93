"""The local launcher: ranks are processes of this host, and children of the launcher's."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.cluster import parent_death
from maniple.runtime.cluster.children.child_process import LocalProcess
from maniple.runtime.cluster.children.nursery import Nursery, suits
from maniple.runtime.cluster.launcher import Launcher, LaunchRequest, RankCommand, RankProcess, Streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__: list[str] = []


@final
class LocalLauncher(Launcher):
    """Starts ranks as children, which on Linux the kernel ends when the launcher ends, however that ends.

    Where several may share what they import they are forked from one process (`nursery`); else each is an interpreter
    of its own.

    Raises:
        RequestError: it was told something.
    """

    same_host = True

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if argument:
            raise RequestError(f"launcher 'local' takes no argument, got {argument!r}; write --launcher local")
        self._imports: str | None = None
        self._nursery: Nursery | None = None

    @contextmanager
    def preparing(self, request: LaunchRequest, ranks: int) -> Iterator[None]:
        """See `Launcher.preparing`."""
        self._imports = request.imports if suits(request, ranks) else None
        try:
            yield
        finally:
            if self._nursery is not None:
                self._nursery.complete()
            self._imports, self._nursery = None, None

    def start(self, command: RankCommand, streams: Streams) -> RankProcess:
        """See `Launcher.start`."""
        if self._imports is None:
            argv = _tie_to_launcher(command.argv)
            return LocalProcess(argv, streams, command.all_variables(), command.inherited)
        if self._nursery is None:
            self._nursery = Nursery(command, streams, self._imports)
        return self._nursery.bear(command, streams)


def _tie_to_launcher(argv: Sequence[str]) -> Sequence[str]:
    if not sys.platform.startswith("linux"):
        return argv  # ranks that joined notice that the launcher is gone
    return [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *argv]
