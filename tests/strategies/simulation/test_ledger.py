"""Ledgers: after any change the times are those of a full simulation, and a change can be taken back."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_order import Rows, first_come

from maniple.process.error import RunError
from maniple.strategies.timing import delta
from maniple.strategies.timing.ledger import Ledger, Placed, RowBlock
from maniple.strategies.timing.tables import DURATION, END, KEY, READY

pytestmark = pytest.mark.simulator

Times = dict[int, tuple[int, int]]
BLOCK = 1000
BASE = np.zeros(1, dtype=np.int64)


def pairs(values: list[tuple[int, ...]], width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.asarray(values, dtype=np.int64).reshape(-1, width)


class Model:
    """Blocks of rows with edges between blocks, in a ledger and as plain data."""

    def __init__(self, chance: Random, blocks: int, lanes: int) -> None:
        self.chance, self.lanes = chance, lanes
        self.ledger = Ledger(lanes)
        self.blocks: dict[int, tuple[Rows, Placed]] = {}
        self.edges: dict[tuple[int, int], tuple[list[tuple[int, int]], Placed]] = {}
        for block in range(blocks):
            self.add_rows(block)
        for first in range(blocks):
            for second in range(first + 1, blocks):
                if chance.random() < 0.5:
                    self.add_edges(first, second)
        self.ledger.settle()
        self.ledger.keep()

    def add_rows(self, block: int) -> None:
        rows: Rows = {}
        for number in range(self.chance.randint(0, 4)):
            duration = self.chance.randint(1, 9)
            held = self.chance.sample(range(self.lanes), self.chance.randint(1, min(self.lanes, 3)))
            rows[block * BLOCK + number] = (duration, [(lane, self.chance.randint(0, duration)) for lane in held])
        columns = [(key, duration, len(holds)) for key, (duration, holds) in rows.items()]
        held_lanes = [hold for _, holds in rows.values() for hold in holds]
        self.blocks[block] = rows, self.ledger.add_rows(RowBlock(pairs(columns, 3), pairs(held_lanes, 2), BASE))

    def add_edges(self, first: int, second: int) -> None:
        (rows, placed), (others, others_placed) = self.blocks[first], self.blocks[second]
        found = [(a, b) for a in range(len(rows)) for b in range(len(others)) if self.chance.random() < 0.4]
        ends = pairs([(placed.first + a, others_placed.first + b) for a, b in found], 2)
        self.edges[first, second] = found, self.ledger.add_edges(ends)

    def change(self) -> None:
        chosen = self.chance.sample(sorted(self.blocks), self.chance.randint(1, min(3, len(self.blocks))))
        touched = [key for key in self.edges if set(key) & set(chosen) or self.chance.random() < 0.1]
        self.ledger.remove([self.blocks[block][1] for block in chosen], [self.edges[key][1] for key in touched])
        for block in chosen:
            self.add_rows(block)
        for first, second in touched:
            self.add_edges(first, second)
        self.ledger.settle()

    def times(self) -> Times:
        return {
            key: (
                int(self.ledger.rows[placed.first + number, READY]),
                int(self.ledger.rows[placed.first + number, END]),
            )
            for rows, placed in self.blocks.values()
            for number, key in enumerate(rows)
        }

    def expected(self) -> Times:
        edges = [
            (first * BLOCK + a, second * BLOCK + b)
            for (first, second), (found, _) in self.edges.items()
            for a, b in found
        ]
        return first_come({key: row for rows, _ in self.blocks.values() for key, row in rows.items()}, edges)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 12), lanes=st.integers(1, 5))
def test_every_change_gives_the_times_of_a_full_simulation(seed: int, blocks: int, lanes: int) -> None:
    model = Model(Random(seed), blocks, lanes)
    assert model.times() == model.expected()
    for _ in range(12):
        before, makespan = model.times(), model.ledger.makespan
        blocks_before, edges = dict(model.blocks), dict(model.edges)
        model.change()
        times = model.times()
        assert times == model.expected()
        assert model.ledger.makespan == max([end for _, end in times.values()], default=0)
        assert len(model.ledger.pairs) == sum(len(found) for found, _ in model.edges.values())
        if model.chance.random() < 0.5:
            model.ledger.keep()
        else:
            model.ledger.undo()
            model.blocks, model.edges = blocks_before, edges
            assert model.times() == before
            assert model.ledger.makespan == makespan
        order = [
            (int(model.ledger.rows[row, READY]), int(model.ledger.rows[row, KEY])) for row in model.ledger.sequence
        ]
        assert order == sorted((ready, key) for key, (ready, _) in model.times().items())


def link(number: int, duration: int) -> RowBlock:
    """A row on a lane of its own."""
    return RowBlock(pairs([(number, duration, 1)], 3), pairs([(number, duration)], 2), BASE)


def chain() -> tuple[Ledger, list[Placed], Placed]:
    """Forty rows that take 10 each and wait for each other, and the edge to the last."""
    ledger = Ledger(40)
    blocks = [ledger.add_rows(link(number, 10)) for number in range(40)]
    edges = [ledger.add_edges(pairs([(one.first, next_one.first)], 2)) for one, next_one in pairwise(blocks)]
    ledger.settle()
    ledger.keep()
    return ledger, blocks, edges[-1]


@pytest.mark.parametrize("limit", [1, 20, 50, 150, 389, 390, 398])
def test_a_change_far_beyond_a_limit_is_given_up(limit: int) -> None:
    ledger, blocks, edge = chain()
    ledger.remove([blocks[-1]], [edge])
    ledger.add_edges(pairs([(blocks[-2].first, ledger.add_rows(link(39, 9)).first)], 2))
    assert limit < ledger.settle(limit) <= 399
    ledger.undo()
    assert ledger.makespan == 400


def test_after_a_circle_all_is_as_it_was() -> None:
    ledger, blocks, _ = chain()
    before = ledger.rows[ledger.sequence][:, [READY, END]].tolist()
    ledger.add_edges(pairs([(blocks[-1].first, blocks[20].first)], 2))
    with pytest.raises(RunError, match="form a circle"):
        ledger.settle()
    ledger.undo()
    assert ledger.rows[ledger.sequence][:, [READY, END]].tolist() == before
    assert ledger.makespan == 400


def tasks(durations: str, lane: int, key: int) -> RowBlock:
    """Rows of one lane, a digit of duration each."""
    numbers = [int(digit) for digit in durations]
    columns = [(key + place, duration, 1) for place, duration in enumerate(numbers)]
    return RowBlock(pairs(columns, 3), pairs([(lane, duration) for duration in numbers], 2), BASE)


def drawn(ledger: Ledger, names: dict[int, str], lanes: int) -> list[str]:
    """A picture: a letter per tick in which a row holds its lane."""
    cells = [[" "] * 10 for _ in range(lanes)]
    for row, name in names.items():
        key, duration, end = int(ledger.rows[row, KEY]), int(ledger.rows[row, DURATION]), int(ledger.rows[row, END])
        cells[key // 100][end - duration : end] = name * duration
    return ["".join(line).rstrip() for line in cells]


def test_the_table_of_the_docstring() -> None:
    ledger = Ledger(2)
    first = ledger.add_rows(tasks("222", 0, 0)).first  # a, d+e as d, g
    second = ledger.add_rows(tasks("2", 1, 100))
    third = ledger.add_rows(tasks("2", 1, 101)).first
    a, d, g, b, f = first, first + 1, first + 2, second.first, third
    ledger.add_edges(pairs([(a, d), (d, g), (f, g)], 2))
    edges = ledger.add_edges(pairs([(b, f)], 2))
    ledger.settle()
    ledger.keep()
    assert drawn(ledger, {a: "a", d: "d", g: "g", b: "b", f: "f"}, 2) == ["aaddgg", "bbff"]
    ledger.remove([second], [edges])
    b = ledger.add_rows(tasks("1", 1, 100)).first
    ledger.add_edges(pairs([(b, f)], 2))
    ledger.settle()
    assert drawn(ledger, {a: "a", d: "d", g: "g", b: "b", f: "f"}, 2) == ["aaddgg", "bff"]
    assert ledger.retimed == 2
    text = delta.__doc__ or ""
    for line in ("aa dd gg", "bb ff", "bff"):
        assert line in text


def test_a_circle_is_a_defect() -> None:
    ledger = Ledger(1)
    first = ledger.add_rows(tasks("11", 0, 0)).first
    ledger.add_edges(pairs([(first, first + 1), (first + 1, first)], 2))
    with pytest.raises(RunError, match="circle"):
        ledger.settle()
