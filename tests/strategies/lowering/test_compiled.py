"""What is compiled is kept under the contents of its sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maniple.strategies.lowering import compiled
from maniple.strategies.simulation.compilation import compile_all, is_compiled


def test_another_version_has_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("\n@kernel\ndef f(): return 1\n")
    (tmp_path / "b.py").write_text("plain = 1\n")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "kernel.py"))
    first = compiled.kept_in()
    (tmp_path / "b.py").write_text("plain = 2\n")
    assert compiled.kept_in() == first
    (tmp_path / "a.py").write_text("\n@kernel\ndef f(): return 2\n")
    assert compiled.kept_in() != first


@pytest.mark.timeout(900)
def test_a_search_finds_everything_compiled() -> None:
    compile_all()
    assert is_compiled()
    assert any(compiled.FOLDER.rglob("*.nbi"))


def test_what_another_version_uses_stays_and_what_none_has_used_for_long_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / f"{compiled.PREFIX}{name}" for name in ("own", "other", "old")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "warm").touch()
    now = (folders["own"] / "warm").stat().st_mtime
    os.utime(folders["old"] / "warm", (now - 2 * compiled.UNUSED_S, now - 2 * compiled.UNUSED_S))
    monkeypatch.setattr(compiled, "FOLDER", folders["own"])
    monkeypatch.setattr(compiled, "_WARM", folders["own"] / "warm")
    compiled.note_compiled()
    assert {folder.name for folder in tmp_path.iterdir()} == {folders["own"].name, folders["other"].name}
