"""The agent of a host: starts the ranks of one host, owns what they share, sees their ends and ends them.

It knows of no coordinator: what it is told to do comes from the supervisor of its own process, or over a socket
(`agent_service`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, Self, final

from maniple.runtime.cluster.launcher import Streams
from maniple.runtime.cluster.log_folder import STACKS
from maniple.runtime.cluster.terminal.tee import Tee

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from maniple.process.clock import Clock
    from maniple.runtime.cluster.launcher import Launcher, RankCommand, RankProcess

__all__: list[str] = []

# The last words of a process arrive after its end is seen; this is how long they may take.
ECHO_S = 0.15
# For the output of rank 0 to be shown in full, where something that it started keeps its streams open.
DRAIN_S = 2.0
# A process that was killed is gone in milliseconds, if not on a host that nothing is heard of any more.
END_S = 30.0


@final
class Agent:
    """The ranks of one host; a context that leaves none of them behind.

    Args:
        clock: tells how long ago a process ended.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self.processes: dict[int, RankProcess] = {}
        self._clock = clock
        self._outputs: list[Tee] = []
        self._doors: list[Callable[[], object]] = []
        self._noticed: dict[int, float] = {}
        self._told: set[int] = set()
        self._files = ExitStack()
        self._logs: dict[int, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._files, ExitStack() as ends:  # all are ended, even if one cannot be
            for output in reversed(self._outputs):
                ends.callback(output.finish, DRAIN_S)
            for rank in self.processes:
                ends.callback(self._end, rank)

    def spawn(self, launcher: Launcher, command: RankCommand, log: Path, *, shown: bool) -> None:
        """Start a rank.

        Args:
            launcher: starts it.
            command: what it is told to start.
            log: where its output goes.
            shown: whether its output goes to this process's streams too, and this one's input to it.

        Raises:
            RunError: it cannot be started.
        """
        file = self._logs[command.rank] = self._files.enter_context(log.open("ab", buffering=0))
        if shown:
            tees = [Tee(target, file) for target in (1, 2)]
            streams = Streams(None, tees[0].child, tees[1].child)
        else:
            tees, streams = [], Streams(subprocess.DEVNULL, file.fileno(), file.fileno())
        self.processes[command.rank] = launcher.start(command, streams)
        for tee in tees:
            tee.start()
        self._outputs += tees

    def adopt(self, rank: int, process: RankProcess) -> None:
        """Take on a rank that another program started.

        Args:
            rank: which.
            process: stands for it.
        """
        self.processes[rank] = process

    def watch_door(self, look: Callable[[], object], close: Callable[[], object]) -> None:
        """Have something looked after whenever ends are: where ranks come to that others start.

        Args:
            look: does it, and does not wait.
            close: closes it, with this context.
        """
        self._doors.append(look)
        self._files.callback(close)

    def exits(self) -> list[tuple[int, int]]:
        """Give the ranks whose processes ended since this was last asked: exit status, or minus the signal.

        Of those that ended between two looks, one that was asked to end comes last: it is a consequence more often
        than a cause.
        """
        for look in self._doors:
            look()
        found: list[tuple[int, int]] = []
        now = self._clock()
        for rank, process in self.processes.items():
            if rank in self._told:
                continue
            code = process.poll()
            if code is not None and now - self._noticed.setdefault(rank, now) >= ECHO_S:
                self._told.add(rank)
                found.append((rank, code))
        return sorted(found, key=lambda end: end[1] == -signal.SIGTERM)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank and what it started; nothing where it has ended or never began."""
        process = self.processes.get(rank)
        if process is None:
            return
        if number == signal.SIGTERM:
            process.terminate()
        elif number == signal.SIGKILL:
            process.kill()
        else:
            process.pass_on(number, group=True)

    def ask_stacks(self, rank: int, number: int) -> None:
        """Have a rank write its stacks to its log, under a line that says why they are there.

        Args:
            rank: which; nothing where it has ended or never began.
            number: of the signal that it writes them on.
        """
        if rank in self.processes and self.processes[rank].poll() is None:
            if rank in self._logs:
                with suppress(OSError):  # a full disk takes no stacks either
                    self._logs[rank].write(f"\n{STACKS}\n".encode())
            self.processes[rank].pass_on(number, group=False)

    def pass_on(self, number: int) -> None:
        """Pass a signal on to all ranks and what they started."""
        for process in self.processes.values():
            process.pass_on(number, group=True)

    def _end(self, rank: int) -> None:
        """End a rank's process and all that it started, and wait for that."""
        process = self.processes[rank]
        process.kill()
        if not process.wait(END_S):
            sys.stderr.write(f"maniple: the process of rank {rank} may still run: it was killed {END_S:.0f} s ago\n")
