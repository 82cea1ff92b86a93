"""Versions of functions: hashes of their code, by which ranks and files with different code are told apart."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable


def version_of(function: Callable[..., object]) -> str:
    """A hash of a function's source, of its bytecode where there is no source (as in a REPL), or else of its name."""
    try:
        source = inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        source = getattr(function, "__qualname__", "").encode() if code is None else code.co_code
    return hashlib.blake2b(source, digest_size=8).hexdigest()
