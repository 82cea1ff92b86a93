"""Huge pages: asked for where bytes fill some, and no more is taken than was asked for."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from maniple.process.huge_pages import PAGE, take

SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE") or not SMAPS.exists(), reason="needs a system that has huge pages and tells"
)


def told_at(address: int) -> dict[str, str]:
    """What the system tells of the mapping that holds an address."""
    found: dict[str, str] = {}
    inside = False
    for line in SMAPS.read_text().splitlines():
        head, _, rest = line.partition(" ")
        if "-" in head and ":" not in head:
            begin, end = (int(side, 16) for side in head.split("-"))
            inside = begin <= address < end
        elif inside:
            found[head] = rest.strip()
    return found


def test_what_fills_huge_pages_is_on_such_and_the_rest_is_not() -> None:
    taken = take(2 * PAGE + 3 * mmap.PAGESIZE)
    assert taken is not None
    values = np.frombuffer(taken, dtype=np.uint8, count=2 * PAGE + 3 * mmap.PAGESIZE)
    assert not values.any()
    values[:] = 7  # type: ignore[index]
    first, rest = told_at(values.ctypes.data), told_at(values.ctypes.data + 2 * PAGE)
    assert " hg" in f" {first['VmFlags:']}"
    assert " hg" not in f" {rest['VmFlags:']}"
    assert int(first["Size:"].split(maxsplit=1)[0]) == 2 * PAGE // 1024
    assert int(rest["Rss:"].split(maxsplit=1)[0]) == 3 * mmap.PAGESIZE // 1024, "only what was asked for"


@pytest.mark.parametrize("size", [0, 100, PAGE - 1])
def test_what_fills_none_is_left_to_others(size: int) -> None:
    assert take(size) is None
