"""Laws 1 and 3 for launches that are not traced: any transport gives the same bits and moves the planned bytes.

The same launches come again and again, with values of their own, so that what is kept of them is used.
"""

from __future__ import annotations

import threading

import pytest
import torch
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.mappers.default import DefaultMapper
from maniple.runtime.analysis.placed_use import AnalysedUse
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.control.world import World
from maniple.runtime.execution import mailbox
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.session.session import Session
from maniple.runtime.transports import shared_memory
from maniple.testing import local_worlds

ROWS, COLUMNS, ROUNDS = 12, 5, 6


@mp.task
def smooth(scale: float, output: mp.WriteDiscard, near: mp.Read) -> None:
    """Weigh a tile with what lies beside it."""
    output.copy_(near[: output.shape[0]] * scale + near.sum())


@mp.task
def gather(source: mp.Read, sums: mp.ReduceSum) -> float:
    """Add a tile to what all add to."""
    sums += source.sum(0)
    return float(source.sum())


@mp.task
def spread(sums: mp.Read, target: mp.ReadWrite) -> None:
    """Add what all have added to a tile."""
    target += sums


def program(world: World) -> tuple[list[torch.Tensor], list[float]]:
    session = Session(RankRuntime.of(world), Machine.detect(world), DefaultMapper())
    a, b = (session.region((ROWS, COLUMNS), "float64") for _ in range(2))
    sums = session.region((COLUMNS,), "float64")
    start = torch.arange(ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS)
    session.write(a, start)
    session.write(b, -start)
    own = mp.rectangles([((3 * i, 0), (3 * i + 3, COLUMNS)) for i in range(4)])
    near = mp.rectangles([((max(0, 3 * i - 1), 0), (min(ROWS, 3 * i + 4), COLUMNS)) for i in range(4)])
    given = []
    for number in range(ROUNDS):
        session.index_launch(smooth, 4, 1.0 / (number + 2), b[own], a[near])
        session.fill(sums, 0.0)
        futures = session.index_launch(gather, 4, b[own], sums)
        session.index_launch(spread, 4, sums, a[own])
        if number == 2:  # whatever was kept of launches is tied to storage, which moves here
            session.read(a)
        given.append(float(futures.reduce("+")))
    return [session.read(region) for region in (a, b, sums)], given


def alone() -> tuple[list[torch.Tensor], list[float]]:
    """The same on plain tensors."""
    a = torch.arange(ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS)
    b, sums, given = -a, torch.zeros(COLUMNS, dtype=torch.float64), []
    for number in range(ROUNDS):
        tiles = [a[max(0, 3 * i - 1) : min(ROWS, 3 * i + 4)] for i in range(4)]
        b = torch.cat([tile[:3] / (number + 2) + tile.sum() for tile in tiles])
        sums = b.sum(0)
        given.append(float(b.sum()))
        a = a + sums
    return [a, b, sums], given


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_transport_gives_the_same_bits(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: dict[int, int] = {}
    plain, lock = ProgramAnalysis.launch, threading.Lock()

    def noted(self: ProgramAnalysis, launch: object, **options: bool) -> tuple[AnalysedUse, ...]:
        found = plain(self, launch, **options)  # type: ignore[arg-type]
        size = sum(8 * move.elements for use in found for move in use.moves)
        with lock:
            planned[id(self)] = planned.get(id(self), 0) + size
        return found

    monkeypatch.setattr(ProgramAnalysis, "launch", noted)
    outcomes = []
    for shared in (True, False):
        planned.clear()
        worlds = local_worlds(ranks, shared=shared)
        found = run_on_worlds(worlds, program)
        moved = [0 if world.shared is None else world.shared.total() for world in worlds]
        sent = [0 if world.transport is None else world.transport.total() for world in worlds]
        assert sum(sent if shared else moved) == 0
        assert set(planned.values()) == {sum(moved if shared else sent)}
        outcomes += found
    wanted, sums = alone()
    for regions, given in outcomes:
        assert given == outcomes[0][1]
        assert given == pytest.approx(sums, rel=1e-12)
        for mine, first, its in zip(regions, outcomes[0][0], wanted, strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, its, rtol=1e-12, atol=0.0)


def test_a_box_that_is_full_holds_its_sender_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two tiles and few bytes in flight, everything still arrives, in order."""
    monkeypatch.setattr(mailbox, "ENTRIES", 2)
    monkeypatch.setattr(shared_memory, "ENTRIES", 2)
    worlds = local_worlds(2, shared=True)
    for world in worlds:
        RankRuntime.of(world).resources._credit_bytes = 64
    found = run_on_worlds(worlds, program)
    assert found[0][1] == pytest.approx(alone()[1], rel=1e-12)
