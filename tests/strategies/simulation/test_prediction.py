"""Critical paths: rows without a gap from the first to the last, whatever holds no lane for any time."""

from __future__ import annotations

import numpy as np
import pytest

from maniple.strategies.simulation.prediction import critical_path
from maniple.strategies.timing.ledger import Ledger, RowBlock
from maniple.strategies.timing.steady_state import Timed
from maniple.strategies.timing.tables import DURATION, END

pytestmark = pytest.mark.simulator

BASE = np.zeros(1, dtype=np.int64)


def settled(rows: list[tuple[int, list[tuple[int, int]]]], edges: list[tuple[int, int]]) -> Timed:
    """A timed ledger of (duration, (lane, span) of each hold), the keys by place."""
    ledger = Ledger(2)
    columns = np.asarray([(key, duration, len(held)) for key, (duration, held) in enumerate(rows)])
    held = np.asarray([hold for _, holds in rows for hold in holds]).reshape(-1, 2)
    ledger.add_rows(RowBlock(columns, held, BASE))
    ledger.add_edges(np.asarray(edges, dtype=np.int64).reshape(-1, 2))
    ledger.settle()
    ledger.keep()
    rows = ledger.rows[ledger.alive]
    return Timed(ledger.columns(), rows[:, END] - rows[:, DURATION])


def test_a_row_that_waited_for_a_lane_follows_the_one_that_held_it_and_any_other_what_it_waits_for() -> None:
    timed = settled([(2, [(0, 2)]), (3, [(1, 3)]), (4, [(0, 4)]), (1, [(1, 1)])], [(2, 3)])
    assert critical_path(timed) == [(0, 0, 2), (2, 2, 6), (3, 6, 7)]


def test_a_row_may_start_while_the_one_that_held_its_lane_goes_on() -> None:
    timed = settled([(5, [(0, 2)]), (4, [(0, 4)])], [])
    assert critical_path(timed) == [(0, 0, 5), (1, 2, 6)]


def test_rows_that_hold_a_lane_for_no_time_do_not_lead_to_each_other() -> None:
    """All three of the others are ready at 0, wait for lane 0 until 2, and leave it free at once."""
    timed = settled([(2, [(0, 2)]), (3, [(0, 0)]), (5, [(0, 0)]), (5, [(0, 0), (1, 0)])], [])
    assert critical_path(timed) == [(0, 0, 2), (2, 2, 7)]
