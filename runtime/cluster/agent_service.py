"""The service of an agent: its host's part in a run whose coordinator is on another host.

    this host                                   where the run began
    ranks ── agent ── service ───────────────── supervisor ── coordinator
             starts, ends, sees ends            decides

The service does what the coordinator says and tells what the agent sees. A coordinator that is silent for 5 s is gone,
and with it the run: this host's ranks are ended.
"""

from __future__ import annotations

import socket as sockets
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, final

import zmq

from maniple.process.error import RunError
from maniple.runtime.cluster.agent import Agent
from maniple.runtime.cluster.coordinator_event import Finish
from maniple.runtime.cluster.terminal.interrupts import Interrupts
from maniple.runtime.cluster.vigil import SILENCE_S
from maniple.runtime.transports.agent_message import Admitted, AgentHello, Exited, Interrupt, Over, Signal
from maniple.runtime.transports.message import MAX_STRING, Heartbeat, Message, Refused, decode, encode, frames, readable
from maniple.runtime.transports.proof import be_rank
from maniple.runtime.transports.zeromq import make_socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.process.clock import Clock
    from maniple.runtime.cluster.meeting import Meeting

__all__: list[str] = []

TICK_MS = 50
# A service that handled nothing for this long was suspended, and cannot tell how long the coordinator was silent.
SUSPENDED_S = 1.0
# A key that the coordinator has not taken for so long is read again.
REREAD_S = 0.5
# For what is told last to reach the coordinator.
LINGER_MS = 1000
_INTERRUPTED = 130


@final
class AgentService:
    """One host's part in a run, from its hello to the end of the run.

    Args:
        meeting: where the coordinator is.
        token: the run's secret, as far as is known: what lies in a file may be that of a run that was killed.
        hello: what introduces this host.
        join_timeout_s: seconds until the coordinator must have answered.
        tail: gives the last lines of a rank's log.
        clock: what silence is measured by.
        reread: reads the secret again, as long as the coordinator has not taken it; None where there is none to read.
    """

    def __init__(
        self,
        meeting: Meeting,
        token: str,
        hello: AgentHello,
        join_timeout_s: float,
        tail: Callable[[int], str],
        clock: Clock = monotonic,
        reread: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._meeting = meeting
        self._token = token
        self._hello = hello
        self._join_timeout_s = join_timeout_s
        self._tail = tail
        self._clock = clock
        self._reread = reread
        self._admitted = False
        self.again = False
        """Whether the run begins again, once it is over."""
        self._told_interrupts = 0

    @property
    def token(self) -> str:
        """The run's secret, once a coordinator has taken it."""
        return self._token

    def serve(self, start: Callable[[Agent], object]) -> Finish:
        """Take part until the run is over; when this returns, none of this host's ranks is left.

        Args:
            start: has the agent start this host's ranks.

        Raises:
            RunError: no coordinator answers, or a rank cannot be started.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with ExitStack() as stack:
            stack.callback(context.term)
            agent = stack.enter_context(Agent(self._clock))
            interrupts = stack.enter_context(Interrupts(agent.pass_on))
            finish = None
            while finish is None:
                with make_socket(context, zmq.DEALER, linger_ms=LINGER_MS) as socket:
                    be_rank(socket, self._token)
                    socket.connect(f"tcp://{self._meeting.address}:0;{self._meeting.head}:{self._meeting.port}")
                    finish = self._serve(socket, agent, interrupts, start)
            return finish

    def _serve(
        self, socket: zmq.Socket[bytes], agent: Agent, interrupts: Interrupts, start: Callable[[Agent], object]
    ) -> Finish | None:
        """Give how the run ended; None where the coordinator may take another key."""
        self._send(socket, self._hello)
        heard = seen = looked = self._clock()
        while True:
            ready = socket.poll(TICK_MS)
            now = self._clock()
            heard, seen = (now if ready or now - seen > SUSPENDED_S else heard), now
            while ready and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                finish = self._take(socket, decode(*socket.recv_multipart(zmq.NOBLOCK)), agent, start)
                if finish is not None:
                    return finish
            for rank, code in agent.exits():
                tail = readable(self._tail(rank), MAX_STRING // 4)
                self._send(socket, Exited(rank, max(code, 0), max(-code, 0), tail))
            finish = self._interrupt(socket, interrupts.take()) or self._lose(now - heard)
            if finish is not None:
                return finish
            if not self._admitted and now - looked > REREAD_S:
                looked = now
                if self._take_key(self._reread()):
                    return None

    def _take_key(self, key: str | None) -> bool:
        """Take a key that was read again, and say whether it is another."""
        if key is None or key == self._token:
            return False
        self._token = key
        return True

    def _take(
        self, socket: zmq.Socket[bytes], message: Message, agent: Agent, start: Callable[[Agent], object]
    ) -> Finish | None:
        if isinstance(message, Admitted):
            self._admitted = True
            start(agent)
        elif isinstance(message, Heartbeat):
            self._send(socket, message)
        elif isinstance(message, Signal):
            (agent.signal if message.group else agent.ask_stacks)(message.rank, message.signal)
        elif isinstance(message, Refused):
            return Finish(1, f"{message.reason}; nothing was started here", None)
        elif isinstance(message, Over):
            self.again = message.again
            return Finish(message.status, message.text or None, None)
        return None

    def _interrupt(self, socket: zmq.Socket[bytes], count: int) -> Finish | None:
        """Pass on that this host's user wants an end; who asks a third time gets it here at once."""
        self._told_interrupts += count
        if count and (not self._admitted or self._told_interrupts > 2):
            return Finish(_INTERRUPTED, "interrupted", None)
        for _ in range(count):
            self._send(socket, Interrupt(self._hello.node))
        return None

    def _lose(self, silence_s: float) -> Finish | None:
        """End when the coordinator is gone.

        Raises:
            RunError: none was ever there.
        """
        endpoint = self._meeting.endpoint
        if self._admitted:
            if silence_s <= SILENCE_S:
                return None
            return Finish(
                1,
                f"the coordinator at {endpoint} has not answered for {silence_s:.0f} s: its host is down, cannot be "
                "reached, or it was ended; the ranks of this host were ended",
                None,
            )
        if silence_s <= self._join_timeout_s:
            return None
        raise RunError(f"{self._why_no_answer()} (waited {self._join_timeout_s:g} s)")

    def _why_no_answer(self) -> str:
        meeting = self._meeting
        try:
            sockets.create_connection((meeting.head, meeting.port or 0), 2.0, (meeting.address, 0)).close()
        except OSError as error:
            return (
                f"host {self._hello.host} ({meeting.address}) cannot reach the coordinator at {meeting.endpoint} "
                f"({error.strerror or error}); start the run there with --node-rank 0, or correct --head, routes or "
                "firewall"
            )
        return (
            f"what answers at {meeting.endpoint} does not take the key of host {self._hello.host} ({meeting.address}); "
            "it is that of another run, or the key is old: give all hosts of the run one --key"
        )

    def _send(self, socket: zmq.Socket[bytes], message: Message) -> None:
        socket.send_multipart(frames(encode(message)), zmq.NOBLOCK)
