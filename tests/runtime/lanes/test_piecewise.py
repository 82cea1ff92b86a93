"""Pieces of exchanges: the same elements go and are folded, alike at both ends, and nothing but large tiles is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maniple as mp
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.lanes import piecewise
from maniple.runtime.lanes.movement_binding import Place, bind_movement
from maniple.runtime.lanes.piecewise import LEAST_BYTES, MOST_BYTES
from maniple.runtime.machine.machine_part import Host, Rate
from maniple.runtime.schedule.schedule import Piece, Transfer
from maniple.testing.worlds import local_worlds, run_on_worlds

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3)
ITEM, SIZE = 4, 16


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise, "LEAST_BYTES", SIZE)
    monkeypatch.setattr(piecewise, "PIECE_S", 0.0)
    monkeypatch.setattr(piecewise, "MOST_PIECES", 6)


def exchange(ranks: int, shape: list[int]) -> tuple[list[Transfer], list[Piece]]:
    """A direct all-reduce of a block for each rank: rank r owns rows r * shape[0] on, in its instance r.

    What rank s sends to rank r lands in instance 100 + ranks * r + s.
    """
    whole = Rect.of_shape((ranks * shape[0], *shape[1:]))
    blocks = whole.split(0, ranks)
    pairs = [(sender, owner) for sender in range(ranks) for owner in range(ranks) if sender != owner]
    up = [Transfer(s, 100 + ranks * r + s, blocks[r], feeds=r) for s, r in pairs]
    down = [Transfer(s, r, blocks[s], after=s) for s, r in pairs]
    folds = [
        Piece(r, r, block, tuple(r if s == r else 100 + ranks * r + s for s in range(ranks)), "+")
        for r, block in enumerate(blocks)
    ]
    return [*up, *down], folds


def part_of(
    rank: int, transfers: list[Transfer], folds: list[Piece], memory: dict[int, int]
) -> tuple[list[Transfer], list[Piece]]:
    """What a rank lists of an exchange: its own pushes and folds, numbered anew; -1 for folds of others."""
    kept = [number for number, fold in enumerate(folds) if fold.memory == rank]
    renumber = {number: place for place, number in enumerate(kept)}
    listed = [
        Transfer(push.source, push.target, push.rect, renumber.get(push.feeds, -1), renumber.get(push.after, -1))
        for push in transfers
        if rank in (memory[push.source], memory[push.target])
    ]
    return listed, [folds[number] for number in kept]


@given(st.integers(2, 4), SHAPES, st.integers(0, 2**32))
def test_an_all_reduce_in_pieces_gives_the_bits_of_one_that_is_whole(ranks: int, shape: list[int], seed: int) -> None:
    transfers, folds = exchange(ranks, shape)
    memory = {
        number: number if number < 100 else (number - 100) // ranks for push in transfers for number in push_ends(push)
    }
    bounds = Rect.of_shape((ranks * shape[0], *shape[1:]))
    values = [torch.randn(bounds.shape, generator=torch.Generator().manual_seed(seed + rank)) for rank in range(ranks)]

    def reduce(*, pieces: bool) -> list[torch.Tensor]:
        held = {number: torch.zeros(bounds.shape) for number in memory}
        for rank in range(ranks):
            held[rank].copy_(values[rank])
        sides = []
        for rank in range(ranks):
            listed = part_of(rank, transfers, folds, memory)
            cut = piecewise.cut(*listed, ITEM, SIZE) if pieces else listed
            place = Place(tuple(range(ranks)), {rank: None})
            view = lambda number, rect: held[number][rect.slices(bounds.lo)]  # noqa: E731
            sides.append(bind_movement(0, *cut, view, memory.__getitem__, place))
        for later in (False, True):  # contributions first, in the order of each pair, and what waits for folds then
            for sender, (movement, outgoing, _) in enumerate(sides):
                for push in outgoing:
                    if (push in movement.later) is later:
                        arrivals = sides[push.peer][2]
                        arrival = next(one for one in arrivals if one.peer == sender)
                        arrivals.remove(arrival)
                        assert arrival.size == push.size, "both ends cut alike"
                        arrival.land(push.pack(), ())
                        if arrival.feeds >= 0:
                            sides[push.peer][0].folds[arrival.feeds].parts -= 1
            for movement, _, _ in sides if not later else ():
                for fold in movement.folds.values():
                    assert fold.parts == 0
                    fold.fold(())
        assert not any(incoming for _, _, incoming in sides)
        return [held[rank] for rank in range(ranks)]

    whole, cut = reduce(pieces=False), reduce(pieces=True)
    assert all(torch.equal(one, other) for one, other in zip(whole, cut, strict=True))


def push_ends(push: Transfer) -> tuple[int, int]:
    """The instances of a push."""
    return push.source, push.target


def test_a_large_tile_goes_in_pieces_along_its_first_axis_with_any_length() -> None:
    pushes, folds = piecewise.cut(*exchange(2, [1, 8, 3]), ITEM, SIZE)
    assert [push.rect.shape for push in pushes if push.feeds == 0 or push.after == 0] == [(1, 2, 3)] * 2
    assert len(folds) == 2 * 6
    assert [push.feeds for push in pushes[:12]] == [*range(6, 12), *range(6)]
    assert [push.after for push in pushes[12:]] == list(range(12))


def test_small_and_sparse_tiles_stay_whole() -> None:
    pushes, folds = exchange(2, [7])
    assert piecewise.cut(pushes, folds, ITEM, SIZE) == (tuple(pushes), tuple(folds))
    sparse = RectSet.of([Rect((0,), (40,)), Rect((50,), (90,))])
    push, fold = Transfer(0, 10, sparse, feeds=0), Piece(1, 1, sparse, (10, 1), "+")
    assert piecewise.cut([push], [fold], ITEM, SIZE) == ((push,), (fold,))


def test_a_fold_that_waits_for_other_elements_than_its_own_stays_whole() -> None:
    """Its pushes are cut, for the other end, which may not know of the fold, cuts them; the fold waits for all."""
    whole, half = Rect((0,), (16,)), Rect((0,), (8,))
    pushes = [Transfer(1, 10, whole, feeds=0), Transfer(2, 11, half, feeds=0), Transfer(0, 1, whole, after=0)]
    cut, folds = piecewise.cut(pushes, [Piece(0, 0, whole, (0, 10, 11), "+")], ITEM, SIZE)
    assert [fold.rect for fold in folds] == [whole]
    assert [(push.rect.shape, push.feeds, push.after) for push in cut] == [
        *[((4,), 0, -1)] * 4,
        *[((4,), 0, -1)] * 2,
        *[((4,), -1, 0)] * 4,
    ]


def test_a_training_over_hosts_has_the_same_losses_and_bytes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def train(world: World) -> tuple[list[float], int]:
        g = mp.Graph("net")
        x, y = g.input("x", (6, 4)), g.input("y", (6,), dtype="int64")
        g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 32)), 3), y))
        plan = mp.search(g, mp.Machine.detect(world), strategy="data_parallel")
        values = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
        with mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            losses = [float(trainer.step(x=values, y=torch.arange(6) % 3)) for _ in range(4)]
            return losses, trainer.bytes()["measured"]

    def counting(transfers: Sequence[Transfer], pieces: Sequence[Piece], itemsize: int, size: int) -> object:
        found = cut(transfers, pieces, itemsize, size)
        made.append(len(found[0]) - len(transfers))
        return found

    cut = piecewise.cut
    monkeypatch.setattr(piecewise, "cut", counting)
    in_pieces = run_on_worlds(local_worlds(3, hosts=3), train)
    assert max(made) > 0
    monkeypatch.setattr(piecewise, "MOST_PIECES", 1)
    assert run_on_worlds(local_worlds(3, hosts=3), train) == in_pieces


@pytest.mark.parametrize(
    ("rate", "expected"), [(1e6, LEAST_BYTES), (1e9, 500_000), (1e11, MOST_BYTES)], ids=["slow", "10 Gbit/s", "fast"]
)
def test_a_piece_takes_half_a_millisecond_between_hosts(
    rate: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    machine = mp.Machine.cpu(1, ranks=4)
    hosts = tuple(Host(number, f"host{number}") for number in range(2))
    memories = tuple(replace(memory, host=memory.id // 2) for memory in machine.memories)
    machine = replace(machine, hosts=hosts, memories=memories, links=(), between_hosts=Rate(1e-4, rate))
    assert piecewise.piece_bytes(machine) == expected
