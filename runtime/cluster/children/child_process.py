"""Children of this process: seen to end without giving their numbers away, and ended with all that they started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, final

from maniple.process.error import RunError
from maniple.runtime.cluster.launcher import RankProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.runtime.cluster.launcher import Streams

__all__: list[str] = []


class ChildProcess(RankProcess):
    """A child of this process that leads a session of its own, whoever started it.

    Args:
        pid: its number. Nobody else waits for it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """See `RankProcess.poll`.

        It is not reaped, so that its number, and with it that of its group, cannot become another process's while the
        group may have to be ended.
        """
        if self._code is not None:
            return self._code
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
        if self._code is None and self._has_ended(timeout_s):
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code is not None

    def pass_on(self, number: int, *, group: bool) -> bool:
        """See `RankProcess.pass_on`; a group's number is nobody else's until its leader is reaped."""
        if self._code is not None:
            return False
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)
            return True
        return False

    def _has_ended(self, timeout_s: float) -> bool:
        descriptor = os.pidfd_open(self.pid)
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            return bool(poller.poll(timeout_s * 1000))
        finally:
            os.close(descriptor)


@final
class LocalProcess(ChildProcess):
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
        super().__init__(self._child.pid)
        if told is not None and self._child.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended already, and its exit status says why
                self._child.stdin.write(told)
                self._child.stdin.close()

    def poll(self) -> int | None:
        """See `RankProcess.poll`; a system that cannot look without reaping leaves what such a rank started alone."""
        if self._code is None and not hasattr(os, "waitid"):
            self._code = self._child.poll()
            return self._code
        return super().poll()

    def wait(self, timeout_s: float) -> bool:
        """See `RankProcess.wait`."""
        try:
            self._code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
