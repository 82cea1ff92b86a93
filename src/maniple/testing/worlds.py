"""Worlds of one process: ranks that are threads of it, or take turns in one thread, connected by loopback."""

from __future__ import annotations

import faulthandler
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from maniple.process.error import RequestError, RunError
from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.loopback import ControlHub, LoopbackHub
from maniple.runtime.control.stepper import Stepper
from maniple.runtime.control.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.transports.shared_memory import SharedMemory

__all__: list[str] = []

DEADLINE_S = 90.0

T = TypeVar("T")


def local_worlds(
    size: int,
    nodes: int | None = None,
    processors: int = 1,
    cores: int = 1,
    shuffle: int | None = None,
    *,
    shared: bool = False,
    hosts: int = 1,
    device: str = "cpu",
    stepped: bool = False,
) -> list[World]:
    """One world for each of some ranks that this process holds, connected without sockets.

    Args:
        size: number of ranks.
        nodes: number of nodes that they pretend to be; default one per rank.
        processors: of each rank.
        cores: of each processor.
        shuffle: a seed, to have deliveries of different peers overtake each other.
        shared: whether they share memory, as processes of one host do.
        hosts: number of hosts over which they spread; those of one share memory.
        device: what their processors are.
        stepped: whether they are taken on by the thread that makes their programs; see `Stepper`.

    Raises:
        RequestError: the ranks do not spread evenly, or are to share memory and to be stepped.
    """
    nodes = size if nodes is None else nodes
    per_node, per_host = size // nodes, size // hosts
    for count, kind in ((nodes, "nodes"), (hosts, "hosts")):
        if size % count:
            raise RequestError(f"local_worlds: expected ranks that spread evenly over {count} {kind}, got {size}")
    if shared and stepped:
        raise RequestError("local_worlds: expected ranks that share memory or are stepped, got both")
    memories = [
        memory
        for first in range(0, size if shared and per_host > 1 else 0, per_host)
        for memory in _sharing(range(first, first + per_host))
    ]
    stepper = Stepper() if stepped else None
    hub, control = LoopbackHub(size, shuffle), ControlHub(size, per_node, alone=stepped)
    return [
        World(
            rank=rank,
            size=size,
            node=rank // per_node,
            nodes=nodes,
            ranks_per_node=per_node,
            processors=processors,
            cores=cores,
            hosts=tuple(f"host{rank // (per_node if hosts == 1 else per_host)}" for rank in range(size)),
            control=control.endpoint(rank),
            transport=hub.endpoint(rank) if size > 1 else None,
            shared=memories[rank] if memories else None,
            device=device,
            stepper=stepper,
        )
        for rank in range(size)
    ]


def _sharing(ranks: range) -> list[SharedMemory]:
    """The memory of each of some ranks that share it."""
    from maniple.runtime.transports.shared_memory import SharedMemory, shared_files, wakeup_pipes

    with shared_files(len(ranks)) as files, wakeup_pipes(len(ranks)) as pipes:
        of_ranks = dict(zip(ranks, files, strict=True)), dict(zip(ranks, pipes, strict=True))
        return [SharedMemory(rank, *of_ranks) for rank in ranks]


def run_on_worlds(worlds: list[World], body: Callable[[World], T], deadline_s: float = DEADLINE_S) -> list[T]:
    """What a program returned on each rank; the first error that was not an echo of another rank's is raised.

    Each rank is a thread. One that raises stops the others, as a process that dies does. The ranks are closed in the
    end, and their worlds cannot be used again.

    Args:
        worlds: one for each rank, not stepped.
        body: the program; it takes its rank's world.
        deadline_s: seconds for all ranks together.

    Raises:
        RunError: a rank did not end in time; the stacks of all threads were printed.
    """
    from maniple.runtime.execution.rank import RankRuntime

    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def main(world: World) -> None:
        try:
            results[world.rank] = body(world)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            world.control.fail("", f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=main, args=(world,), name=f"rank {world.rank}", daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    end = monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if stuck:
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        for world in worlds:
            world.control.fail("", "the deadline of the test has passed")
        raise RunError(f"{', '.join(stuck)} did not end within {deadline_s:.0f} s; errors elsewhere: {errors}")
    try:
        # A task's failure reaches the program as RunError on its own rank, and as RankStopped elsewhere.
        for error in sorted(errors, key=lambda error: (isinstance(error, RankStopped), isinstance(error, RunError))):
            raise error
        return [results[world.rank] for world in worlds]
    finally:
        for world in worlds:
            RankRuntime.of(world).close()
