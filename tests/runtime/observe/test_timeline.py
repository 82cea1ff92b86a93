"""Timelines: spans, the critical path, Chrome's format, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maniple.process.error import RequestError
from maniple.runtime.observe.timeline import Event, Kind, Timeline


def span(name: str, category: str, rank: int, lane: str, start: int, end: int, row: int) -> tuple[Event, Event]:
    ended = Kind.COPIED if lane == "copy engine" else Kind.ENDED
    return (
        Event(Kind.STARTED, start, rank, lane, name, category, 1, row),
        Event(ended, end, rank, lane, name, category, 1, row),
    )


# ns            1000     3000    3500    5000    5500    5600    6000
# rank 0 p0     write............
# rank 0 copy            copy x..................
# rank 1 copy                    copy x..................
# rank 1 p1     other....                                read....
EVENTS = (
    *span("write[0]@p0", "task", 0, "p0", 1_000, 3_000, 0),
    *span("other[0]@p1", "task", 1, "p1", 1_000, 2_000, 3),
    *span("copy x", "copy", 0, "copy engine", 3_000, 5_000, 1),
    *span("copy x", "copy", 1, "copy engine", 3_500, 5_500, 1),
    *span("read[0]@p1", "task", 1, "p1", 5_600, 6_000, 2),
    Event(Kind.READY, 5_500, 1, "p1", "read[0]@p1", "task", 1, 2),
)
DEPENDENCES = (((1, 0), (1, 1)), ((1, 1), (1, 2)))
TIMELINE = Timeline(tuple(sorted(EVENTS, key=lambda event: event.time_ns)), (0, 1), DEPENDENCES)


def test_spans_lie_on_lanes_of_processes_from_the_first_start() -> None:
    found = TIMELINE.to_chrome()["traceEvents"]
    assert isinstance(found, list)
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert names == {0: "node 0 (rank 0)", 1: "node 1 (rank 1)", 2: "critical path"}
    lanes = {event["tid"]: (event["pid"], event["args"]["name"]) for event in found if event["name"] == "thread_name"}
    assert sorted(lanes.values()) == [(0, "copy engine"), (0, "p0"), (1, "copy engine"), (1, "p1")]
    drawn = [
        (event["name"], lanes[event["tid"]], event["ts"], event["dur"], event["args"]["row"])
        for event in found
        if event["ph"] == "X" and event["pid"] < 2
    ]
    assert drawn == [
        ("write[0]@p0", (0, "p0"), 0.0, 2.0, 0),
        ("other[0]@p1", (1, "p1"), 0.0, 1.0, 3),
        ("copy x", (0, "copy engine"), 2.0, 2.0, 1),
        ("copy x", (1, "copy engine"), 2.5, 2.0, 1),
        ("read[0]@p1", (1, "p1"), 4.6, 0.4, 2),
    ]


def test_the_critical_path_is_marked_and_drawn_once_more() -> None:
    path = [(span.rank, span.name) for span in TIMELINE.critical_path]
    assert path == [(0, "write[0]@p0"), (0, "copy x"), (1, "copy x"), (1, "read[0]@p1")]
    found = TIMELINE.to_chrome()["traceEvents"]
    assert isinstance(found, list)
    marked = [(event["pid"], event["name"]) for event in found if event.get("args", {}).get("critical")]
    assert marked == path
    assert [(event["args"]["rank"], event["name"]) for event in found if event.get("cat") == "critical path"] == path


def test_arrows_join_the_shares_of_a_movement_and_what_waits_for_what() -> None:
    found = TIMELINE.to_chrome()["traceEvents"]
    assert isinstance(found, list)
    ends: dict[str, list[tuple[str, int, float]]] = {}
    for event in found:
        if event.get("cat") == "flow":
            ends.setdefault(event["id"], []).append((event["ph"], event["pid"], event["ts"]))
    assert ends == {
        "1.1.1": [("s", 0, 2.0), ("f", 1, 4.5)],  # the movement
        "1.0-1.1.0": [("s", 0, 2.0), ("f", 0, 2.0)],  # write, then copy x on rank 0
        "1.1-1.2.1": [("s", 1, 4.5), ("f", 1, 4.6)],  # copy x on rank 1, then read
    }


def test_a_span_knows_when_it_was_ready() -> None:
    *_, read = TIMELINE.spans
    assert read.marks == ((Kind.READY, 5_500),)
    (drawn,) = (e for e in TIMELINE.to_chrome()["traceEvents"] if e.get("args", {}).get("ready_us") and e["pid"] == 1)  # type: ignore[attr-defined]
    assert drawn["args"]["ready_us"] == 4.5


def test_memory_is_a_graph_of_what_is_held() -> None:
    def change(kind: Kind, time_ns: int, row: int, size: int) -> Event:
        return Event(kind, time_ns, 0, "memory", "x", "memory", 0, row, size)

    changes = (change(Kind.ALLOCATED, 10, 0, 64), change(Kind.ALLOCATED, 20, 1, 8), change(Kind.FREED, 1_010, 0, 64))
    found = Timeline(changes, (0,)).to_chrome()["traceEvents"]
    assert isinstance(found, list)
    drawn = [(event["ts"], event["args"]["bytes"]) for event in found if event["ph"] == "C"]
    assert drawn == [(0.0, 64), (0.01, 72), (1.0, 8)]


def test_what_began_before_the_timeline_or_ends_after_it_is_no_span() -> None:
    begun, ended = span("write[0]@p0", "task", 0, "p0", 1_000, 3_000, 0)
    assert Timeline((begun,), (0,)).spans == ()
    assert Timeline((ended,), (0,)).spans == ()
    assert len(Timeline((begun, ended), (0,)).spans) == 1


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
