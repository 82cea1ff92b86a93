"""Law 3 can fail: on every path that a tile takes, a copy that is not what was planned is not measured as planned.

A copy is shortened, made twice, or left out. Measured are then fewer or more bytes than predicted, for whoever copies
counts what it wrote and knows no schedule:

    path            who copies, and counts
    zeromq          the transport that is handed a tile
    loopback        the same within a process
    compiled lane   compiled code, into the memory of another rank
    push            a lane, likewise
    devices         a stream, between two devices of a rank
    peers           a stream, from memory of a device of another rank, or of the host, that both have open
    host            the copy engine, from a device of a rank to the memory of its host
    post            whoever ends a launch that is not traced, into a box
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from device_machine import device_machine
from placed_program import Placed, opened
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.process.error import RunError
from maniple.runtime.analysis.placed_use import AnalysedUse
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.control.world import World
from maniple.runtime.execution import mailbox
from maniple.runtime.lanes import movement_binding
from maniple.runtime.session.session import Session
from maniple.runtime.storage import copy_kernels, staging
from maniple.runtime.storage.copy_kernels import Push
from maniple.runtime.transports.transport import Delivery, Transport
from maniple.runtime.transports.zeromq import ZmqTransport
from maniple.testing import local_worlds

BREAKS = ("short", "twice", "missing")
SIGNS = {"whole": 0, "short": -1, "twice": 1, "missing": -1}
"""Of measured - predicted."""
Copy = Callable[[Any, Any], int]


def broken(copy: Copy, how: str) -> Copy:
    """A copy of half, made twice, or not made; of each it gives what the copy itself gave."""
    if how == "short":
        return lambda target, source: copy(half(target), half(source))
    if how == "twice":
        return lambda target, source: copy(target, source) + copy(target, source)
    return (lambda _, __: 0) if how == "missing" else copy


def half(tile: Any) -> Any:
    """A view of about half of a tile; of one element there is none."""
    axis = next((axis for axis, extent in enumerate(tile.shape) if extent > 1), None)
    if axis is None:
        return tile
    cut = slice(tile.shape[axis] // 2)
    return tile[(slice(None),) * axis + (cut,)] if axis else tile[cut]


class BrokenTransport(Transport):
    """A transport that is handed something else than its rank's tiles; whoever polls is told that they came whole.

    Args:
        real: the transport.
        how: what happens to each tile.
        sent: the size of every frame's tile, by sender and receiver; None for one without, -1 for one too many.
    """

    def __init__(self, real: Transport, how: str, sent: dict[tuple[int, int], deque[int | None]]) -> None:
        self.real, self.how, self.sent = real, how, sent
        self.rank, self.size = real.rank, real.size

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        frames = self.sent[self.rank, peer]
        frames.append(None if payload is None else payload.nbytes)
        if payload is not None and self.how == "short":
            payload = payload[: payload.nbytes // 2]
        if payload is not None and self.how == "missing":
            payload = None
        self.real.send(peer, header, payload, account)
        if payload is not None and self.how == "twice":
            frames.append(-1)
            self.real.send(peer, header, payload, account)

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        found = []
        for delivery in self.real.poll(timeout_s):
            size = self.sent[delivery.peer, self.rank].popleft()
            if size is not None and size >= 0:
                tile = bytes(delivery.payload or b"").ljust(size, b"\0")
                found.append(replace(delivery, payload=memoryview(tile)))
            elif size is None:
                found.append(delivery)
        return found

    def wake(self) -> None:
        self.real.wake()

    def count_bytes(self, account: int) -> int | None:
        return self.real.count_bytes(account)

    def total(self) -> int:
        return self.real.total()

    def close(self) -> None:
        self.real.close()


def trained(worlds: list[World], machine: mp.Machine | None = None) -> tuple[int, int]:
    """The bytes that the second step of a training moves: predicted, and measured."""
    graph = mp.Graph("small")
    logits = graph.linear(graph.relu(graph.linear(graph.input("x", (8, 12)), 16)), 10)
    graph.loss(graph.cross_entropy(logits, graph.input("y", (8,), dtype="int64")))
    machine = machine or mp.Machine.cpu(1, ranks=2)
    plan = mp.search(graph, machine, strategy="data_parallel")
    x, y = torch.rand(8, 12, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 10

    def body(world: World) -> tuple[int, int]:
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            for _ in range(2):
                trainer.step(x, y)
            moved = trainer.bytes()
        return moved["predicted"], moved["measured"]

    first, *rest = run_on_worlds(worlds, body)
    assert rest == [first] * len(rest)
    return first


def by_transport(how: str, monkeypatch: pytest.MonkeyPatch, *, zeromq: bool) -> tuple[int, int]:
    """A training whose tiles go through a transport."""
    worlds = local_worlds(2)
    transports = [world.transport for world in worlds]
    if zeromq:
        sockets = [ZmqTransport(rank, 2, "token") for rank in range(2)]
        for socket in sockets:
            socket.connect([socket.endpoint for socket in sockets])
        transports = [*sockets]
    sent: dict[tuple[int, int], deque[int | None]] = defaultdict(deque)
    ends = [BrokenTransport(cast("Transport", transport), how, sent) for transport in transports]
    try:
        return trained([replace(world, transport=end) for world, end in zip(worlds, ends, strict=True)])
    finally:
        for end in ends:
            end.close()


def by_zeromq(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    return by_transport(how, monkeypatch, zeromq=True)


def by_loopback(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    return by_transport(how, monkeypatch, zeromq=False)


def by_push(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """A training whose lanes write into each other's memory, tiles large and small."""
    for name in ("copy_into", "_copy_brief"):
        monkeypatch.setattr(copy_kernels, name, broken(getattr(copy_kernels, name), how))
    return trained(local_worlds(2, shared=True))


