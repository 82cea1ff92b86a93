"""What moves in situations that are drawn: all-reduces, halos, copies that are joined, states, refusals."""

from __future__ import annotations

import pytest

from maniple.process.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.regions.partition import blocks, halo
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, ReductionOp, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import (
    Contribution,
    Copy,
    Fold,
    Movements,
    Part,
    Use,
    Validity,
)

Point = tuple[int, ...]
Launch = list[Use]
SUM = ReductionOp("sum", "+")
WHOLE = Rect.of_shape((8, 2))


def everyone(privilege: Privilege, launch: int, memories: int = 2) -> Launch:
    return [Use(memory, WHOLE, privilege, (launch, memory)) for memory in range(memories)]


def test_data_parallel_gradients_are_an_all_reduce() -> None:
    #   points  owner  parts           copied to
    #   [0:4]   0      0, 1            1
    #   [4:8]   1      0, 1            0
    _, state = Validity.initial().advance(everyone(reduce("+"), 1))
    movements, state = state.advance(everyone(READ, 2))
    top, bottom = WHOLE.split(0, 2)
    parts = (Part(0, ((1, 0),), base=False), Part(1, ((1, 1),), base=False))
    assert movements.folds == (Fold(top, 0, SUM, parts), Fold(bottom, 1, SUM, parts))
    assert movements.copies == (Copy(top, 0, 1), Copy(bottom, 1, 0))
    assert movements.volume() == 2 * (2 - 1) * WHOLE.volume
    assert state == Validity.of_holdings({0: WHOLE, 1: WHOLE})


def test_a_single_contribution_at_home_is_a_fold_of_one_part() -> None:
    _, state = Validity.initial().advance([Use(3, WHOLE, reduce("max"), (1, 0))])
    movements, _ = state.advance([Use(3, WHOLE, READ)])
    assert [fold.parts for fold in movements.folds] == [(Part(3, ((1, 0),), base=False),)]
    assert (movements.volume(), movements.copies) == (0, ())


def test_the_base_joins_where_it_costs_nothing() -> None:
    start = Validity.of_holdings({1: WHOLE, 2: WHOLE})
    _, state = start.advance([Use(0, WHOLE, reduce("+"), (1, 0)), Use(2, WHOLE, reduce("+"), (1, 1))])
    movements, _ = state.advance([Use(0, WHOLE, READ)])
    assert movements.folds[0].parts == (Part(0, ((1, 0),), base=False), Part(2, ((1, 1),), base=True))


def test_reading_tiles_that_are_there_moves_nothing_and_keeps_the_state() -> None:
    tiles = blocks((4, 1)).bind(WHOLE).tiles
    _, state = Validity.initial().advance([Use(i, tile, WRITE_DISCARD, (0, i)) for i, tile in enumerate(tiles)])
    movements, after = state.advance([Use(i, tile, READ, (1, i)) for i, tile in enumerate(tiles)])
    assert movements == Movements()
    assert after is state


def test_copies_are_joined_and_spread_over_equal_holders() -> None:
    state = Validity.of_holdings({0: WHOLE, 1: WHOLE})
    tiles = blocks((4, 2)).bind(WHOLE).tiles
    movements, _ = state.advance(
        [Use(2 + (i % 2 if tile.lo[0] < 4 else 0), WHOLE, READ) for i, tile in enumerate(tiles)]
    )
    assert movements.copies == (Copy(WHOLE, 0, 2), Copy(WHOLE, 1, 3))
    near, _ = state.advance([Use(2, WHOLE, READ), Use(3, WHOLE, READ)], lambda _, holder: -holder)
    assert near.copies == (Copy(WHOLE, 1, 2), Copy(WHOLE, 1, 3))
    joined, _ = state.advance([Use(5, tile, READ, (0, i)) for i, tile in enumerate(tiles)])
    assert joined.copies == (Copy(WHOLE, 0, 5),)


def test_pieces_that_move_alike_are_joined() -> None:
    state = Validity.of_holdings({0: WHOLE, 1: WHOLE.split(0, 2)[0]})
    assert state.advance([Use(2, WHOLE, READ)])[0].copies == (Copy(WHOLE, 0, 2),)
    _, state = state.advance([Use(2, WHOLE, reduce("+"), (1, 0))])
    assert [fold.rect for fold in state.advance([Use(2, WHOLE, READ)])[0].folds] == [WHOLE]


