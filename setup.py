"""The one check that pyproject.toml cannot make: the folder links under src/maniple must have survived the checkout.

The code lives in top-level folders, and ``src/maniple/`` holds one relative link to each.  A checkout made with
``core.symlinks=false`` turns those links into small text files, and setuptools would then build a wheel without the
packages and without a word.  This stops the build instead.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

PACKAGE = Path(__file__).resolve().parent / "src" / "maniple"
FOLDERS = ("process", "regions", "runtime", "operators", "mappers", "strategies")


def broken_links(package: Path) -> list[str]:
    """The folders whose link under ``package`` does not lead to a folder (in an sdist they are folders themselves)."""
    return [name for name in FOLDERS if not (package / name).is_dir()]


broken = broken_links(PACKAGE)
if broken:
    names = ", ".join(f"src/maniple/{name}" for name in broken)
    message = (
        f"these must be links to folders, and are not: {names}. "
        "If they are small text files, git made this checkout without symbolic links: "
        "run 'git config core.symlinks true' and then 'git checkout -- src/maniple' (on Windows, work inside WSL2)."
    )
    raise SystemExit(message)

setup()
