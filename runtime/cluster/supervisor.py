"""The supervisor: carries out what the coordinator of a run decides, with processes, a socket and a clock."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Self, final

import zmq

from maniple.runtime.cluster.agent import Agent
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
    Tell,
    Tick,
    Unread,
)
from maniple.runtime.cluster.restarts.attempt import say
from maniple.runtime.cluster.terminal.interrupts import Interrupts
from maniple.runtime.transports.message import Message, ProtocolError, decode, encode, frames
from maniple.runtime.transports.proof import KeyGate, be_coordinator
from maniple.runtime.transports.transport import LOOPBACK
from maniple.runtime.transports.zeromq import bind, make_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from maniple.process.clock import Clock
    from maniple.runtime.cluster.coordinator import Coordinator

__all__: list[str] = []

# How late the launcher is at most where nothing wakes it.
TICK_MS = 50
# How often it looks at most for what nothing tells it: ends of processes, and what it is time for. A look takes longer
# the more ranks there are, a message does not, and a turn may have taken a single one.
LOOK_S = 0.01
# From here on a message that goes to many is held once, whoever of them reads late.
SHARED_BYTES = 4 << 10
# Messages of a rank that lie unread, and messages for it that it does not read. It gets one or two a second, and one
# for each exchange, which it waits for; what it tells beyond these waits at the rank until the launcher reads.
UNREAD = 1000
# For what was told last to reach those who still listen.
LINGER_MS = 200


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
        self.agent = Agent(clock)
        self._coordinator = coordinator
        self._clock = clock
        self._interrupts = Interrupts(self.agent.pass_on)
        self._unread: list[bytes] = []
        self._packed: tuple[Message, list[bytes] | list[zmq.Frame]] | None = None
        self._sources: list[Callable[[], Iterable[Event]]] = []
        self._stack = ExitStack()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stack.callback(self._context.term)
        try:
            self._gate = KeyGate(self._context, token)
            self._stack.callback(self._gate.socket.close)
            self._router = make_socket(self._context, zmq.ROUTER, linger_ms=LINGER_MS, sending=UNREAD, receiving=UNREAD)
            self._stack.callback(self._router.close)
            be_coordinator(self._router, token)
            self.endpoint = bind(self._router, interface, port)
        except BaseException:
            self._stack.close()
            raise
        self._poller = zmq.Poller()
        for socket in (self._router, self._gate.socket):
            self._poller.register(socket, zmq.POLLIN)

    def __enter__(self) -> Self:
        self._stack.enter_context(self._interrupts)
        self._stack.enter_context(self.agent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def attend(self, source: Callable[[], Iterable[Event]]) -> None:
        """Have the coordinator told of what something else sees; it is asked many times a second."""
        self._sources.append(source)

    def watch(self) -> Finish:
        """Serve the coordinator until the run is over."""
        looked = -LOOK_S
        while True:
            events: list[Event] = self._receive()
            if self._clock() - looked >= LOOK_S or not events:
                looked = self._clock()
                events += (*self._exits(), *self._signals(), *self._others(), Tick())
            for event in events:
                finish = self._carry_out(self._coordinator.handle(event, self._clock()))
                if finish is not None:
                    return finish

    def settle(self) -> None:
        """Close the socket, so that what agents were told last is on its way before anything waits for them."""
        self._poller.unregister(self._router)
        self._router.close(linger=LINGER_MS)

    def _receive(self) -> list[Event]:
        found: list[Event] = [Unread(identity) for identity in self._unread]
        self._unread.clear()
        ready = dict(self._poller.poll(0 if found else TICK_MS))
        if self._gate.socket in ready:
            self._gate.answer()
        if self._router not in ready:
            return found
        while int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN and len(found) < 1000:
            identity, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            try:
                found.append(Received(identity, decode(*parts)))
            except ProtocolError as error:
                found.append(Garbled(identity, str(error)))
        return found

    def _exits(self) -> list[Event]:
        return [ProcessExited(rank, code) for rank, code in self.agent.exits()]

    def _signals(self) -> list[Event]:
        return [Interrupted()] * self._interrupts.take()

    def _others(self) -> list[Event]:
        return [event for source in self._sources for event in source()]

    def _carry_out(self, instructions: Sequence[Instruction]) -> Finish | None:
        finish = None
        for instruction in instructions:
            if isinstance(instruction, SendTo):
                self._send(instruction)
            elif isinstance(instruction, Kill):
                for rank in instruction.ranks:
                    self.agent.signal(rank, instruction.signal)
            elif isinstance(instruction, Dump):
                self.agent.ask_stacks(instruction.rank, instruction.signal)
            elif isinstance(instruction, Tell):
                say(instruction.text)
            else:
                finish = instruction
        return finish

    def _send(self, instruction: SendTo) -> None:
        try:
            self._router.send_multipart(
                [instruction.identity, *self._pack(instruction.message)], zmq.NOBLOCK, copy=False
            )
        except zmq.Again:
            # An echo that gives nothing back is silent, which the coordinator sees; any other message must not be lost.
            self._unread.append(instruction.identity)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # it left; its process says why
                raise

    def _pack(self, message: Message) -> list[bytes] | list[zmq.Frame]:
        """Give the frames of a message; one that goes to many, one after the other, is packed once."""
        if self._packed is None or self._packed[0] is not message:
            packed = encode(message)
            parts = frames(packed)
            self._packed = message, parts if len(packed) < SHARED_BYTES else [zmq.Frame(part) for part in parts]
        return self._packed[1]
