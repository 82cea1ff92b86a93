"""The door of a host: where ranks that torchrun started come to be adopted by this host's agent, once each (Linux).

What `control.attachment` asks for is answered here: a rank says its number; the kernel says which process it is, and
whose. It is told what a launcher would have told it, with descriptors of what the ranks of the host share.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.cluster.adoption.adopted_process import AbsentProcess, AdoptedProcess
from maniple.runtime.cluster.local import LocalLauncher
from maniple.runtime.cluster.run import command
from maniple.runtime.control.attachment import AT_ONCE, peer_of, socket_name
from maniple.runtime.devices.registry import CPU
from maniple.runtime.transports.registry import TRANSPORTS
from maniple.runtime.transports.shared_memory import shared_files, wakeup_pipes

if TYPE_CHECKING:
    from maniple.process.rank_place import RankPlace
    from maniple.runtime.cluster.agent import Agent
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.run import Setting

__all__: list[str] = []


@final
class Door:
    """Adopts the ranks of this host; closed once all have come, or with its agent.

    The rank that started this process is adopted before it comes. Once all that came have ended, the others will not
    come: torchrun ends all ranks when one fails.

    Args:
        place: of the rank that started this process.
        request: what the ranks are.
        setting: where they run.
        agent: adopts them.

    Raises:
        RequestError: another run listens under the same name, or files cannot be opened.
    """

    def __init__(self, place: RankPlace, request: LaunchRequest, setting: Setting, agent: Agent) -> None:
        self._request, self._setting, self._agent = request, setting, agent
        self._starter, self._pid = place.rank, os.getppid()
        self._came: set[int] = set()
        self._files = ExitStack()
        self._listener = self._files.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._listener.setblocking(False)
        try:
            self._listener.bind(socket_name(place))
        except OSError as error:
            self._files.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise RequestError(
                f"another run on this host has the meeting {place.meeting} and the id {place.run.split()[0]!r}; give "
                "torchrun --standalone, or another --master-port or --rdzv-id"
            ) from error
        self._listener.listen(len(setting.ranks))
        shares = TRANSPORTS.lookup(request.transport).shares_memory and request.device == CPU
        sharing = len(setting.ranks) if len(setting.ranks) > 1 and shares else 0
        self._shared = self._files.enter_context(shared_files(sharing))
        self._pipes = self._files.enter_context(wakeup_pipes(sharing))
        agent.watch_door(self.look, self.close)

    def look(self) -> None:
        """Adopt who has come, and give up who will not; does not wait."""
        if not self._came and self._starter not in self._agent.processes:
            self._adopt(self._starter, self._pid)
        while len(self._came) < len(self._setting.ranks):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                break
            with connection:
                self._receive(connection)
        adopted = self._agent.processes
        if all(process.poll() is not None for process in adopted.values()):
            for rank in self._setting.ranks:
                if rank not in adopted:
                    self._agent.adopt(rank, AbsentProcess())
            self._came.update(self._setting.ranks)
        if len(self._came) == len(self._setting.ranks):
            self.close()

    def close(self) -> None:
        """Let nobody else come; what the ranks share has been handed on."""
        self._files.close()

    def _receive(self, connection: socket.socket) -> None:
        """Adopt the rank that is at the other end; nobody else is answered."""
        pid, user = peer_of(connection)
        if user != os.getuid():
            return
        connection.settimeout(1.0)  # it has said its number before it waits, as this user's rank
        with suppress(OSError):
            told = connection.recv(64)
            rank = int(told) if told.isdigit() and len(told) < 10 else -1
            if rank not in self._setting.ranks or rank in self._came:
                return
            if rank != self._starter and not self._adopt(rank, pid):
                return
            self._came.add(rank)
            self._answer(connection, rank)

    def _adopt(self, rank: int, pid: int) -> bool:
        """Take on a process; says whether it is still there."""
        try:
            self._agent.adopt(rank, AdoptedProcess(pid))
        except ProcessLookupError:
            self._agent.adopt(rank, AbsentProcess())
            return False
        return True

    def _answer(self, connection: socket.socket, rank: int) -> None:
        setting = self._setting
        _, variables = command(
            *(self._request, rank, setting.endpoint, setting.token, self._shared, self._pipes),
            launcher=LocalLauncher(),
            interface=setting.interface,
        )
        connection.sendall(json.dumps(variables).encode())
        descriptors = [*self._shared, *(end for ends in self._pipes for end in ends)]
        for start in range(0, len(descriptors), AT_ONCE):
            socket.send_fds(connection, [b"more"], descriptors[start : start + AT_ONCE])
        connection.sendall(b"end")