def by_devices(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """A training on two devices of one rank."""
    copy = broken(staging.copy_into, how)

    def onto_zeros(target: torch.Tensor, source: torch.Tensor) -> int:
        target.zero_()  # what was never written is NaN there, at which a training ends
        return copy(target, source)

    monkeypatch.setattr(staging, "copy_into", onto_zeros)
    return trained(local_worlds(1, processors=2, device="null"))


def by_peers(how: str, monkeypatch: pytest.MonkeyPatch, nodes: int = 1) -> tuple[int, int]:
    """A training on devices of two ranks; broken is what the receiver's stream copies."""
    whole, copy = staging.copy_into, broken(staging.copy_into, how)

    def landing(target: torch.Tensor, source: torch.Tensor) -> int:
        if not threading.current_thread().name.endswith("arrivals"):
            return whole(target, source)
        target.zero_()
        return copy(target, source)

    monkeypatch.setattr(staging, "copy_into", landing)
    worlds = local_worlds(2, nodes, device="null", shared=True)
    found = trained(worlds)
    assert [world.transport.total() for world in worlds if world.transport is not None] == [0, 0]
    return found


def by_peers_over_the_host(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    return by_peers(how, monkeypatch, nodes=2)  # whose null devices are the same, each the first of its node


def by_host(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Launches on a device of a rank and on its CPU in turn, whose tiles land in the memory of the host."""
    monkeypatch.setattr(copy_kernels, "copy_into", broken(copy_kernels.copy_into, how))
    return launched(local_worlds(1, device="null"), device_machine(1, 1, 1), monkeypatch)


def by_post(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Launches on two ranks in turn whose tiles go through boxes."""
    monkeypatch.setattr(mailbox, "copy_into", broken(mailbox.copy_into, how))
    return launched(local_worlds(2, shared=True), mp.Machine.cpu(1, ranks=2), monkeypatch)


@mp.task
def double(x: mp.ReadWrite) -> None:
    x *= 2


@double.variant("cuda")
def double_on_a_device(x: torch.Tensor) -> None:
    x *= 2


def launched(worlds: list[World], machine: mp.Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The bytes that launches on two processors in turn move: as analysed, and as measured."""
    planned: dict[int, int] = defaultdict(int)
    plain = ProgramAnalysis.launch

    def noted(self: ProgramAnalysis, launch: object, **options: bool) -> tuple[AnalysedUse, ...]:
        found = plain(self, launch, **options)  # type: ignore[arg-type]
        planned[id(self)] += sum(4 * move.elements for use in found for move in use.moves)
        return found

    monkeypatch.setattr(ProgramAnalysis, "launch", noted)

    def body(world: World) -> None:
        session = opened(world, machine=machine)
        x = session.region((10, 6), "float32", "x")
        session.write(x, torch.ones(10, 6))
        for number in range(6):
            session.launch(double, x, mapper=Placed([number % 2]))
        session.fence()

    run_on_worlds(worlds, body)
    (predicted,) = set(planned.values())
    ways = [way for world in worlds for way in (world.transport, world.shared) if way is not None]
    return predicted, sum(world.local.total for world in worlds) + sum(way.total() for way in ways)


@mp.task
def smooth(x: mp.Read, y: mp.WriteDiscard) -> None:
    raise NotImplementedError


@smooth.variant("numba")
def smooth_compiled(x: Any, y: Any) -> None:
    for i in range(len(y)):
        y[i] = x[i] + x[len(x) - 1]


class Compiled(mp.Mapper):
    """Chooses the compiled body."""

    def map_task(self, task: mp.plugins.TaskView) -> mp.plugins.TaskMapping:
        return mp.plugins.TaskMapping("numba" if "numba" in task.variants else task.variants[0])


def by_compiled_lane(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Replays of a compiled stencil with halos on two ranks that share memory."""
    box, called = Push.box, Push.__call__
    interpreted: list[threading.Thread] = []

    def words(self: Push, axes: int) -> list[int] | None:
        found = box(self, axes)
        assert found is not None
        assert found[3:6] == [1, 0, 0]
        if how == "short":
            found[2] //= 2
        elif how != "whole":
            found[3] = 2 if how == "twice" else 0
        return found

    def noted(self: Push) -> None:
        interpreted.append(threading.current_thread())
        called(self)

    monkeypatch.setattr(Push, "box", words)
    monkeypatch.setattr(Push, "__call__", noted)

    def body(world: World) -> tuple[int, int]:
        session = opened(world, machine=mp.Machine.cpu(1, ranks=2))
        x, y = (session.region((16,), "float64", name) for name in "xy")
        own = mp.blocks((2,))
        session.write(x, torch.ones(16, dtype=torch.float64))
        totals, before = [], []
        for _ in range(6):
            with session.trace("step"):
                for source, target in ((x, y), (y, x)):
                    session.index_launch(smooth, own.colors, source[mp.halo(own, (1,))], target[own], mapper=Compiled())
            session.fence()
            before.append(len(interpreted))
            totals.append(world.shared.total() if world.shared is not None else 0)
        assert before[-1] == before[-2], "a push was interpreted in the last replay"
        return predicted_by(session), totals[-1] - totals[-2]

    found = run_on_worlds(local_worlds(2, shared=True), body)
    return found[0][0], sum(measured for _, measured in found)


def predicted_by(session: Session) -> int:
    """The bytes that a replay of the step moves by its schedule."""
    (loaded,) = session.tracing.traces["step"]._loaded
    return loaded.replay.schedule.total_bytes


PATHS = (
    by_zeromq,
    by_loopback,
    by_compiled_lane,
    by_push,
    by_devices,
    by_peers,
    by_peers_over_the_host,
    by_host,
    by_post,
)


@pytest.mark.parametrize("how", SIGNS)
@pytest.mark.parametrize("path", PATHS)
def test_a_broken_copy_is_measured_as_what_it_is(
    path: Callable[[str, pytest.MonkeyPatch], tuple[int, int]], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted, measured = path(how, monkeypatch)
    assert predicted > 0
    assert (measured > predicted) - (measured < predicted) == SIGNS[how]


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("direction", ["out of a device", "into a device"])
def test_a_tile_that_was_not_staged_whole_goes_no_further(
    direction: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "copy_into" if direction == "out of a device" else "copied_bytes"
    monkeypatch.setattr(staging, name, broken(getattr(staging, name), how))
    with pytest.raises(RunError, match="bytes of a tile were staged; expected 240 bytes"):
        launched(local_worlds(1, device="null"), device_machine(1, 1, 1), monkeypatch)


@pytest.mark.parametrize("how", ["short", "missing"])
def test_a_tile_that_is_too_short_is_refused_by_whoever_gets_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = movement_binding.bind_pack

    def shortened(*arguments: Any) -> Callable[[], memoryview]:
        whole = pack(*arguments)
        return lambda: whole()[: 120 if how == "short" else 0]

    monkeypatch.setattr(movement_binding, "bind_pack", shortened)
    for shared in (False, True):
        with pytest.raises(RunError, match=f"sent a tile of {120 if how == 'short' else 0} bytes; expected 240 bytes"):
            launched(local_worlds(2, shared=shared), mp.Machine.cpu(1, ranks=2), monkeypatch)
