"""The local launcher: ranks are processes of this host, and children of the launcher's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError, RunError
from maniple.runtime.cluster import parent_death
from maniple.runtime.cluster.launcher import Launcher, RankCommand, RankProcess, Streams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__: list[str] = []


@final
class LocalProcess(RankProcess):
    """A child of this process and all that it starts, in a session of its own.

    It may stand for a process elsewhere, as the client of a remote shell does.

    Args:
        argv: its command.
        streams: where its input is from and its output goes.
        environ: all its variables; None for those of this process.
        inherited: descriptors that it inherits.
        told: what it reads from its standard input before that ends, in place of what the streams say: a way for
            secrets, of at most what a pipe holds (64 KiB on Linux); None to tell it nothing.

    Raises:
        RunError: there is no such command, or it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        streams: Streams,
        environ: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
        told: bytes | None = None,
    ) -> None:
        # A session of its own: the terminal's signals come to the launcher alone, which passes on what it decides.
        try:
            self._child = subprocess.Popen(  # noqa: S603 - the command is what the user asked the launcher to run
                argv,
                env=environ,
                stdin=streams.stdin if told is None else subprocess.PIPE,
                stdout=streams.stdout,
                stderr=streams.stderr,
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"{argv[0]} cannot be started: {error.strerror or error}; install it") from error
        self.pid = self._child.pid
        if told is not None and self._child.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended already, and its exit status says why
                self._child.stdin.write(told)
                self._child.stdin.close()

    def poll(self) -> int | None:
        """See `RankProcess.poll`.

        It is not reaped, so that its number, and with it that of its group, cannot become another process's while the
        group may have to be ended. A system that cannot look without reaping leaves what such a rank started alone.
        """
        if self._child.returncode is not None or not hasattr(os, "waitid"):
            return self._child.poll()
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def terminate(self) -> None:
        """See `RankProcess.terminate`."""
        self.pass_on(signal.SIGTERM, group=True)

    def kill(self) -> None:
        """See `RankProcess.kill`; the group outlives its leader where the rank started processes of its own."""
        self.pass_on(signal.SIGKILL, group=True)

    def wait(self, timeout_s: float) -> bool:
        """See `RankProcess.wait`."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def pass_on(self, number: int, *, group: bool) -> bool:
        """See `RankProcess.pass_on`; a group's number is nobody else's until its leader is reaped."""
        if self._child.returncode is not None:
            return False
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)
            return True
        return False


@final
class LocalLauncher(Launcher):
    """Starts ranks as children, which on Linux the kernel ends when the launcher ends, however that ends.

    Raises:
        RequestError: it was told something.
    """

    same_host = True

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if argument:
            raise RequestError(f"launcher 'local' takes no argument, got {argument!r}; write --launcher local")

    def start(self, command: RankCommand, streams: Streams) -> RankProcess:
        """See `Launcher.start`."""
        return LocalProcess(_tie_to_launcher(command.argv), streams, command.all_variables(), command.inherited)


def _tie_to_launcher(argv: Sequence[str]) -> Sequence[str]:
    if not sys.platform.startswith("linux"):
        return argv  # ranks that joined notice that the launcher is gone
    return [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *argv]
