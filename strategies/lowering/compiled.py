"""Compiled functions, kept between runs under the contents of all their sources.

numba keeps what it compiled beside the source file and looks at that file alone to see whether it still holds: after
another version of a function that is called from elsewhere, the old one would go on being called. Here the folder is
named after the contents of all sources with compiled functions, so a version never runs what another has compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])

PREFIX = "kernels-"
COMPILED = re.compile(rb"^@(kernel|inner|leaf)$", re.MULTILINE)
config: Any = import_module("numba.core.config")
"""numba's settings, to which it adds by what the environment says."""
options: Any = import_module("numba.core.options")
"""What a compiled function may ask for."""


def kept_in() -> Path:
    """Where this version's compiled code is kept: beside the sources, or in the user's cache."""
    sources = [source.read_bytes() for source in sorted(Path(__file__).parents[1].rglob("*.py"))]
    compiled = b"".join(source for source in sources if COMPILED.search(source))
    digest = hashlib.sha256(compiled).hexdigest()[:16]
    beside = Path(__file__).parent / "__pycache__"
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return (beside if writable else Path.home() / ".cache" / "maniple") / f"{PREFIX}{digest}"


FOLDER = kept_in()
_WARM = FOLDER / "warm"
UNUSED_S = 30 * 24 * 3600.0
"""Compiled code that no process has used for so long is removed."""


@contextmanager
def _kept() -> Iterator[None]:
    """Let numba keep what is declared meanwhile in this version's folder."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(FOLDER)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def kernel(function: Kernel) -> Kernel:
    """A compiled function."""
    with _kept():
        compiled: Kernel = numba.njit(cache=True, nogil=True)(function)  # type: ignore[assignment]
    return compiled


def inner(function: Kernel) -> Kernel:
    """A function compiled without the wrapper that Python would need to call it: half of its compile time."""
    with _kept():
        compiled: Kernel = numba.njit(cache=True, no_cpython_wrapper=True)(function)  # type: ignore[call-overload]
    return compiled


def leaf(function: Kernel) -> Kernel:
    """A compiled function that makes no array and gives none back, so that it needs to count no references.

    numba counts a reference to every array that a function is given, which takes longer than what most of these do. It
    refuses to compile one that makes an array. The option is not a public one: a numba without it counts.
    """
    uncounted = {"_nrt": False} if hasattr(options.DefaultOptions, "_nrt") else {}
    with _kept():
        compiled: Kernel = numba.njit(cache=True, no_cpython_wrapper=True, **uncounted)(function)  # type: ignore[call-overload]
    return compiled


def is_warm() -> bool:
    """Whether the code of this version was compiled before, in this run or an earlier one."""
    return _WARM.exists()


def note_compiled() -> None:
    """Note that everything is compiled, and remove what no version has used for long.

    Another checkout may keep its code in the same place, so what is merely not this version's stays.
    """
    if not FOLDER.exists():
        return
    _WARM.touch()
    for old in FOLDER.parent.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # another process removes it too
            used = old / _WARM.name
            latest = (used if used.exists() else old).stat().st_mtime
            if old != FOLDER and _WARM.stat().st_mtime - latest > UNUSED_S:
                shutil.rmtree(old, ignore_errors=True)
