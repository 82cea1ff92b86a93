"""Versions of functions: hashes of their code, by which ranks and files with different code are told apart."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable


def version_of(*functions: Callable[..., object]) -> str:
    """A hash of the functions' source, of the bytecode where one has none (as in a REPL), or else of its name."""
    return hashlib.blake2b(b"".join(map(_source, functions)), digest_size=8).hexdigest()


def _source(function: Callable[..., object]) -> bytes:
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        found: bytes = getattr(function, "__qualname__", "").encode() if code is None else code.co_code
        return found
