"""The link probe: what a copy takes is told from what its sender computes first."""

from __future__ import annotations

import pytest

from maniple.link_probe import copy_seconds
from maniple.runtime.observe.timeline import Event, Kind, Timeline


def share(rank: int, begin_us: int, end_us: int, row: int) -> tuple[Event, Event]:
    where = (rank, "copy engine", f"copy {row}", "copy", 1, row)
    return Event(Kind.STARTED, 1000 * begin_us, *where), Event(Kind.COPIED, 1000 * end_us, *where)


def test_a_copy_takes_from_when_both_ends_are_ready_until_it_has_landed() -> None:
    """The table: the receiver may be written from 0 on, the sender computes until 35 us and sends until 47."""
    shares = (
        *share(0, 0, 49, 0), *share(1, 35, 47, 0),
        *share(0, 60, 64, 1), *share(1, 50, 66, 1),
        *share(0, 100, 900, 2), *share(1, 120, 910, 2),
    )  # fmt: skip
    timeline = Timeline(tuple(sorted(shares, key=lambda event: event.time_ns)), (0, 1))
    assert copy_seconds([timeline]) == pytest.approx(14e-6)  # of 6, 14 and 790
