"""Timelines: Chrome's format, flows between ranks, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maniple.regions.error import RequestError
from maniple.runtime.timeline import Event, Timeline

TIMELINE = Timeline(
    (
        Event("write[0]@p0", "task", 0, "p0", 1_000, 3_000, 0),
        Event("copy x", "copy", 0, "copy engine", 3_000, 5_000, 1),
        Event("copy x", "copy", 1, "copy engine", 3_500, 5_500, 1),
        Event("read[0]@p1", "task", 1, "p1", 5_600, 6_000, 2),
    ),
    (0, 1),
)


def test_events_lie_on_lanes_of_processes_from_the_first_start() -> None:
    found = TIMELINE.to_chrome()["traceEvents"]
    assert isinstance(found, list)
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert names == {0: "node 0 (rank 0)", 1: "node 1 (rank 1)"}
    lanes = {event["tid"]: (event["pid"], event["args"]["name"]) for event in found if event["name"] == "thread_name"}
    assert sorted(lanes.values()) == [(0, "copy engine"), (0, "p0"), (1, "copy engine"), (1, "p1")]
    drawn = [
        (event["name"], lanes[event["tid"]], event["ts"], event["dur"], event["args"]["row"])
        for event in found
        if event["ph"] == "X"
    ]
    assert drawn == [
        ("write[0]@p0", (0, "p0"), 0.0, 2.0, 0),
        ("copy x", (0, "copy engine"), 2.0, 2.0, 1),
        ("copy x", (1, "copy engine"), 2.5, 2.0, 1),
        ("read[0]@p1", (1, "p1"), 4.6, 0.4, 2),
    ]


def test_an_arrow_joins_the_ranks_of_a_movement() -> None:
    found = TIMELINE.to_chrome()["traceEvents"]
    assert isinstance(found, list)
    start, end = (event for event in found if event.get("cat") == "flow")
    assert (start["ph"], start["pid"], start["ts"]) == ("s", 0, 2.0)
    assert (end["ph"], end["pid"], end["ts"], end["bp"]) == ("f", 1, 4.5, "e")
    assert start["id"] == end["id"]


def test_it_is_saved_whole(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    target.write_text("old")
    TIMELINE.save(target)
    assert json.loads(target.read_text()) == TIMELINE.to_chrome()
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot write the timeline to .*missing/trace\.json"):
        TIMELINE.save(tmp_path / "missing" / "trace.json")


def test_a_target_that_is_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(RequestError, match="cannot write the timeline"):
        TIMELINE.save(tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_plain_data_and_no_events() -> None:
    assert [Event(**event) for event in TIMELINE.to_json()] == list(TIMELINE.events)  # type: ignore[arg-type]
    assert Timeline((), (0,)).to_chrome()["traceEvents"] == [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "node 0 (rank 0)"}}
    ]
