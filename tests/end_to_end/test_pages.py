"""Pages of the documentation whose code blocks run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted(
    path for path in (Path(__file__).parents[2] / "docs").glob("*.md") if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_runs(page: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "doctest", str(page)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "")


def test_there_are_pages() -> None:
    assert "regions" in [page.stem for page in PAGES]
