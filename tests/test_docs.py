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


def test_the_plug_ins_of_the_page_on_them_are_accepted(tmp_path: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    use = "machine = mp.Machine.cpu(2)\nmp.search(mp.model('digits_cnn'), machine, strategy='by_halves')\n"
    program = tmp_path / "page.py"
    program.write_text("\n".join([*blocks, use]), encoding="utf-8")
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    checked = [sys.executable, "-m", "maniple.cli", "check-rule", f"{program}:cube", "--samples", "2"]
    ended = subprocess.run(checked, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
