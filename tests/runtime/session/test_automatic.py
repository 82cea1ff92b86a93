"""Automatic tracing: what is found, when it is replayed, and what ends it."""

from __future__ import annotations

import gc

import pytest
from launched import add, on_ranks, summed, total

import maniple as mp
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.session.automatic import PATIENCE, SCALE
from maniple.runtime.session.session import Session

ROWS = mp.blocks((2,))


def looped(session: Session, times: int, x: mp.Region, y: mp.Region, sums: mp.Region) -> list[mp.Future]:
    """A loop of five launches, without a wait."""
    futures = []
    for number in range(times):
        session.fill(sums, 0.0)
        session.index_launch(add, ROWS.colors, float(number), x[ROWS], y[ROWS])
        session.index_launch(total, ROWS.colors, y[ROWS], sums)
        session.launch(summed, sums)
        futures.append(session.launch(summed, y))
    return futures


def regions(session: Session) -> tuple[mp.Region, mp.Region, mp.Region]:
    x, y, sums = session.region((4,)), session.region((4,)), session.region(())
    x.fill(1.0)
    y.fill(0.0)
    return x, y, sums


def counted(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches that are analysed from now on."""
    names: list[str] = []
    launch = ProgramAnalysis.launch

    def noted(self: ProgramAnalysis, found: object, **options: bool) -> object:
        names.append(found.name)  # type: ignore[attr-defined]
        return launch(self, found, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ProgramAnalysis, "launch", noted)
    return names


def test_a_loop_is_found_and_replayed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.auto_trace()
    x, y, sums = regions(session)
    looped(session, 2 * SCALE, x, y, sums)
    analysed = counted(session, monkeypatch)
    futures = looped(session, 20, x, y, sums)
    assert len(analysed) == 0
    first = 4.0 * sum(range(2 * SCALE))
    assert futures[3].get() == first + 4.0 * sum(range(4))
    assert session.tracing.automatic is not None
    (candidate,) = session.tracing.automatic.candidates
    assert len(candidate.word) == 5


def test_off_is_off(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, sums = regions(session)
    session.auto_trace()
    session.auto_trace(on=False)
    looped(session, SCALE, x, y, sums)
    analysed = counted(session, monkeypatch)
    looped(session, 2, x, y, sums)
    assert len(analysed) == 10


def test_a_value_asked_for_in_the_middle_starts_what_is_held_back(session: Session) -> None:
    session.auto_trace()
    x, y, sums = regions(session)
    looped(session, SCALE, x, y, sums)
    session.fill(sums, 0.0)
    session.index_launch(add, ROWS.colors, 0.0, x[ROWS], y[ROWS])
    future = session.launch(summed, y)
    assert future.get() == 4.0 * sum(range(SCALE))
    session.fill(sums, 7.0)
    assert sums.read().item() == 7.0
    session.fence()
    assert session.runtime.under_way.rows == 0


def test_a_trace_that_is_never_finished_is_dropped(session: Session) -> None:
    session.auto_trace()
    x, y, sums = regions(session)
    looped(session, SCALE, x, y, sums)
    assert session.tracing.automatic is not None
    held = len(session.tracing.automatic.candidates)
    for _ in range(4 * PATIENCE):
        session.fill(sums, 0.0)
        session.index_launch(add, ROWS.colors, 0.0, x[ROWS], y[ROWS])
        session.fence()
    assert held == 1
    words = [candidate.word for candidate in session.tracing.automatic.candidates]
    assert all(len(word) != 5 for word in words)


def test_ranks_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(session: Session) -> object:
        session.auto_trace()
        x, y, sums = regions(session)
        futures = looped(session, SCALE, x, y, sums)
        found = [futures[number].get() for number in (0, SCALE // 2, SCALE - 1)]
        assert session.tracing.automatic is not None
        return found, [candidate.word for candidate in session.tracing.automatic.candidates], y.read().tolist()

    first, second = on_ranks(2, body)
    assert first == second
    assert first[0] == [4.0 * sum(range(n + 1)) for n in (0, SCALE // 2, SCALE - 1)]  # type: ignore[index]


def test_a_region_that_is_gone_takes_its_traces_along(session: Session) -> None:
    session.auto_trace()

    def use() -> None:
        looped(session, SCALE, *regions(session))
        session.fence()

    use()
    assert session.tracing.automatic is not None
    assert session.tracing.automatic.candidates
    gc.collect()
    session.region((1,))
    assert not session.tracing.automatic.candidates
    use()
    assert session.tracing.automatic.candidates
