"""The supervisor: carries out what the coordinator of a run decides, with processes, a socket and a clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Self, final

import zmq

from maniple.runtime.cluster.coordinator_event import (
    Dump,
    Event,
    Finish,
    Garbled,
    Instruction,
    Interrupted,
    Kill,
    ProcessExited,
    Received,
    SendTo,
    Tick,
    Unread,
)
from maniple.runtime.cluster.launcher import Streams
from maniple.runtime.cluster.tee import Tee
from maniple.runtime.transports.message import ProtocolError, decode, encode, frames
from maniple.runtime.transports.proof import be_coordinator
from maniple.runtime.transports.transport import LOOPBACK
from maniple.runtime.transports.zeromq import bind, make_socket

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType, TracebackType

    from maniple.process.clock import Clock
    from maniple.runtime.cluster.coordinator import Coordinator
    from maniple.runtime.cluster.launcher import Launcher, RankCommand, RankProcess

__all__: list[str] = []

# How late the launcher is at most where nothing wakes it.
TICK_MS = 50
# Messages of a rank that lie unread, and messages for it that it does not read. It gets one or two a second, and one
# for each exchange, which it waits for; what it tells beyond these waits at the rank until the launcher reads.
UNREAD = 1000
# The last words of a process arrive after its end is seen; this is how long they may take.
ECHO_S = 0.15
# For the output of rank 0 to be shown in full, where something that it started keeps its streams open.
DRAIN_S = 2.0
# A process that was killed is gone in milliseconds, if not on a host that nothing is heard of any more.
END_S = 30.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class Supervisor:
    """The processes of one run and the socket that they report to; a context that leaves nothing behind.

    Args:
        coordinator: what decides.
        token: the run's secret.
        port: of the control socket; None lets the system choose.
        interface: the address of this host that it binds to.
        clock: tells the coordinator the time.

    Raises:
        RunError: the port is taken, or this process may open no more files.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        token: str,
        port: int | None,
        interface: str = LOOPBACK,
        clock: Clock = monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._processes: list[RankProcess] = []
        self._outputs: list[Tee] = []
        self._noticed: dict[int, float] = {}
        self._told: set[int] = set()
        self._unread: list[bytes] = []
        self._interrupts = 0
        self._stack = ExitStack()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stack.callback(self._context.term)
        try:
            self._router = make_socket(self._context, zmq.ROUTER, linger_ms=200, sending=UNREAD, receiving=UNREAD)
            self._stack.callback(self._router.close)
            be_coordinator(self._router, token)
            self.endpoint = bind(self._router, interface, port)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _INTERRUPTS:
                self._take_over(number, self._interrupt)
            self._take_over(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with ExitStack() as ends:  # all are ended, even if one cannot be
                for rank in range(len(self._processes)):
                    ends.callback(self._end, rank)
            for output in self._outputs:
                output.finish(DRAIN_S)
        finally:
            self._stack.close()

    def spawn(self, launcher: Launcher, command: RankCommand, log: Path, *, shown: bool) -> None:
        """Start the next rank.

        Args:
            launcher: starts it.
            command: what it is told to start.
            log: where its output goes.
            shown: whether its output goes to this process's streams too, and this one's input to it.

        Raises:
            RunError: it cannot be started.
        """
        file = self._stack.enter_context(log.open("ab", buffering=0))
        if shown:
            tees = [Tee(target, file) for target in (1, 2)]
            streams = Streams(None, tees[0].child, tees[1].child)
        else:
            tees, streams = [], Streams(subprocess.DEVNULL, file.fileno(), file.fileno())
        self._processes.append(launcher.start(command, streams))
        for tee in tees:
            tee.start()
        self._outputs += tees

    def watch(self) -> Finish:
        """Serve the coordinator until the run is over."""
        while True:
            for event in (*self._receive(), *self._exits(), *self._signals(), Tick()):
                finish = self._carry_out(self._coordinator.handle(event, self._clock()))
                if finish is not None:
                    return finish

    def _receive(self) -> list[Event]:
        found: list[Event] = [Unread(identity) for identity in self._unread]
        self._unread.clear()
        if not self._router.poll(0 if found else TICK_MS):
            return found
        while int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN and len(found) < 1000:
            identity, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            try:
                found.append(Received(identity, decode(*parts)))
            except ProtocolError as error:
                found.append(Garbled(identity, str(error)))
        return found

    def _exits(self) -> list[Event]:
        found: list[Event] = []
        now = self._clock()
        for rank, process in enumerate(self._processes):
            if rank in self._told:
                continue
            code = process.poll()
            if code is not None and now - self._noticed.setdefault(rank, now) >= ECHO_S:
                self._told.add(rank)
                found.append(ProcessExited(rank, code))
        return found

    def _signals(self) -> list[Event]:
        count, self._interrupts = self._interrupts, 0
        return [Interrupted()] * count

    def _carry_out(self, instructions: Sequence[Instruction]) -> Finish | None:
        finish = None
        for instruction in instructions:
            if isinstance(instruction, SendTo):
                self._send(instruction)
            elif isinstance(instruction, Kill):
                for rank in instruction.ranks:
                    process = self._processes[rank]
                    (process.terminate if instruction.signal == signal.SIGTERM else process.kill)()
            elif isinstance(instruction, Dump):
                self._processes[instruction.rank].pass_on(instruction.signal, group=False)
            else:
                finish = instruction
        return finish

    def _send(self, instruction: SendTo) -> None:
        parts = frames(encode(instruction.message))
        try:
            self._router.send_multipart([instruction.identity, *parts], zmq.NOBLOCK)
        except zmq.Again:
            # An echo that gives nothing back is silent, which the coordinator sees; any other message must not be lost.
            self._unread.append(instruction.identity)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # it left; its process says why
                raise

    def _end(self, rank: int) -> None:
        """End a rank's process and all that it started, and wait for that."""
        process = self._processes[rank]
        process.kill()
        if not process.wait(END_S):
            sys.stderr.write(f"maniple: the process of rank {rank} may still run: it was killed {END_S:.0f} s ago\n")

    def _take_over(self, number: int, handler: object) -> None:
        before = signal.getsignal(number)
        if before is signal.SIG_IGN and number == signal.SIGHUP:
            return  # started by nohup
        signal.signal(number, handler)  # type: ignore[arg-type]
        self._stack.callback(signal.signal, number, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Suspend the ranks with the launcher, and wake them with it."""
        for rank in range(len(self._processes)):
            self._processes[rank].pass_on(signal.SIGSTOP, group=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in range(len(self._processes)):
            self._processes[rank].pass_on(signal.SIGCONT, group=True)
