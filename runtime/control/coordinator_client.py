"""The control plane of a launched rank: its own thread that talks to the coordinator."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, final

import zmq

from maniple.process.error import RunError
from maniple.process.headway import Headway
from maniple.process.quiet_thread import QuietThread
from maniple.process.wakeup import Wakeup
from maniple.runtime.control.control import MAX_TEXT, Control, RankStopped, Roll
from maniple.runtime.control.echo import Echo
from maniple.runtime.transports.message import (
    MAX_INTEGER,
    MAX_MESSAGE,
    PROTOCOL,
    Call,
    Failed,
    Gather,
    Gathered,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    ProtocolError,
    Refused,
    Stop,
    Welcome,
    decode,
    encode,
    frames,
    readable,
)
from maniple.runtime.transports.message import Headway as Word
from maniple.runtime.transports.proof import be_rank
from maniple.runtime.transports.zeromq import make_socket, milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.process.clock import Clock
    from maniple.process.environment import LaunchEnvironment

__all__: list[str] = []

# How often a rank tells its headway; a vigil takes the lack of six words for a lock that is kept.
BEAT_S = 0.5
# The launcher beats every second; four beats that do not come, seen by a thread that ran meanwhile, are no accident.
SILENCE_S = 4.0
# A thread that did not run for this long was suspended itself, and cannot tell how long others were silent.
SUSPENDED_S = 1.0
# For a program whose launcher is gone to end by itself: nobody is left to end it otherwise.
LAST_WORDS_S = 0.75
# Messages of the launcher that lie unread at most; it sends one a second, and one for each exchange.
UNREAD = 1000
# After a call was sent, further ones wait this long, so that a program of many calls wakes the thread seldom.
LAZY_S = 0.01
# So many calls that may wait are sent at once.
MANY = 64


@final
class CoordinatorClient(Control):
    """A rank's end of the control plane.

    One thread owns the socket: it sends what the program queues, beats, and receives. The program's thread only
    appends to a queue, and waits on a condition for answers. That the process lives is told by its `Echo`, which needs
    no interpreter; that it gets on, by this thread. A launcher that is silent for 4 s, or no longer this
    process's parent, is gone, and with it the run: waits raise, and a process that does not end is ended.

    Args:
        launch: what the launcher told this rank.
        data_endpoint: where this rank takes tiles.
        headway: how far this rank has come.
        stacks: the signal that has this process write its stacks, 0 for none.
        clock: what silence is measured by.
        end: ends a process that does not end by itself, where nobody else is left to.
    """

    def __init__(
        self,
        launch: LaunchEnvironment,
        data_endpoint: str,
        headway: Headway,
        stacks: int = 0,
        clock: Clock = monotonic,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._launch = launch
        self._clock = clock
        self._end = end
        self._headway = headway
        self._stacks = stacks
        self._data_endpoint = data_endpoint
        self._roll = Roll()
        self._last = ""
        self._gathers = 0
        self._failed = False
        self._outbox: deque[Message] = deque()
        self._lazy = False
        self._closing = False
        self._lock = threading.Lock()
        self._program = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._welcome: Welcome | None = None
        self._gathered: dict[int, tuple[bytes, ...]] = {}
        self._farewell = False
        self._reason: str | None = None
        self._refused = False
        self._words, self._told = 0, -1
        self._word_due = False
        self._lost_at: float | None = None
        self._callbacks: list[Callable[[RankStopped], object]] = []
        self._alarm = Wakeup()
        self._parent = os.getppid()
        self._thread = QuietThread(target=self._run, name="control", daemon=True)

    def join(self) -> Welcome:
        """Introduce this rank and wait until all are there.

        Raises:
            RankStopped: another rank did not come.
            RunError: the coordinator refused this rank, or the world that came up is not the one that was asked for.
        """
        launch = self._launch
        self._outbox.append(
            Hello(
                rank=launch.rank,
                node=launch.node,
                pid=os.getpid(),
                host=platform.node() or "localhost",
                world_size=launch.world_size,
                data_endpoint=self._data_endpoint,
                version=PROTOCOL,
                stacks=self._stacks,
            )
        )
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._welcome is not None or self._reason is not None)
            if self._refused:
                raise RunError(f"{self._reason}; start ranks with maniple run")
            self._check()
            welcome = self._welcome
        if welcome is None or len(welcome.endpoints) != launch.world_size or len(welcome.hosts) != launch.world_size:
            came = 0 if welcome is None else len(welcome.endpoints)
            raise RunError(f"expected a world of {launch.world_size} ranks, got {came}; start it with maniple run")
        return welcome

    def call(self, text: str, digest: bytes = b"", *, soon: bool = True) -> None:
        """Queue a call for the coordinator."""
        self._headway.step()
        with self._program:
            self._check()
            inputs = self._roll.add(text, digest)
            self._last = readable(text, MAX_TEXT)
            self._outbox.append(Call(self._roll.sequence, self._roll.digest, inputs, self._last))
        if (soon and not self._lazy) or len(self._outbox) >= MANY:
            self._alarm.ring()

    def gather(self, payload: bytes) -> list[bytes]:
        """Send a part, and wait for all."""
        return self._exchange(payload, self._launch.world_size, greatest=False)

    def greatest(self, payload: bytes) -> bytes:
        """Send a part, and wait for the greatest."""
        return self._exchange(payload, 1, greatest=True)[0]

    def _exchange(self, payload: bytes, wanted: int, *, greatest: bool) -> list[bytes]:
        """Send a part, and wait for so many of all.

        Raises:
            RunError: other ranks want another number.
        """
        most = (MAX_MESSAGE - 4096) // self._launch.world_size - 16
        if len(payload) > most:
            raise RunError(
                f"an exchange among {self._launch.world_size} ranks carries {most} bytes from each, got {len(payload)} "
                f"from rank {self._launch.rank}; move tensors through regions"
            )
        with self._program:
            self._check()
            self._gathers += 1
            sequence = self._gathers
            self._outbox.append(Gather(sequence, bytes(payload), greatest))
        self._alarm.ring()
        with self._headway.waiting(), self._changed:
            self._changed.wait_for(lambda: sequence in self._gathered or self._reason is not None)
            self._check()
            found = list(self._gathered.pop(sequence))
        if len(found) != wanted:
            raise RunError(
                f"rank {self._launch.rank}: expected {wanted} parts of exchange {sequence}, got {len(found)}: other "
                "ranks want the greatest where this one wants all, or all; they do not run the same program"
            )
        return found

    def fail(self, where: str, text: str, *, request: bool = False, inside: bool = True) -> None:
        """Tell the coordinator that this rank cannot go on.

        Args:
            where: what the program was doing; empty for its last call.
            text: what went wrong.
            request: whether what it was asked for was wrong.
            inside: whether that call had not returned.
        """
        with self._program:
            if self._failed or self._reason is not None:
                return
            self._failed = True
            doing = readable((where or self._last) if inside else "", MAX_TEXT)
            if not inside and self._last:
                text += f", after `{readable(self._last, MAX_TEXT)}`"
            self._outbox.append(Failed(self._launch.rank, doing, readable(text, 4 * MAX_TEXT), request))
        self._alarm.ring()

    def tell_headway(self) -> None:
        """Tell the coordinator this rank's headway; returns once it is on its way, since what follows may keep it."""
        with self._changed:
            told = self._words
            self._word_due = True
            self._alarm.ring()
            self._changed.wait_for(lambda: self._words > told or self._reason is not None or self._farewell)

    def on_stop(self, callback: Callable[[RankStopped], object]) -> None:
        """Have a function called on the control thread."""
        with self._lock:
            if self._reason is None:
                self._callbacks.append(callback)
                return
            reason = self._reason
        callback(RankStopped(reason))

    def close(self) -> None:
        """Say goodbye, wait for the others' (unless the run failed), and end the thread."""
        with self._program:
            if self._closing:
                return
            self._closing = True
            ends = self._welcome is not None and not self._failed and self._reason is None
            if ends:
                self._outbox += (self._word(), Goodbye(self._launch.rank, self._roll.sequence))
        self._alarm.ring()
        if ends:
            with self._changed:
                self._changed.wait_for(lambda: self._farewell or self._reason is not None)
        with self._changed:
            self._farewell = True
        self._alarm.ring()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def drop(self) -> None:
        """End the line without a word, as the end of a process does."""
        self._closing = self._farewell = True
        self._outbox.clear()
        self._alarm.ring()
        if self._thread.ident is not None:
            self._thread.join()

    def _check(self) -> None:
        if self._reason is not None:
            raise RankStopped(self._reason)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = make_socket(context, zmq.DEALER, linger_ms=1000, receiving=UNREAD)
        try:
            be_rank(socket, self._launch.token)
            Echo(context, self._launch.endpoint, self._launch.token, self._launch.rank)
            socket.connect(self._launch.endpoint)
            self._serve(socket)
        except (zmq.ZMQError, RunError) as error:
            self._stop(f"node {self._launch.node} (rank {self._launch.rank}) lost its control connection: {error}")
        finally:
            socket.close()
            context.term()
            self._alarm.close()

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._alarm.fileno(), zmq.POLLIN)
        beat_at = 0.0
        heard = seen = self._clock()
        while True:
            # Only `close` sets this, after the last message was queued.
            last_round = self._closing and self._farewell
            sent = False
            while self._outbox:
                message = self._outbox.popleft()
                socket.send_multipart(frames(encode(message)), zmq.NOBLOCK)
                sent = not isinstance(message, Gather)  # whoever waits for its answer makes no call before
            if last_round:
                return
            now = self._clock()
            if now - seen > SUSPENDED_S:
                heard = now
            seen = now
            if now >= beat_at or self._word_due:
                beat_at = now + BEAT_S
                self._send_word(socket)
                self._look_for_coordinator(now, heard)
            self._lazy = sent
            armed = self._alarm.arm() and not self._outbox
            wait = LAZY_S if sent else beat_at - now
            events = dict(poller.poll(milliseconds(wait) if armed else 0))
            self._alarm.disarm(readable=self._alarm.fileno() in events)
            if socket in events:
                heard = now
                while int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                    self._take(decode(*socket.recv_multipart(zmq.NOBLOCK)))

    def _send_word(self, socket: zmq.Socket[bytes]) -> None:
        word = self._word()
        with self._changed:
            self._word_due = False
            socket.send(encode(word), zmq.NOBLOCK)
            self._words += 1
            self._changed.notify_all()

    def _word(self) -> Word:
        headway = self._headway
        patience = min(round(headway.patience_s() * 1000), MAX_INTEGER)
        progress = headway.progress()
        doing = readable(headway.doing(), MAX_TEXT) if progress == self._told else ""  # only what lasts is asked about
        self._told = progress
        steps = headway.steps_before, headway.steps_done
        return Word(self._launch.rank, progress, headway.waits(), patience, *steps, doing)

    def _take(self, message: Message) -> None:
        if isinstance(message, Stop):
            self._stop(message.text)
            return
        if isinstance(message, Refused):
            self._refused = True
            self._stop(message.reason)
            return
        with self._changed:
            if isinstance(message, Welcome):
                self._welcome = message
            elif isinstance(message, Gathered):
                self._gathered[message.sequence] = message.payloads
            elif isinstance(message, Goodbye):
                self._farewell = True
            elif not isinstance(message, Heartbeat):
                raise ProtocolError(f"expected a message of the launcher, got {type(message).__name__}")
            self._changed.notify_all()

    def _look_for_coordinator(self, now: float, heard: float) -> None:
        """Stop when the launcher is gone, and end a process that does not stop by itself."""
        if self._lost_at is not None:
            if now - self._lost_at > LAST_WORDS_S:
                sys.stderr.write("error: the launcher is gone; this rank ends\n")
                sys.stderr.flush()
                self._end(1)
            return
        if os.getppid() != self._parent:
            self._lost_at = now
            self._stop("the launcher ended")
        elif now - heard > SILENCE_S:
            self._lost_at = now
            self._stop(f"the launcher has not answered for {SILENCE_S:.0f} s")

    def _stop(self, reason: str) -> None:
        with self._changed:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback(RankStopped(reason))
