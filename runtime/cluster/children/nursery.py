"""The nursery of a host's ranks: one process imports what all of them import, and they are forked from it (Linux).

    this process            nursery                  a go-between      rank
    ── starts ────────────▶ imports torch, once
    ── rank, streams ─────▶ forks ─────────────────▶ forks ──────────▶ waits
                            sees it end ◀─────────── ends              is this process's child from here on
    ◀───────────── number ─ says go ─────────────────────────────────▶ becomes the program
    ── no more ───────────▶ ends

A process whose parent ends becomes the child of the nearest ancestor that asked for such (PR_SET_CHILD_SUBREAPER), so a
rank is a child of this process as if it had been started here: seen to end, ended with its group, and ended by the
kernel when this process ends. The nursery is there until the last rank is forked.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.process.environment import THREAD_VARIABLES
from maniple.process.error import RunError
from maniple.runtime.cluster.children import nursery_program
from maniple.runtime.cluster.children.child_process import ChildProcess, LocalProcess
from maniple.runtime.cluster.children.newborn import Newborn
from maniple.runtime.cluster.launcher import Streams, first_entry
from maniple.runtime.devices.registry import DEVICES

if TYPE_CHECKING:
    from maniple.runtime.cluster.launcher import LaunchRequest, RankCommand

__all__: list[str] = []

# A process that was killed is gone in milliseconds.
_END_S = 30.0
# What an import left in the nursery's group may live on, and is not waited for any longer than this.
_ORPHAN_END_S = 0.5
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
READ_AT_IMPORT = (*THREAD_VARIABLES, "PYTHONUNBUFFERED")
"""Variables of a rank, the same for all ranks of a host, that the interpreter or a library reads when it begins."""


def suits(request: LaunchRequest, ranks: int) -> bool:
    """Say whether ranks of a host may be forked from one process: else each is an interpreter of its own.

    ====================  ==============================================================
    not where             because
    ====================  ==============================================================
    nothing is shared     one rank alone, or the user asked for interpreters (`--fresh`)
    the system is other   than Linux: no subreaper, and frameworks that forbid forks
    the device is a GPU   its libraries must not be there before a fork
    the program is        no `.py` file and no module: a folder, an archive
    ====================  ==============================================================

    Args:
        request: what is started.
        ranks: how many of them on this host.
    """
    target = request.target
    return (
        ranks > 1
        and request.imports is not None
        and sys.platform == "linux"
        and DEVICES.lookup(request.device).forks
        and (target[0] == "-m" or (target[0].endswith(".py") and Path(target[0]).is_file()))
    )


class _Wanted(NamedTuple):
    """A rank that the nursery has not been told of yet, and copies of its streams' descriptors."""

    told: bytes
    descriptors: list[int]


