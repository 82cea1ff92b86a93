"""Law: whatever goes wrong on a wire or with a rank, a run ends in time, and with the right numbers or a named rank.

A few seeds of `benchmarks/faults.py`, which runs nine hundred. Ranks are threads over the real coordinator and sockets.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from maniple.runtime.transports.transport import Guard
from maniple.testing.fault_link import WIRE_FAULTS, LinkFault
from maniple.testing.faulty_run import RANK_FAULTS, STUCK, Outcome, Scenario, run
from maniple.testing.strangers import CALLERS, STALE

pytestmark = pytest.mark.timeout(120)


def on_tiles(fault: str, message: int = 2, *, guard: Guard = Guard(verify=True)) -> Scenario:  # noqa: B008 - a value
    link = LinkFault(fault, message=message, seconds=1.5) if fault in WIRE_FAULTS else None
    return Scenario(7, 2, fault, "tiles", 0, 1, link, guard, 500)


def on_streams(fault: str, piece: int = 1) -> Scenario:
    link = LinkFault(fault, message=piece, seconds=1.5) if fault in WIRE_FAULTS else None
    return Scenario(7, 2, fault, "streams", 0, 1, link, Guard(verify=True), 100_000)


def at_rank(fault: str) -> Scenario:
    return Scenario(7, 2, fault, "rank", 1, 0, None, Guard(), 10)


def on_control(fault: str) -> Scenario:
    return Scenario(7, 2, fault, "control", 1, 0, LinkFault(fault, 1, 3, seconds=1.5), Guard(), 10)


def together(scenarios: list[Scenario]) -> list[Outcome]:
    """Run them at the same time: they mostly wait."""
    with ThreadPoolExecutor(len(scenarios)) as pool:
        return list(pool.map(run, scenarios))


def test_nothing_hangs_or_is_wrong_or_nameless() -> None:
    scenarios = [
        *(on_tiles(fault) for fault in WIRE_FAULTS),
        *(at_rank(fault) for fault in RANK_FAULTS),
        *(on_control(fault) for fault in ("delay", "duplicate", "cut", "stall")),
        *(on_streams(fault) for fault in (*WIRE_FAULTS, *CALLERS, STALE)),
        *(on_tiles(fault) for fault in (*CALLERS, STALE)),
        on_tiles("corrupt", guard=Guard(encrypt=True)),
    ]
    outcomes = together(scenarios)
    assert [(one.scenario.plane, one.scenario.fault, one.wrong) for one in outcomes if one.wrong] == []
    assert [one.scenario.fault for one in outcomes if one.left or not one.met] == []
    told = {(one.scenario.plane, one.scenario.fault): one for one in outcomes[:-1]}
    assert told["tiles", "delay"].status == told["control", "delay"].status == told["streams", "delay"].status == 0
    unharmed = [(plane, fault) for plane in ("tiles", "streams") for fault in CALLERS]
    assert {told[each].status for each in (*unharmed, ("streams", STALE))} == {0}
    assert "answers in the place of rank 1 refuses the proof of its key" in told["tiles", STALE].message
    for fault in ("duplicate", "cut"):
        assert "frames of rank 0 were lost" in told["tiles", fault].message
    assert "is not what it sent: its seal is wrong" in told["streams", "corrupt"].message
    for fault in ("malformed", "duplicate"):  # where the next tile is expected to begin, there are other bytes
        assert (
            "its seal is wrong" in told["streams", fault].message
            or "the wire is broken" in told["streams", fault].message
        )
    assert "bytes of tiles of rank 0 were lost" in told["streams", "cut"].message
    assert "is not what it sent: its seal is wrong" in told["tiles", "corrupt"].message
    assert "(rank 1) was killed by signal 9 (SIGKILL)" in told["rank", "killed"].message
    assert f"{STUCK} for 3 s, all wait (node 1 (rank 1) ended before)" in told["rank", "leaves"].message


def test_a_corrupted_number_is_seen_where_nothing_guards_tiles() -> None:
    """That the law can fail: an unguarded tile with another byte gives a wrong sum, which the ranks find."""
    for scenario in (on_tiles("corrupt"), on_streams("corrupt")):
        unguarded = dataclasses.replace(scenario, guard=Guard())
        assert any("has wrong numbers" in each for each in run(unguarded).wrong)


def test_a_seed_is_a_scenario() -> None:
    assert Scenario.of(11) == Scenario.of(11)
    drawn = [Scenario.of(seed) for seed in range(300)]
    assert {one.fault for one in drawn} == {"none", *WIRE_FAULTS, *RANK_FAULTS, *CALLERS, STALE}
    assert {one.plane for one in drawn} == {"tiles", "control", "rank"}
    assert all(one.guard for one in drawn if (one.plane, one.fault) == ("tiles", "corrupt"))
    streams = [Scenario.on_stream(seed) for seed in range(100)]
    assert {one.fault for one in streams} == {*WIRE_FAULTS, *CALLERS, STALE}
    assert all(one.guard.verify for one in streams if one.fault in {"corrupt", "drop"})
    assert not any(one.guard.encrypt for one in streams)
