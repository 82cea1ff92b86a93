"""Keys of runs: nobody but their owner can read them on their way, and what is no key is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maniple.process.error import RequestError, RunError
from maniple.runtime.cluster import host_run
from maniple.runtime.cluster.hosts import key
from maniple.runtime.cluster.meeting import Meeting


def test_a_key_lies_in_a_file_of_its_owner_alone_until_the_run_is_over(tmp_path: Path) -> None:
    path, made = tmp_path / "keys" / "run.key", key.mint()
    with key.lying_in(path, made, replace=False):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert key.read(str(path)) == made
        assert [one.name for one in path.parent.iterdir()] == ["run.key"]
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_there_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    with (
        pytest.raises(RequestError, match=r"precious\.txt: expected a name .*, got a file that is there; name another"),
        key.lying_in(path, key.mint(), replace=False),
    ):
        raise AssertionError("it was opened")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("precious.txt", "precious")]


def test_the_key_of_a_run_that_is_over_is_replaced_and_that_of_another_left(tmp_path: Path) -> None:
    path, first, second = tmp_path / "run.key", key.mint(), key.mint()
    with key.lying_in(path, first, replace=True):
        after = key.lying_in(path, second, replace=True)
        after.__enter__()
        assert key.read(str(path)) == second
    assert key.read(str(path)) == second  # the first removes its own key, and no other
    after.__exit__(None, None, None)
    assert not path.exists()


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.key"
    path.write_text(key.mint())
    path.chmod(0o640)
    with pytest.raises(RequestError, match="expected a file that only its owner can read, got mode 0640"):
        key.read(str(path))


def test_a_link_is_no_file_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "run.key").touch(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "run.key")
    with pytest.raises(RequestError, match=f"--key {tmp_path}/link"):
        key.read(str(tmp_path / "link"))


def test_a_file_that_is_not_there_yet_is_no_key(tmp_path: Path) -> None:
    assert key.read(str(tmp_path / "run.key")) is None


def test_a_descriptor_gives_its_first_line_and_is_closed() -> None:
    reader, writer = os.pipe()
    made = key.mint()
    os.write(writer, made.encode() + b"\nfor the program")
    kept = os.dup(reader)
    assert key.read(f"fd:{reader}") == made
    assert os.read(kept, 100) == b"for the program"
    with pytest.raises(RequestError, match="expected an open descriptor"):
        key.read(f"fd:{reader}")
    os.close(kept)
    os.close(writer)


@pytest.mark.parametrize("content", ["", "short", "x" * 32, "A" * 32 + "0"])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.key"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(RequestError, match="expected 32 hexadecimal digits") as caught:
        key.read(str(path))
    assert not content or content not in str(caught.value)


def test_the_default_file_has_the_name_of_where_hosts_meet() -> None:
    assert key.default_file("10.0.0.1:29400").name == "10.0.0.1-29400.key"
    assert key.default_file("../../etc:1").name == "..-..-etc-1.key"


def test_each_key_is_fresh() -> None:
    assert len({key.mint() for _ in range(100)}) == 100


def test_a_key_that_is_not_there_yet_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_run, "TELL_S", 0.0)
    meeting = Meeting(1, "127.0.0.1", 29400, "127.0.0.1")
    with pytest.raises(RunError, match=r"key is not there after 0.3 s; start the run on 127.0.0.1 with --node-rank 0"):
        host_run._await_key(str(tmp_path / "key"), 0.3, meeting)
    told = (
        f"maniple: waits up to 0.3 s for the key of the run at 127.0.0.1:29400: {tmp_path / 'key'} is not there yet\n"
    )
    assert capsys.readouterr().err == told