def test_a_halo_exchange_moves_only_the_borders() -> None:
    line = Rect.of_shape((12,))
    tiles, grown = blocks((3,)).bind(line).tiles, halo(blocks((3,)), (1,)).bind(line).tiles
    _, state = Validity.initial().advance([Use(i, tile, WRITE_DISCARD, (0, i)) for i, tile in enumerate(tiles)])
    movements, _ = state.advance([Use(i, tile, READ, (1, i)) for i, tile in enumerate(grown)])
    assert [(str(copy.rect), copy.source, copy.target) for copy in movements.copies] == [
        ("[3:4]", 0, 1),
        ("[4:5]", 1, 0),
        ("[7:8]", 1, 2),
        ("[8:9]", 2, 1),
    ]


def test_another_operation_folds_what_waits_first() -> None:
    _, state = Validity.initial().advance(everyone(reduce("+"), 1))
    half = WHOLE.split(0, 2)[1]
    movements, state = state.advance([Use(1, half, reduce("max"), (2, 0))])
    assert [(fold.rect, fold.target, fold.op.symbol) for fold in movements.folds] == [(half, 1, "+")]
    assert movements.copies == ()
    assert [(entry.key, entry.op.symbol, str(entry.rect)) for entry in state.pending] == [
        ((1, 0), "+", "[0:4, 0:2]"),
        ((1, 1), "+", "[0:4, 0:2]"),
        ((2, 0), "max", "[4:8, 0:2]"),
    ]
    assert state.valid == {1: RectSet.of([half])}


def test_replicas_contribute_once() -> None:
    _, state = Validity.initial().advance([Use(memory, WHOLE, reduce("+"), (1, 0)) for memory in (2, 0)])
    assert state.pending == (Contribution((1, 0), 2, WHOLE, SUM),)


def test_empty_uses_do_nothing() -> None:
    state = Validity.initial()
    for privilege in (READ, WRITE_DISCARD, READ_WRITE, reduce("+")):
        assert state.advance([Use(0, Rect.of_shape((0, 2)), privilege)]) == (Movements(), state)
    assert state.advance([]) == (Movements(), state)


def test_states_are_equal_however_they_were_reached() -> None:
    tiles = blocks((2, 1)).bind(WHOLE).tiles
    other = Validity.of_holdings({0: RectSet.of(blocks((1, 2)).bind(WHOLE).tiles)})
    _, state = Validity.initial().advance([Use(0, tile, WRITE_DISCARD, (0, i)) for i, tile in enumerate(tiles)])
    assert state == other
    assert hash(state) == hash(other)
    assert state != Validity.of_holdings({0: tiles[0]})
    assert Validity.of_holdings({}) == Validity.initial() != ()


def test_the_drawn_state() -> None:
    _, state = Validity.of_holdings({0: WHOLE, 1: WHOLE.split(0, 2)[0]}).advance([Use(2, WHOLE, reduce("+"), (1, 0))])
    assert str(state).splitlines() == [
        "points      valid in  pending",
        "[0:4, 0:2]  0, 1      +(1, 0) in 2",
        "[4:8, 0:2]  0         +(1, 0) in 2",
    ]
    assert str(Validity.initial()) == "nothing valid, nothing pending"


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (everyone(WRITE_DISCARD, 1), r"points \(1, 0\) and \(1, 1\) of one launch both write \[0:8, 0:2\]"),
        (everyone(READ_WRITE, 1), "make the partition disjoint, use reduce, or ask for atomic"),
        ([Use(0, WHOLE, READ), Use(0, WHOLE, READ_WRITE)], "got read and read-write"),
        ([Use(0, WHOLE, reduce("+")), Use(0, WHOLE.split(0, 2)[0], reduce("+"))], "its own key"),
        ([Use(0, WHOLE, reduce("+"), (0, 0))], "use a new key"),
        ([Use(0, Rect.of_shape((9, 2)), READ)], r"\[8:9, 0:2\], where nothing was ever written"),
        ([Use(0, Rect.of_shape((9,)), READ)], "number of axes"),
    ],
)
def test_wrong_launches_are_refused(launch: Launch, message: str) -> None:
    _, state = Validity.of_holdings({0: WHOLE}).advance([Use(0, WHOLE, reduce("+"), (0, 0))])
    with pytest.raises(RequestError, match=message):
        state.advance(launch)
