from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from maniple.process import environment
from maniple.process.error import RequestError, RunError
from maniple.runtime.cluster import launcher, log_folder
from maniple.runtime.cluster.launcher import LaunchRequest
from maniple.runtime.cluster.run import command


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("pass\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("option", ["nodes", "ranks_per_node", "processors", "cores"])
@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused_by_its_option(script: str, option: str, count: int) -> None:
    name = "--" + option.replace("_", "-")
    with pytest.raises(RequestError, match=f"{name}: expected at least 1, got {count}"):
        LaunchRequest((script,), **{option: count})  # type: ignore[arg-type]


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_port_that_is_none_is_refused(script: str, port: int) -> None:
    with pytest.raises(RequestError, match="--port: expected 1 to 65535"):
        LaunchRequest((script,), port=port)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_join_timeout_that_is_none_is_refused(script: str, seconds: float) -> None:
    with pytest.raises(RequestError, match="--join-timeout: expected seconds above 0"):
        LaunchRequest((script,), join_timeout_s=seconds)


@pytest.mark.parametrize("target", [(), ("-m",), ("-m", "no_such_package_here.tool"), ("no/such/script.py",)])
def test_a_target_that_is_not_there_is_refused(target: tuple[str, ...]) -> None:
    with pytest.raises(RequestError):
        LaunchRequest(target)


def test_a_folder_is_a_target_only_with_a_main_module(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="__main__"):
        LaunchRequest((str(tmp_path),))
    (tmp_path / "__main__.py").touch()
    LaunchRequest((str(tmp_path),))


def test_a_module_is_a_target() -> None:
    LaunchRequest(("-m", "json.tool"))


def test_every_rank_is_told_its_place(script: str) -> None:
    # rank   0  1  2  3  4  5
    # node   0  0  1  1  2  2
    # local  0  1  0  1  0  1
    request = LaunchRequest((script, "--nodes", "9"), 3, 2, 4, 2, None, 7.5, "plan")
    places = []
    for rank in range(6):
        argv, variables = command(request, rank, "tcp://127.0.0.1:1", "secret")
        told = environment.read(variables)
        assert told is not None
        places.append((told.rank, told.node, told.local_rank))
        assert (told.world_size, told.nodes, told.ranks_per_node) == (6, 3, 2)
        assert (told.processors, told.cores, told.mapper, told.join_timeout_s) == (4, 2, "plan", 7.5)
        assert (told.endpoint, told.token) == ("tcp://127.0.0.1:1", "secret")
        assert {variables[name] for name in environment.THREAD_VARIABLES} == {"8"}
        assert argv[0] == sys.executable
        assert argv[-3:] == [script, "--nodes", "9"]
        assert "secret" not in argv  # every user of a host can read command lines
    assert places == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 2, 1)]


@pytest.mark.parametrize(
    ("usable", "nodes", "processors", "share"), [(8, 2, 1, 4), (8, 3, 1, 2), (2, 4, 2, 1), (7, 1, 2, 3)]
)
def test_cores_are_shared_evenly(
    script: str, monkeypatch: pytest.MonkeyPatch, usable: int, nodes: int, processors: int, share: int
) -> None:
    monkeypatch.setattr(launcher, "available_cores", lambda: usable)
    assert command(LaunchRequest((script,), nodes, 1, processors), 0)[1]["MANIPLE_CORES"] == str(share)


@pytest.mark.parametrize(
    ("nodes", "processors", "cores", "bind", "found"),
    [
        (2, 1, 2, None, ((4, 5), (6, 7))),  # they take up all
        (2, 2, 1, None, ((4, 5), (6, 7))),
        (2, 1, 1, None, ((), ())),
        (2, 1, 1, True, ((4,), (5,))),
        (2, 1, 2, False, ((), ())),
        (1, 1, 4, None, ((),)),
        (5, 1, 1, None, ((),) * 5),
    ],
)
def test_ranks_that_take_up_all_cores_keep_to_their_own(
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    processors: int,
    cores: int,
    bind: bool | None,
    found: tuple[tuple[int, ...], ...],
) -> None:
    monkeypatch.setattr(launcher, "core_numbers", lambda: (4, 5, 6, 7))
    request = LaunchRequest((script,), nodes, 1, processors, cores, bind=bind)
    told = [environment.read(command(request, rank, "tcp://127.0.0.1:1", "secret")[1]) for rank in range(nodes)]
    assert tuple(one.bound for one in told if one is not None) == found


def test_more_ranks_than_cores_are_not_bound(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "core_numbers", lambda: (4, 5))
    with pytest.raises(RequestError, match="--bind: expected at least 3 cores for 3 ranks, got 2"):
        LaunchRequest((script,), 3, cores=1, bind=True)


def test_the_default_folder_of_logs_is_fresh_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = log_folder.make_log_folder(None), log_folder.make_log_folder(None)
    assert first != second
    assert first.parent == second.parent == tmp_path / f"maniple-{os.getuid()}"
    assert {path.stat().st_mode & 0o777 for path in (first, second, first.parent)} == {0o700}


def test_a_link_in_place_of_the_folder_of_logs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"maniple-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="--log-dir"):
        log_folder.make_log_folder(None)


def test_a_chosen_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="--log-dir"):
        log_folder.make_log_folder(tmp_path / "file")


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    assert log_folder.read_tail(log) == []
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(30_000)))
    assert [line.strip() for line in log_folder.read_tail(log)] == [f"line {number}" for number in range(29980, 30000)]


def test_the_tail_has_what_a_rank_said_before_its_stacks_and_where_its_program_was(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    stacks = [f"  File {number}" for number in range(50)]
    log.write_text("\n".join(["first", *map(str, range(20)), log_folder.STACKS, *stacks]), encoding="utf-8")
    tail = [line.strip() for line in log_folder.read_tail(log)]
    assert tail == [*map(str, range(10, 20)), log_folder.STACKS, *(f"File {number}" for number in range(40, 50))]
