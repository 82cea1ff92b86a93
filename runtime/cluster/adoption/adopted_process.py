"""Adopted processes: ranks that another program started, watched and ended through descriptors of processes (Linux).

A process that is no child cannot be waited for. Its descriptor (pidfd_open(2)) says that it has ended, and never stands
for another process that gets its number. How it ended is read from what the system still holds:

=========================  ====================================================
until its parent takes it  `/proc/PID/stat`, field 52 (proc(5))
afterwards                 the descriptor itself, from Linux 6.15 (PIDFD_INFO_EXIT)
=========================  ====================================================
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from maniple.runtime.cluster.coordinator_event import UNTOLD
from maniple.runtime.cluster.launcher import RankProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

# linux/pidfd.h: struct pidfd_info of its first size, and how it is asked for.
_INFO = struct.Struct("QQ11Ii")
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_INFO_EXIT = 1 << 3
_EXIT_CODE = 49
"""Where the fields after the name have the exit code, as wait(2) gives it."""


@final
class AdoptedProcess(RankProcess):
    """A process of this user that is not this one's child.

    Args:
        pid: its number, while it runs.

    Raises:
        ProcessLookupError: it has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """See `RankProcess.poll`; `UNTOLD` where the system does not hold any more how it ended."""
        if self._code is None and self._has_ended(0):
            told = _waiting_status(self.pid)
            told = _kept_status(self._descriptor) if told is None else told
            self._code = UNTOLD if told is None else os.waitstatus_to_exitcode(told)
        return self._code

    def terminate(self) -> None:
        """See `RankProcess.terminate`."""
        self.pass_on(signal.SIGTERM, group=True)

    def kill(self) -> None:
        """See `RankProcess.kill`; what it started is ended with it, but not after it: its parent may have taken it."""
        self.pass_on(signal.SIGKILL, group=True)

    def wait(self, timeout_s: float) -> bool:
        """See `RankProcess.wait`."""
        ended = self._has_ended(timeout_s)
        self.poll()
        os.close(self._descriptor)
        return ended

    def pass_on(self, number: int, *, group: bool) -> bool:
        """See `RankProcess.pass_on`; a group only where the process leads it."""
        if self.poll() is not None:
            return False
        with suppress(ProcessLookupError, PermissionError):
            if group and os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)
            return True
        return False

    def _has_ended(self, timeout_s: float) -> bool:
        if self._code is not None:
            return True
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))


@final
class AbsentProcess(RankProcess):
    """A rank that never came, and of which it is known that it will not."""

    def poll(self) -> int | None:
        """See `RankProcess.poll`."""
        return UNTOLD

    def terminate(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""

    def wait(self, timeout_s: float) -> bool:
        """See `RankProcess.wait`."""
        return True


def _waiting_status(pid: int) -> int | None:
    """Give how a process ended that waits for its parent to ask; None where it is gone."""
    with suppress(OSError, IndexError, ValueError):
        fields: Sequence[str] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] in {"Z", "X"}:
            return int(fields[_EXIT_CODE])
    return None


def _kept_status(descriptor: int) -> int | None:
    """Give how a process ended that its parent has taken; None where this system does not keep it."""
    asked = bytearray(_INFO.size)
    struct.pack_into("Q", asked, 0, _INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(descriptor, _GET_INFO, asked)
        found = _INFO.unpack(asked)
        if found[0] & _INFO_EXIT:
            return int(found[-1])
    return None
