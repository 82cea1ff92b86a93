"""Binding of movements: which pushes and folds are this rank's, and what they touch."""

from __future__ import annotations

import torch

from maniple.regions.rectangle import Rect
from maniple.runtime.lanes.movement_binding import Place, bind_movement
from maniple.runtime.schedule.schedule import Piece, Transfer

WHOLE = Rect((0,), (4,))
LEFT, RIGHT = Rect((0,), (2,)), Rect((2,), (4,))


class Storage:
    """Instances 0 and 1 in memories 0 and 1, and the staging instances 10 and 11."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.tensors = {number: torch.zeros(4) for number in (memory, 10 + memory)}

    def view(self, instance: int, rect: Rect) -> torch.Tensor:
        return self.tensors[instance][rect.lo[0] : rect.hi[0]]


def here(memory: int) -> Place:
    """The place of a rank with one memory of the host's, of three ranks."""
    return Place((0, 1, 2), {memory: None})


def memory_of(instance: int) -> int:
    return instance % 10


def test_a_copy_is_a_push_on_one_side_and_an_arrival_on_the_other() -> None:
    storages = [Storage(0), Storage(1)]
    storages[0].tensors[0] += torch.arange(4.0)
    push = Transfer(0, 1, Rect((1,), (3,)))
    sides = [bind_movement(5, [push], (), storage.view, memory_of, here(storage.memory)) for storage in storages]
    (movement, (out,), none), (_, nothing, (arrival,)) = sides
    assert (none, nothing) == ([], [])
    assert (out.peer, out.size, arrival.peer, arrival.size, arrival.feeds) == (1, 8, 0, 8, -1)
    assert (movement.row, movement.outgoing, movement.later) == (5, [out], [])
    arrival.land(out.pack(), ())
    assert storages[1].tensors[1].tolist() == [0.0, 1.0, 2.0, 0.0]


def test_a_rank_between_others_takes_no_part() -> None:
    storage = Storage(2)
    movement, outgoing, incoming = bind_movement(0, [Transfer(0, 1, WHOLE)], (), storage.view, memory_of, here(2))
    assert (outgoing, incoming, movement.folds) == ([], [], {})


def test_an_all_reduce_folds_a_half_at_each_rank_and_sends_it_on() -> None:
    """Each rank sends the half that it does not own, folds its own, and sends the fold to the other."""
    transfers = [
        Transfer(0, 11, RIGHT, feeds=1),
        Transfer(1, 10, LEFT, feeds=0),
        Transfer(0, 1, LEFT, after=0),
        Transfer(1, 0, RIGHT, after=1),
    ]
    pieces = [Piece(0, 0, LEFT, (0, 10), "+"), Piece(1, 1, RIGHT, (11, 1), "+")]
    storages = [Storage(0), Storage(1)]
    storages[0].tensors[0] += torch.tensor([1.0, 2.0, 3.0, 4.0])
    storages[1].tensors[1] += torch.tensor([10.0, 20.0, 30.0, 40.0])
    sides = [bind_movement(0, transfers, pieces, storage.view, memory_of, here(storage.memory)) for storage in storages]
    for rank, (movement, outgoing, incoming) in enumerate(sides):
        assert list(movement.folds) == [rank]
        assert movement.folds[rank].parts == 1
        assert movement.folds[rank].then == movement.later == outgoing[1:]
        assert movement.outgoing == outgoing[:1]
        assert [arrival.feeds for arrival in incoming] == [rank, -1]
    for turn in range(2):  # contributions, folds, then results
        packed = [outgoing[turn].pack() for _, outgoing, _ in sides]
        for rank, (movement, _, incoming) in enumerate(sides):
            incoming[turn].land(packed[1 - rank], ())
            if turn == 0:
                movement.folds[rank].fold(())
    for number, storage in enumerate(storages):
        assert storage.tensors[number].tolist() == [11.0, 22.0, 33.0, 44.0]
