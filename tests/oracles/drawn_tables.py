"""Tables that docstrings draw, read back, so that a test asserts what a reader sees.

name
    lane 0   F0 F1
    lane 1   -- F0
"""

from __future__ import annotations


def drawn(docstring: str | None, name: str) -> list[str]:
    """The rows under a name, up to an empty line."""
    lines = (docstring or "").splitlines()
    found: list[str] = []
    for line in lines[lines.index(f"    {name}") + 1 :]:
        if not line.strip():
            break
        found.append(line.strip())
    return found
