"""Linkable code: what numba keeps of a compiled function for callers that are compiled later.

It keeps LLVM's module in memory, ten times what it is read from. Machine code does not need it. This uses names of
numba's code libraries that begin with an underscore, as numba 0.68 has them; of a numba without them it stays as it is.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

__all__: list[str] = []

# llvmlite has no types that say what this is.
binding: Any = import_module("llvmlite.binding")


def pack(dispatcher: Any) -> None:
    """Keep what callers of a function link as bytes, which are read again once one is compiled.

    Args:
        dispatcher: what ``numba.njit`` gave.
    """
    for library in {id(found.library): found.library for found in dispatcher.overloads.values()}.values():
        module = getattr(library, "_shared_module", None)
        if module is not None and hasattr(library, "_get_module_for_linking"):
            library._get_module_for_linking = partial(_unpack, library, module.as_bitcode())  # noqa: SLF001
            library._shared_module = None  # noqa: SLF001


def _unpack(library: Any, packed: bytes) -> Any:
    """What callers link, read again."""
    del library._get_module_for_linking  # noqa: SLF001  (its class has one)
    library._shared_module = binding.parse_bitcode(packed)  # noqa: SLF001
    return library._shared_module  # noqa: SLF001
