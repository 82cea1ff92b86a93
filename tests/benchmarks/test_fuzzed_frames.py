"""A small sweep of what `benchmarks/fuzzed_frames.py` sweeps at length."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest
from fuzzed_frames import Wrong, greeting, sweep

from maniple.runtime.transports.streams import tile_streams


def test_no_parser_does_what_it_must_not() -> None:
    found = sweep(7000, 20261127)
    assert found.wrong == []
    assert all(counts.total() == 1000 for counts in found.outcomes.values())
    assert all(len(counts) > 1 for counts in found.outcomes.values())


def test_the_sweep_sees_a_stream_that_believes_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it can fail: where every digest passes, strangers are admitted."""
    monkeypatch.setattr(tile_streams, "compare_digest", lambda _said, _expected: True)
    draw = random.Random(3)
    with ExitStack() as held:
        greet = greeting(held)
        with pytest.raises(Wrong, match="a stream for"):
            [greet(draw) for _ in range(200)]
