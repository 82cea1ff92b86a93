"""The launcher: starts the ranks of a run on this host, carries their messages to the head, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, final

import zmq

from maniple.regions.error import RequestError, RunError
from maniple.runtime import environment
from maniple.runtime.head import Finish, Head, Interrupted, ProcessExited, Received, SendTo, Signal, Tick
from maniple.runtime.inventory import available_cores
from maniple.runtime.message import Failed, Goodbye, ProtocolError, Refused, decode, encode
from maniple.runtime.zeromq import Waker, bind_or_explain, make_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from maniple.runtime.head import Event

__all__: list[str] = []

LOOPBACK = "127.0.0.1"
TICK_S = 0.1
LAST_WORDS_S = 0.1
"""How long a message of a process that has ended may still be on its way."""
TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1


@final
@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start.

    Args:
        target: a script and its arguments, or `-m`, a module and its arguments.
        nodes: how many nodes this host stands for.
        ranks_per_node: processes of each node.
        processors: of each rank.
        cores: of each processor; default an even share of those that the launcher may use.
        port: for control messages, on the loopback interface; default any free one.
        join_timeout_s: seconds that ranks wait for each other.
        mapper: name of the mapper to use, None for the default.
        log_dir: where every rank's log file goes; default a fresh folder among the temporary files.

    Raises:
        RequestError: a count below 1, a port or a time out of range, or no target.
    """

    target: tuple[str, ...]
    nodes: int = 1
    ranks_per_node: int = 1
    processors: int = 1
    cores: int | None = None
    port: int | None = None
    join_timeout_s: float = 60.0
    mapper: str | None = None
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        counts = {
            "--nodes": self.nodes,
            "--ranks-per-node": self.ranks_per_node,
            "--processors": self.processors,
            "--cores": 1 if self.cores is None else self.cores,
        }
        for option, count in counts.items():
            if count < 1:
                raise RequestError(f"{option}: expected at least 1, got {count}")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise RequestError(f"--port: expected 1 to 65535, got {self.port}; leave it out for a free one")
        if not 0 < self.join_timeout_s < float("inf"):
            raise RequestError(f"--join-timeout: expected seconds above 0, got {self.join_timeout_s}")
        if not self.target or self.target == ("-m",):
            raise RequestError("nothing to run; give a script.py, or -m and a module")

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    def check_target(self) -> None:
        """Look whether there is something to start.

        Raises:
            RequestError: the script or the module does not exist.
        """
        first = self.target[0]
        if first == "-m":
            name = self.target[1]
            top = name.partition(".")[0]
            finders = (BuiltinImporter.find_spec(top), FrozenImporter.find_spec(top))
            if not any(finders) and PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
                raise RequestError(f"there is no module {name!r}; is it installed, or below {Path.cwd()}?")
        elif not (Path(first).is_file() or (Path(first) / "__main__.py").is_file()):
            raise RequestError(f"there is no script {first!r}; looked in {Path.cwd()}")


