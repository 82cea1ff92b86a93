"""Tellings: each says its text once, from rank 0, when it goes or at the end of the program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.session.telling import Telling


def test_what_is_told_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "reports.txt"
    runtime = RankRuntime(replace(World.solo(), report=str(path)))
    try:
        told = runtime.world, runtime.endings
        made = [Telling.of(*told, name, lambda name=name: f"of {name}") for name in ("a", "b", "c")]  # type: ignore[misc]
        made[1].tell()
        made[1].tell()
        made[2].forget()
        made[2].tell()
        runtime.endings.call_all()
        assert path.read_text() == "of b\nof a\n"
        runtime.endings.call_all()
        assert path.read_text() == "of b\nof a\n"
    finally:
        runtime.close()


def test_what_cannot_be_told_says_why(tmp_path: Path) -> None:
    path = tmp_path / "reports.txt"
    runtime = RankRuntime(replace(World.solo(), report=str(path)))

    def refuse() -> str:
        raise RequestError("no step has run yet")

    try:
        Telling.of(runtime.world, runtime.endings, "net", refuse).tell()
        assert path.read_text() == "no report of net: no step has run yet\n"
    finally:
        runtime.close()


def test_without_a_file_nothing_is_held() -> None:
    runtime = RankRuntime(World.solo())
    try:
        telling = Telling.of(runtime.world, runtime.endings, "net", lambda: "never")
        assert telling.tell not in runtime.endings
        telling.tell()
    finally:
        runtime.close()
