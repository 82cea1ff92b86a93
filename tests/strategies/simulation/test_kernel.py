"""What is compiled is kept under the contents of its sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniple.strategies.simulation import kernel
from maniple.strategies.simulation.compilation import compile_all, is_compiled


def test_another_version_has_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("\n@kernel\ndef f(): return 1\n")
    (tmp_path / "b.py").write_text("plain = 1\n")
    monkeypatch.setattr(kernel, "__file__", str(tmp_path / "kernel.py"))
    first = kernel.kept_in()
    (tmp_path / "b.py").write_text("plain = 2\n")
    assert kernel.kept_in() == first
    (tmp_path / "a.py").write_text("\n@kernel\ndef f(): return 2\n")
    assert kernel.kept_in() != first


@pytest.mark.timeout(900)
def test_a_search_finds_everything_compiled() -> None:
    compile_all()
    assert is_compiled()
    assert any(kernel.FOLDER.rglob("*.nbi"))
