"""The world: the ranks that run one program together, and this one's place among them."""

from __future__ import annotations

import atexit
import platform
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, final

from maniple.process import environment
from maniple.process.error import RequestError
from maniple.process.headway import Headway
from maniple.process.inventory import available_cores, bind_to
from maniple.runtime.control.attachment import attach
from maniple.runtime.control.control import Control, SoloControl, place
from maniple.runtime.control.stepper import Stepper
from maniple.runtime.control.turn import Turn
from maniple.runtime.transports.transport import Guard, Meter, Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.process.environment import LaunchEnvironment
    from maniple.runtime.transports.shared_memory import SharedMemory

__all__: list[str] = []


@final
@dataclass(frozen=True, eq=False)
class World:
    """One rank's view of all ranks. Two worlds are equal only when they are the same object.

    Args:
        rank: this rank.
        size: number of ranks.
        node: this rank's node, from 0.
        nodes: number of nodes.
        ranks_per_node: ranks of each node.
        processors: processors of each rank.
        cores: cores of each processor.
        hosts: host of each rank.
        control: the control plane.
        transport: the data plane; None in a world of one rank.
        shared: the memory that the ranks of this host share, for replays; None where there is none.
        mapper: name of the mapper that the launcher was given, if any.
        launched: whether a launcher fixed how many processors there are.
        record: file for a timeline of the whole run, if the launcher was given one.
        report: file for what trainers report when they go, if the launcher prints it.
        deterministic: whether launches that are not traced run in the order of the program.
        device: name of what its processors are, such as `cpu`.
        machine: file of a machine in place of the one that is found; None for none.
        local: counts the bytes that go from one memory of this rank to another.
        stepper: what takes on this rank together with others of the process; None where it has threads.
        headway: how far this rank has come, for whoever watches it.
        turn: which thread makes its program.
        attempt: how often the run was begun before, and began again since: see `maniple run --max-restarts`.
        memory_bytes: the most that the program may have of each memory, if the launcher was told so.
        compiles: whether torch compiles what trainers' bodies call, where a trainer does not say.
    """

    rank: int
    size: int
    node: int
    nodes: int
    ranks_per_node: int
    processors: int
    cores: int
    hosts: tuple[str, ...]
    control: Control
    transport: Transport | None
    shared: SharedMemory | None = None
    mapper: str | None = None
    launched: bool = True
    record: str | None = None
    report: str | None = None
    deterministic: bool = False
    device: str = "cpu"
    machine: str | None = None
    local: Meter = field(default_factory=Meter)
    stepper: Stepper | None = None
    headway: Headway = field(default_factory=Headway)
    turn: Turn = field(default_factory=Turn)
    attempt: int = 0
    memory_bytes: int | None = None
    compiles: bool = False

    @classmethod
    def solo(cls, processors: int = 1, cores: int | None = None) -> Self:
        """A world of this process alone.

        Args:
            processors: how many.
            cores: of each processor; default an even share of those that this process may use.
        """
        share = max(1, available_cores() // processors) if cores is None else cores
        host = platform.node() or "localhost"
        return cls(0, 1, 0, 1, 1, processors, share, (host,), SoloControl(), None, launched=False)

    def place(self) -> str:
        """Name this rank as messages do: `node 1 (rank 3)`."""
        return place(self.rank, self.ranks_per_node)

    @contextmanager
    def busy(self, seconds: float) -> Iterator[None]:
        """Say that this rank's program does something that takes long, inside; the run goes on meanwhile.

        A rank that others wait for, and that does not get on for `--hang-timeout` seconds, ends the run. Inside, it may
        take so many seconds instead:

            with mp.world().busy(1200):
                table = json.load(file)

        Args:
            seconds: how long it may take, above 0.

        Raises:
            RequestError: that is no time.
            RankStopped: the run was stopped.
        """
        if not 0 < seconds < float("inf"):
            raise RequestError(f"busy: expected seconds above 0, got {seconds!r}")
        with self.headway.busy(seconds):
            self.control.tell_headway()
            yield


_lock = threading.Lock()
_joined: list[World] = []


def current() -> World:
    """The world of this process, joined at the first call; from any thread.

    Started by the launcher or torchrun, a process waits here until all ranks are there. Else it is a world of its own.

    Raises:
        RequestError: the launcher's variables are malformed.
        RunError: the world that came up is not the one that was asked for, or the run was stopped.
    """
    with _lock:
        if not _joined:
            launch, place = environment.read(), environment.read_place()
            if place is not None:
                launch = attach(place)
            _joined.append(World.solo() if launch is None else _join(launch))
        return _joined[0]


def joined() -> World | None:
    """The world of this process, if it has joined one."""
    return _joined[0] if _joined else None


def is_current(world: World) -> bool:
    """Say whether a world is this process's, and not one that a test made."""
    return world in _joined


def leave() -> None:
    """Leave the world of this process: wait until every rank's program has ended, and close what connects them.

    Happens by itself at the end of a program.
    """
    with _lock:
        for world in _joined:
            world.control.close()
            if world.transport is not None:
                world.transport.close()
        _joined.clear()


def _join(launch: LaunchEnvironment) -> World:
    from maniple.process import stacks
    from maniple.runtime.control import exit_hook
    from maniple.runtime.control.coordinator_client import CoordinatorClient
    from maniple.runtime.transports.registry import TRANSPORTS
    from maniple.runtime.transports.shared_memory import SharedMemory

    exit_hook.install()
    if launch.shared:
        # The compiler comes with it: at the first tile it would be waited for, and here all ranks load it at once.
        import_module("maniple.runtime.transports.shared_counter")
    opened = TRANSPORTS.lookup(launch.transport) if launch.world_size > 1 else None
    wanted: dict[str, Any] = {"guard": guard} if (guard := Guard(launch.encrypt_tiles, launch.verify_tiles)) else {}
    place = launch.rank, launch.world_size, launch.token, launch.interface
    transport = None if opened is None else opened(*place, **wanted)
    headway = Headway()
    control = CoordinatorClient(
        launch, "" if transport is None else transport.endpoint, headway, stacks.answer(launch.log)
    )
    try:
        welcome = control.join()
        exit_hook.attend(control)
        if transport is not None:
            transport.connect(welcome.endpoints)
    except BaseException:
        if transport is not None:  # what it has made in the file system goes with it
            transport.close()
        raise
    atexit.register(leave)
    if launch.bound:  # the threads of the control plane and of sockets, which run by now, go wherever a core is idle
        bind_to(launch.bound)
    boards = dict(enumerate(launch.shared, launch.shared_from))
    pipes = dict(enumerate(launch.wakeup_pipes, launch.shared_from))
    shared = SharedMemory(launch.rank, boards, pipes) if boards else None
    return World(
        rank=launch.rank,
        size=launch.world_size,
        node=launch.node,
        nodes=launch.nodes,
        ranks_per_node=launch.ranks_per_node,
        processors=launch.processors,
        cores=launch.cores,
        hosts=welcome.hosts,
        control=control,
        transport=transport,
        shared=shared,
        mapper=launch.mapper,
        record=launch.record,
        report=launch.report,
        memory_bytes=launch.memory_bytes,
        compiles=launch.compiles,
        deterministic=launch.deterministic,
        device=launch.device,
        machine=launch.machine,
        headway=headway,
        attempt=welcome.attempt,
    )