def command(
    request: LaunchRequest, rank: int, head: str = "HEAD", token: str = "TOKEN"  # noqa: S107 - a placeholder to show
) -> tuple[list[str], dict[str, str]]:
    """Give the command line of a rank, and the variables that it gets beside the inherited ones.

    Args:
        request: the run.
        rank: which rank.
        head: the endpoint for control messages.
        token: the run's secret.
    """
    share = max(1, available_cores() // (request.world_size * request.processors))
    told = environment.LaunchEnvironment(
        rank=rank,
        world_size=request.world_size,
        local_rank=rank % request.ranks_per_node,
        node=rank // request.ranks_per_node,
        nodes=request.nodes,
        ranks_per_node=request.ranks_per_node,
        processors=request.processors,
        cores=share if request.cores is None else request.cores,
        head=head,
        token=token,
        mapper=request.mapper,
        join_timeout_s=request.join_timeout_s,
    )
    threads = dict.fromkeys(environment.THREAD_VARIABLES, str(told.cores * told.processors))
    # Unbuffered, so that the log of a rank that is killed has its last lines.
    return [sys.executable, "-u", *request.target], {**told.to_environ(), **threads}


def run(request: LaunchRequest) -> int:
    """Start all ranks, wait until the last one has ended, and give the exit status: 0, 1, 2 or 130.

    Rank 0's output passes through. Why a run failed is said on standard error, once.

    Args:
        request: the run.

    Raises:
        RequestError: there is no such script or module, or the log folder cannot be made.
        RunError: the port is taken, or a process cannot be started.
    """
    request.check_target()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with contextlib.closing(make_socket(context, zmq.ROUTER, "head")) as socket:
            socket.setsockopt(zmq.LINGER, 0)  # nobody is left to read when it closes
            endpoint = bind_or_explain(socket, LOOPBACK, request.port)
            return _Launch(request, socket, endpoint).run()
    finally:
        context.term()


def log_folder(chosen: Path | None) -> Path:
    """Make the folder of a run's log files: the one chosen, or a fresh one that only this user can read.

    Raises:
        RequestError: it cannot be made, or somebody else's folder is in its place.
    """
    base = chosen or Path(tempfile.gettempdir()) / f"maniple-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if chosen is not None:
            return chosen
        # Temporary folders are everybody's: another user may have put a link or a folder of this name there.
        if base.is_symlink() or base.stat().st_uid != os.getuid():
            raise RequestError(f"{base} belongs to another user; choose a folder with --log-dir")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                folder = base / (name if number == 1 else f"{name}-{number}")
                folder.mkdir(mode=0o700)
                break
    except OSError as error:
        raise RequestError(f"--log-dir: {base} cannot be used ({error.strerror}); choose another folder") from error
    return folder


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log file; none where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


@final
class _Pump(threading.Thread):
    """Carries a rank's output to a log file and on to the launcher's own."""

    def __init__(self, source: int, log: int, shown: TextIO) -> None:
        super().__init__(name=f"output {source}", daemon=True)
        self._source, self._log, self._shown = source, log, shown
        self.ending = threading.Event()

    def run(self) -> None:
        """Copy until the last writer has closed its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._source, selectors.EVENT_READ)
            sinks: list[Callable[[bytes], None]] = [self._keep, self._show]
            while True:
                if not selector.select(TICK_S):
                    # A process that left the rank's session may hold the other end open for ever.
                    if self.ending.is_set():
                        break
                    continue
                try:
                    data = os.read(self._source, 65536)
                except OSError:  # how the end of a terminal reads on Linux
                    break
                if not data:
                    break
                for sink in tuple(sinks):
                    try:
                        sink(data)
                    except (OSError, ValueError) as error:
                        sinks.remove(sink)  # the rank goes on, and so does the other sink
                        if sink == self._keep:
                            _say(f"the log of rank 0 is incomplete: {error}")
        os.close(self._source)

    def _keep(self, data: bytes) -> None:
        _write(self._log, data)

    def _show(self, data: bytes) -> None:
        try:
            number = self._shown.fileno()
        except OSError:  # a stream in memory
            self._shown.write(data.decode(errors="replace"))
            self._shown.flush()
        else:
            _write(number, data)


@final
class _Process:
    """One rank's process, in a session of its own, so that whatever it starts can be ended with it."""

    def __init__(self, request: LaunchRequest, rank: int, head: str, token: str, log: Path) -> None:
        self.rank, self.log = rank, log
        self.noticed: float | None = None
        self.told = False
        self._pumps: list[_Pump] = []
        argv, told = command(request, rank, head, token)
        variables = environment.inherited()
        variables.pop("MANIPLE_MAPPER", None)  # a run inside a run has a choice of its own
        variables.update(told)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        ends: list[int] = []
        try:
            outputs = [self._channel(stream, ends) for stream in (sys.stdout, sys.stderr)] if rank == 0 else [self._log] * 2
            self._popen = subprocess.Popen(
                argv,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - before any thread of ours is started
            )
        except OSError as error:
            raise RunError(f"rank {rank}: {argv[0]} cannot be started ({error.strerror})") from error
        finally:
            for end in ends:
                os.close(end)
        for pump in self._pumps:
            pump.start()

    def _channel(self, stream: TextIO, ends: list[int]) -> int:
        """The end that the rank writes to: a terminal where the launcher has one, so that progress bars live."""
        if stream.isatty():
            ours, theirs = os.openpty()
            attributes = termios.tcgetattr(theirs)
            attributes[1] &= ~termios.OPOST  # the launcher's own terminal translates line ends
            termios.tcsetattr(theirs, termios.TCSANOW, attributes)
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(stream.fileno(), termios.TIOCGWINSZ, bytes(8)))
        else:
            ours, theirs = os.pipe()
        ends.append(theirs)
        self._pumps.append(_Pump(ours, self._log, stream))
        return theirs

    @property
    def returncode(self) -> int:
        """The exit status, minus the signal's number where one ended it; only once it has ended."""
        return self._popen.wait()

    def ended(self) -> bool:
        """Whether the process has ended; then nothing is left of what it started, either."""
        if self._popen.returncode is None:
            # Looking without reaping keeps the process id, and so the group's, ours until the group is killed.
            if sys.platform == "linux":
                ending = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            else:
                ending = self._popen.poll() is not None
            if ending:
                self.end()
        return self._popen.returncode is not None

    def send(self, number: int) -> None:
        """Send a signal to the process and to what it started."""
        if self._popen.returncode is None:
            # macOS refuses (EPERM) where only ended processes are left
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)

    def end(self) -> None:
        """Kill what is left of it and wait for that."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def close(self, interrupted: Callable[[], bool]) -> None:
        """Wait until all of its output is written, for as long as whoever reads it takes; then close the log."""
        for pump in self._pumps:
            pump.ending.set()
        while any(pump.is_alive() for pump in self._pumps) and not interrupted():
            for pump in self._pumps:
                pump.join(TICK_S)
        if not any(pump.is_alive() for pump in self._pumps):
            os.close(self._log)


@final
class _Launch:
    """One run: its processes, the socket, and the head that decides; events go in, instructions come out."""

    def __init__(self, request: LaunchRequest, socket: zmq.Socket[bytes], endpoint: str) -> None:
        self._request, self._socket, self._endpoint = request, socket, endpoint
        self._token = secrets.token_hex(16)
        self._head = Head(request.world_size, request.ranks_per_node, request.join_timeout_s, self._token)
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._waker.reader, zmq.POLLIN)
        self._processes: list[_Process] = []
        self._spoke_last: set[int] = set()
        self._interrupts = self._interrupts_told = 0
        self._finish: Finish | None = None
        self._folder = log_folder(request.log_dir)

    def run(self) -> int:
        """Start everything, drive the head until it is finished, and say what there is to say."""
        with self._signals():
            try:
                for rank in range(self._request.world_size):
                    log = self._folder / f"rank-{rank}.log"
                    self._processes.append(_Process(self._request, rank, self._endpoint, self._token, log))
                while self._finish is None:
                    self._poller.poll(int(1000 * TICK_S))
                    self._waker.clear()
                    self._take_interrupts()
                    self._take_messages()
                    self._take_exits()
                    self._handle(Tick())
            finally:
                for process in self._processes:
                    process.end()
                patience = self._interrupts  # a reader that never takes the last output is interrupted, too
                for process in self._processes:
                    process.close(lambda: self._interrupts > patience)
                self._waker.close()
        self._report(self._finish)
        return self._finish.status

    def _handle(self, event: Event) -> None:
        for instruction in self._head.handle(event, time.monotonic()):
            match instruction:
                case SendTo(identity, message):
                    self._send(identity, encode(message))
                case Signal(ranks, number):
                    for rank in ranks:
                        self._processes[rank].send(number)
                case Finish():
                    self._finish = self._finish or instruction

    def _send(self, identity: bytes, data: bytes) -> None:
        try:
            self._socket.send_multipart([identity, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {errno.EHOSTUNREACH, errno.EAGAIN}:  # gone: its process's end tells why
                raise

    def _take_interrupts(self) -> None:
        while self._interrupts > self._interrupts_told:
            self._interrupts_told += 1
            self._handle(Interrupted())

    def _take_messages(self) -> None:
        for _ in range(1000):  # then the clock and the processes have their turn
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 2:
                    raise ProtocolError(f"message: expected 1 frame, got {len(frames) - 1}")
                message = decode(frames[1])
            except ProtocolError as error:
                self._send(frames[0], encode(Refused(str(error))))
                continue
            if isinstance(message, Goodbye | Failed):
                self._spoke_last.add(message.rank)
            self._handle(Received(frames[0], message))

    def _take_exits(self) -> None:
        now = time.monotonic()
        due: list[_Process] = []
        for process in self._processes:
            if process.told or not process.ended():
                continue
            if process.noticed is None:
                process.noticed = now
            # Its last messages may still be on their way, and they say more than its exit status.
            if process.rank in self._spoke_last or now - process.noticed >= LAST_WORDS_S:
                due.append(process)
        # Of several that ended at once, one that was killed is the cause, and one that ended well is not.
        for process in sorted(due, key=lambda process: (process.returncode >= 0, process.returncode == 0, process.rank)):
            process.told = True
            self._handle(ProcessExited(process.rank, process.returncode))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """While inside, signals end the run in order, and the end of a process wakes the loop."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals to the main thread alone; the loop then looks at every tick
            return

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            self._interrupts += 1
            self._waker.wake()

        def wake(_number: int, _frame: FrameType | None) -> None:
            self._waker.wake()

        handlers = {signal.SIGINT: interrupt, signal.SIGTERM: interrupt, signal.SIGHUP: interrupt, signal.SIGCHLD: wake}
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            # What is ignored stays ignored: nohup and shells' background jobs rely on it.
            if handler is wake or before[number] is not signal.SIG_IGN:
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _report(self, finish: Finish) -> None:
        if finish.message is not None:
            _say(finish.message if finish.status == 130 else f"error: {finish.message}")
        fault = finish.fault
        if finish.status == 2 and finish.message is None and self._processes[0].returncode != 2:
            # What was wrong was said where rank 0's output does not show it.
            fault = next((process.rank for process in self._processes if process.returncode == 2), None)
        if fault:
            log = self._processes[fault].log
            lines = tail(log)
            if lines:
                _say("\n".join([f"last lines of {log}:", *(f"  {line}" for line in lines)]))
        if finish.status == 1:
            _say(f"log files: {self._folder}")


def _die_with(parent: int) -> Callable[[], None] | None:
    """What a new process does first, so that it does not outlive a launcher that is killed; Linux alone has it."""
    if sys.platform != "linux":
        return None  # there, ranks notice that the head is silent
    prctl = ctypes.CDLL(None).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def _write(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except BlockingIOError:  # whoever shares the launcher's output made it non-blocking
            with selectors.DefaultSelector() as selector:
                selector.register(number, selectors.EVENT_WRITE)
                selector.select()


def _say(text: str) -> None:
    # A closed standard error takes nothing, and is no reason to leave processes behind.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the launcher speaks for all ranks
