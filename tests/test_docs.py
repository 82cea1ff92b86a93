"""The pages of the documentation, whose code blocks run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(page for page in DOCS.glob("*.md") if ">>> " in page.read_text(encoding="utf-8"))


def test_pages_with_code_are_found() -> None:
    assert {"mappers.md", "regions.md", "tasks.md", "traces.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_blocks_of_a_page_do_what_it_says(page: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "doctest", str(page)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
