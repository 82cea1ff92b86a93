"""What a run asks of its coordinator grows with its ranks and no faster, counted on the real coordinator."""

from __future__ import annotations

import pytest
from coordinator_work import EXCHANGED, PARTS, Played, play

PER_HOST = 4
FENCE = 8
"""Bytes that a rank is told at a fence: whether anything has failed."""


@pytest.fixture(scope="module")
def runs() -> list[Played]:
    return [play(ranks, PER_HOST) for ranks in (16, 64, 256)]


def test_messages_are_those_of_the_table(runs: list[Played]) -> None:
    """For n ranks on a hosts; a beat goes to each rank's control, to its echo and to each agent, and comes back of two.

    part      received     sent
    ========  ===========  ===========
    join      n + a        n + a
    call      n            0
    fence     n            n
    exchange  n            n
    second    3 n + a      2 n + a
    end       2 n          n + a
    """
    for played in runs:
        n, a = played.ranks, played.ranks // PER_HOST
        expected = {
            "join": (n + a, n + a),
            "call": (n, 0),
            "fence": (n, n),
            "exchange": (n, n),
            "second": (3 * n + a, 2 * n + a),
            "end": (2 * n, n + a),
        }
        assert {part: (tally.received, tally.sent) for part, tally in played.tallies.items()} == expected
        assert played.finish is not None
        assert played.finish.status == 0


@pytest.mark.parametrize("part", PARTS)
def test_work_is_linear(runs: list[Played], part: str) -> None:
    """Lines of Python for each rank: a tenth more at most for sixteen times as many ranks."""
    first, *others = [played.tallies[part].lines / played.ranks for played in runs]
    assert all(0 < each < 1.1 * first for each in others)


@pytest.mark.parametrize("part", PARTS)
def test_what_a_rank_runs_to_read_what_it_is_sent_does_not_grow_with_the_world(runs: list[Played], part: str) -> None:
    """But for the join, where it reads the address and the host of each, once."""
    first, *others = [played.tallies[part].read_lines / played.ranks for played in runs]
    if part != "join":
        assert all(each < 1.1 * first + 1 for each in others)


def test_memory_is_linear(runs: list[Played]) -> None:
    each = [played.kept / played.ranks for played in runs]
    assert each[-1] < 1.5 * each[0]
    assert max(each) < 1000


def test_only_what_all_are_told_of_all_grows_with_the_square(runs: list[Played]) -> None:
    """Bytes for each rank: of its own messages as many, whoever else is there; of the others' parts, one of each."""
    for part in PARTS:
        ins = [played.tallies[part].bytes_in / played.ranks for played in runs]
        assert max(ins) < 1.1 * min(ins)
    for played in runs:
        n, exchange = played.ranks, played.tallies["exchange"]
        assert played.tallies["fence"].bytes_out == FENCE * n
        assert EXCHANGED * n <= exchange.bytes_out / n <= (EXCHANGED + 2) * n + 16
        assert played.tallies["second"].bytes_out <= 20 * (2 * n + n // PER_HOST)
