"""What starts agents on other hosts: a launcher's commands as processes of this host, watched until the run ends."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Self, final

from maniple.runtime.cluster.children.child_process import LocalProcess
from maniple.runtime.cluster.coordinator_event import HostFailed
from maniple.runtime.cluster.host_launcher import ended_agents
from maniple.runtime.cluster.hosts import key as keys
from maniple.runtime.cluster.launcher import Streams
from maniple.runtime.cluster.log_folder import read_tail
from maniple.runtime.cluster.terminal.tee import Tee

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from maniple.process.clock import Clock
    from maniple.runtime.cluster.host_launcher import HostCommand
    from maniple.runtime.cluster.roster import Roster

__all__: list[str] = []

# What an agent told last may arrive after the end of its command is seen.
ECHO_S = 1.0
# For commands to end by themselves after the run: a remote shell waits for its agent, which ends its ranks first.
END_S = 5.0
# For what the commands said last to be shown.
DRAIN_S = 1.0


@final
class AgentStarter:
    """The commands that start a run's agents; a context that leaves none of them behind.

    Args:
        roster: says which agents have come.
        logs: folder for what the commands say on standard error.
        clock: what they are waited for by.
    """

    def __init__(self, roster: Roster, logs: Path, clock: Clock = monotonic) -> None:
        self._roster = roster
        self._logs = logs
        self._clock = clock
        self._started: list[tuple[HostCommand, LocalProcess, Path]] = []
        self._ended: dict[int, float] = {}
        self._told = b""
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._files, ExitStack() as ends:
            end = self._clock() + (END_S if kind is None else 0.0)
            for _, process, _ in self._started:
                ends.callback(process.wait, END_S)
                ends.callback(process.kill)
            for _, process, _ in self._started:
                process.wait(max(0.0, end - self._clock()))

    def hand_over(self, token: str, file: Path | None) -> str:
        """Say how agents get the run's key, and give the `--key` that tells them.

        Args:
            token: the run's secret.
            file: where it lies until the run is over; None where the commands pass their standard input on.

        Raises:
            RequestError: the file cannot be written.
        """
        if file is None:
            self._told = f"{token}\n".encode()
            return "-"
        self._files.enter_context(keys.lying_in(file, token, replace=True))
        return str(file)

    def start(self, commands: Sequence[HostCommand]) -> None:
        """Start all commands; the output of node 0's passes through, as rank 0's does.

        Args:
            commands: which.

        Raises:
            RunError: one cannot be started.
        """
        for command in commands:
            log = self._logs / f"agents-{command.nodes[0]}.log"
            file = self._files.enter_context(log.open("wb", buffering=0))
            tee = Tee(2, file) if 0 in command.nodes else None
            out, err = (file.fileno(), file.fileno()) if tee is None else (1, tee.child)
            process = LocalProcess(command.argv, Streams(subprocess.DEVNULL, out, err), told=self._told)
            self._started.append((command, process, log))
            if tee is not None:
                tee.start()
                self._files.callback(tee.finish, DRAIN_S)

    def look(self) -> list[HostFailed]:
        """Tell of hosts whose agents ended, or never came, with the commands that were to start them."""
        found: list[HostFailed] = []
        for number, (command, process, log) in enumerate(self._started):
            code = process.poll()
            if code is None and len(command.nodes) > 1:
                found += self._ended_before_they_came(command, log)
            if code is None or self._clock() - self._ended.setdefault(number, self._clock()) < ECHO_S:
                continue
            missing = [node for node in command.nodes if self._roster.seats[node].identity is None]
            tail = "; ".join(line.strip() for line in read_tail(log)[-3:])
            said = f" ({tail})" if tail else ""
            lack = "has no agent" if missing else "lost its agent"
            step = f"see that `{command.argv[0]}` reaches it, and that Maniple is installed there under the same path"
            text = f"{lack}: {command.argv[0]} ended with exit status {code}{said}; {step}"
            found.append(HostFailed((missing or list(command.nodes))[0], text))
        return found

    def _ended_before_they_came(self, command: HostCommand, log: Path) -> list[HostFailed]:
        """Tell of agents that ended before they came, though the command that started them all still runs."""
        tail = read_tail(log)
        lines = "; ".join(line.strip() for line in tail[-4:-1])
        return [
            HostFailed(
                node,
                f"has no agent: it ended with exit status {status} before it came ({lines}); see that Maniple is "
                "installed there under the same path",
            )
            for node, status in ended_agents("\n".join(tail)).items()
            if node in command.nodes and self._roster.seats[node].identity is None
        ]
