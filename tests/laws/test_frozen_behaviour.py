"""What lowering, simulation, searches and tracing gave when the digests were written, they give now, bit for bit."""

from __future__ import annotations

import json

import frozen_behaviour as frozen
import pytest

DIGESTS: dict[str, str] = json.loads(frozen.DIGESTS.read_text(encoding="utf-8"))
TRIPLES = list(frozen.triples())


def test_the_digests_are_those_of_the_triples() -> None:
    named = {" ".join(map(str, triple)) for triple in TRIPLES}
    assert named | {"trace", *(f"search {strategy}" for strategy in frozen.SEARCHES)} == set(DIGESTS)
    assert len(named) >= 30


@pytest.mark.parametrize("triple", TRIPLES, ids=lambda triple: " ".join(map(str, triple)))
def test_the_schedule_and_the_simulation_of_a_triple_stay(triple: tuple[str, str, str, int, int]) -> None:
    assert frozen.of_triple(*triple) == DIGESTS[" ".join(map(str, triple))]


@pytest.mark.parametrize("strategy", frozen.SEARCHES)
def test_the_plan_that_a_fixed_seed_finds_stays(strategy: str) -> None:
    assert frozen.of_search(strategy) == DIGESTS[f"search {strategy}"]


def test_the_schedule_of_a_trace_stays() -> None:
    assert frozen.of_trace() == DIGESTS["trace"]