@final
class Nursery:
    """The nursery of some ranks, from its start to its end.

    Args:
        first: one of them; the others have the same program, host and descriptors.
        streams: of this one: what imports print goes there.
        imports: the module that is imported before ranks are forked.

    Raises:
        RunError: it cannot be started.
    """

    def __init__(self, first: RankCommand, streams: Streams, imports: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._before = _adopt_orphans()
        try:
            self._process = LocalProcess(
                [
                    *(sys.executable, nursery_program.__file__, str(theirs.fileno()), str(os.getpid()), imports),
                    *(first_entry(first.argv[1:]), " ".join(first.argv)),  # the last makes room for what `ps` shows
                ],
                Streams(subprocess.DEVNULL, streams.stdout, streams.stderr),
                first.all_variables(READ_AT_IMPORT),
                (*first.inherited, theirs.fileno()),
            )
        except BaseException:
            ours.close()
            _adopt_orphans(self._before)
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket: socket.socket | None = ours
        self._wanted: deque[_Wanted] = deque()
        self._complete = False
        self._born: dict[int, ChildProcess] = {}
        self._failed: dict[int, int] = {}
        self._orphans: list[int] = []

    def bear(self, command: RankCommand, streams: Streams) -> Newborn:
        """Have a rank forked as soon as the imports are done.

        Args:
            command: what it is to become.
            streams: its input and output.

        Raises:
            RunError: too many files are open.
        """
        told = {"rank": command.rank, "argv": command.argv, "variables": dict(command.variables)}
        self._wanted.append(_Wanted(json.dumps(told).encode(), _copies(streams)))
        self.look()
        return Newborn(self, command.rank)

    def complete(self) -> None:
        """Say that no other rank is wanted; the nursery ends once the last is forked."""
        self._complete = True
        self.look()

    def find(self, rank: int) -> ChildProcess | None:
        """Give a rank's process, if it is there yet."""
        self.look()
        return self._born.get(rank)

    def status(self, rank: int) -> int | None:
        """Give how a rank ended that never was there: as its nursery did; None while it may come."""
        if rank in self._failed:
            return self._failed[rank]
        return None if self._socket is not None else self._process.poll() or 1

    def look(self) -> None:
        """Tell the nursery what it takes, and hear what it says, without waiting."""
        if self._socket is None:
            return
        try:
            self._tell(self._socket)
        except OSError:  # it ended: what it said before can still be heard
            self._forget_wanted()
        while True:
            try:
                said = self._socket.recv(1000)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if not said:
                self._close()
                return
            self._hear(said)

    def end(self) -> bool:
        """End the nursery, and so all ranks that are not there yet; says whether it was there."""
        return self.pass_on(signal.SIGKILL)

    def pass_on(self, number: int) -> bool:
        """Pass a signal on to the nursery; says whether it is there."""
        return self._socket is not None and self._process.pass_on(number, group=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the nursery has ended and all that it said was heard; says whether it has."""
        if not self._process.wait(timeout_s):
            return False
        self._close()
        return True

    def _hear(self, said: bytes) -> None:
        heard: dict[str, int] = json.loads(said)
        if "orphan" in heard:
            self._orphans.append(heard["orphan"])
        elif "pid" in heard:
            self._born[heard["rank"]] = ChildProcess(heard["pid"])
        else:
            self._failed[heard["rank"]] = heard["status"]

    def _tell(self, connection: socket.socket) -> None:
        while self._wanted:
            told, descriptors = self._wanted[0]
            try:
                socket.send_fds(connection, [told], descriptors)
            except BlockingIOError:
                return
            self._wanted.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if self._complete:
            connection.shutdown(socket.SHUT_WR)

    def _forget_wanted(self) -> None:
        for wanted in self._wanted:
            for descriptor in wanted.descriptors:
                os.close(descriptor)
        self._wanted.clear()

    def _close(self) -> None:
        """Let go of a nursery that has ended or ends, and of what it was forking.

        Its end of the socket is held by that, too: a rank that nobody let go on says so and ends, and is seen to end.
        """
        if self._socket is None:
            return
        connection, self._socket = self._socket, None
        self._forget_wanted()
        self._process.kill()
        self._process.wait(_END_S)
        connection.settimeout(_END_S)
        with connection, suppress(OSError):
            while said := connection.recv(1000):
                self._hear(said)
        _see_end(-self._process.pid)  # go-betweens: then what they forked is this process's child
        for pid in set(self._orphans) - {child.pid for child in self._born.values()}:
            _see_end(pid)
        _adopt_orphans(self._before)


def _see_end(pid: int) -> None:
    """Take note that a child, or all children of a group, have ended, which they are about to."""
    end = time.monotonic() + _ORPHAN_END_S
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() < end:
            time.sleep(0.001)


def _adopt_orphans(flag: int = 1) -> int:
    """Become, or cease to be, the parent of what descendants leave behind; gives what was before.

    Raises:
        RunError: the system refuses.
    """
    prctl, before = ctypes.CDLL(None, use_errno=True).prctl, ctypes.c_int()
    if prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or prctl(PR_SET_CHILD_SUBREAPER, flag, 0, 0, 0):
        raise RunError(
            f"ranks cannot be forked from one process ({os.strerror(ctypes.get_errno())}); give each an interpreter of "
            "its own with --fresh"
        )
    return before.value


def _copies(streams: Streams) -> list[int]:
    """Give copies of streams' descriptors, which may be closed as soon as a rank was asked for."""
    copies: list[int] = []
    try:
        for stream in (0 if streams.stdin is None else streams.stdin, streams.stdout, streams.stderr):
            copy = os.open(os.devnull, os.O_RDWR) if stream == subprocess.DEVNULL else os.dup(stream)
            copies.append(copy)
    except OSError as error:
        for copy in copies:
            os.close(copy)
        raise RunError(f"a rank cannot be started: {error.strerror or error}") from error
    return copies
