"""Peers: processes that run the body of a task on other cores while it is timed here, as all processors do in a step.

How much longer a body takes where its like runs beside it is the body's own: by what the two share of memory, of the
last cache, or of a core with two threads. So what runs beside it is the same body.

    this process                        a peer
    forks                               keeps to a core of its own
    binds the body, runs it             binds it to tensors of its own, runs it
    waits for all peers                 says that it has run, and goes on running it
    times it
    ends the peers                      is gone

A peer is forked: what a body is this program has bound, functions of a user's among it, and no code is sent anywhere.
Of the threads of a process that forks one lives on, so a peer runs bodies of one thread only. It collects no garbage,
since what that would let go of is this process's.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, NoReturn, Self, final

from maniple.process.inventory import announce, move_to
from maniple.runtime.cluster.parent_death import tie_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

__all__: list[str] = []

MOST_PEERS = 3
"""More would take longer to start than they add, and as much memory each as what is timed."""
PATIENCE_S, TIMES = 10.0, 10
"""How long a peer may take to bind and run a body: so many seconds, and so many times what it took here."""


@final
class Peers:
    """Peers on some cores, from the beginning of a context to its end.

    Args:
        cores: one for each peer, by number; None leaves the place to the system.
        bind: binds the body as often as it has tensors to take turns with, and runs each once.
    """

    def __init__(self, cores: Sequence[int | None], bind: Callable[[], Sequence[Callable[[], object]]]) -> None:
        self._cores, self._bind = cores, bind
        self._processes: dict[int, int] = {}  # by the pipe that each says on that it runs
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        """Fork; an interrupt may come meanwhile."""
        try:
            for core in self._cores:
                self._fork(core)
        except BaseException:
            self._end(tuple(self._processes))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them all."""
        self._end(tuple(self._processes))

    @property
    def processes(self) -> tuple[int, ...]:
        """Those that are there, by the system's numbers."""
        return tuple(self._processes.values())

    def wait(self) -> None:
        """Wait until all run the body; one that does not is ended, which is said."""
        now = time.monotonic()
        until = now + PATIENCE_S + TIMES * (now - self._began_s)
        failed = [pipe for pipe in self._processes if not _runs(pipe, until)]
        self._end(failed)
        if failed or len(self._processes) < len(self._cores):
            announce(
                "costs: tasks were to be timed while their like run on other cores, and these processes could not be "
                "started, or ended, or took too long; what is measured now is of cores with less to do"
            )

    def _fork(self, core: int | None) -> None:
        """Start a peer on a core, where the system lets it."""
        hears, says = os.pipe()
        parent = os.getpid()
        with suppress(OSError):  # too many processes; `wait` says that there is one less
            process = os.fork()
            if process == 0:
                _be_peer(parent, says, core, self._bind)
            self._processes[hears] = process
        os.close(says)
        if hears not in self._processes:
            os.close(hears)

    def _end(self, pipes: Sequence[int]) -> None:
        for pipe in pipes:
            process = self._processes.pop(pipe)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(pipe)


def _runs(pipe: int, until: float) -> bool:
    """Whether a peer says by a time of the clock that it has run the body."""
    watched = select.poll()  # which takes descriptors of any number
    watched.register(pipe, select.POLLIN)
    ready = watched.poll(1e3 * max(0.0, until - time.monotonic()))
    return bool(ready) and os.read(pipe, 1) == b"."


def _be_peer(parent: int, says: int, core: int | None, bind: Callable[[], Sequence[Callable[[], object]]]) -> NoReturn:
    """Run the body until this process is ended; what it raises this program's own body raises, too."""
    try:
        gc.disable()
        tie_to(parent)
        if core is not None:
            move_to(core)
        bodies = bind()
        os.write(says, b".")
        for body in cycle(bodies):
            body()
    finally:
        os._exit(1)
