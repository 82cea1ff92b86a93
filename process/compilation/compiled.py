"""Compiled functions, kept between runs under the contents of all that their code is made of.

numba keeps what it compiled beside the source file and looks at that file alone to see whether it still holds. But the
code of a function holds that of the functions which it calls, and the constants that it reads, from other files: after
a change there, the old ones would go on being run. So the code of each module is kept in a folder of its own:

    boxes.py                      __pycache__/kernels-columns.boxes-DIGEST, of boxes.py
    flow.py, which imports it     __pycache__/kernels-optcnn.flow-DIGEST, of flow.py and of the digest of boxes

A change compiles its module again and those that import it; another version, or another checkout, never runs what was
compiled here.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from sys import modules
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np

from maniple.process import environment
from maniple.process.compilation import inner_library, linkable_code, numba_internals

Kernel = TypeVar("Kernel", bound=Callable[..., object])

at = cast("Callable[[Any], int]", np.uint64)
"""A place in an array, for compiled code: of a signed one it asks each time whether it counts from the end."""

PREFIX = "kernels-"
UNUSED_S = 30 * 24 * 3600.0
"""Compiled code that no process has used for so long is removed."""

config: Any = import_module("numba.core.config")
"""numba's settings, to which it adds by what the environment says."""
options: Any = import_module("numba.core.options")
"""What a compiled function may ask for."""

# Nothing is called through a pointer, for which numba would add an entry to each function.
KERNEL: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True}
NUMPY_KERNEL = {**KERNEL, "error_model": "numpy"}
INNER: dict[str, Any] = {
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    **({"pipeline_class": inner_library.InnerCompiler} if inner_library.IS_SUPPORTED else {}),
}
LEAF = {**INNER, "_nrt": False} if hasattr(options.DefaultOptions, "_nrt") else INNER
ASKED = repr((KERNEL, NUMPY_KERNEL, INNER, LEAF)).encode() + b"".join(
    Path(inspect.getfile(module)).read_bytes() for module in (inner_library, numba_internals)
)
"""How functions are compiled, which numba's own key does not say."""


@dataclass(slots=True, eq=False)
class _Module:
    """A module with compiled functions.

    Args:
        digest: of all that their code is made of.
        folder: where it is kept.
        functions: those that were declared.
    """

    digest: str
    folder: Path
    functions: list[Any] = field(default_factory=list)


_MODULES: dict[str, _Module] = {}
"""The modules with compiled functions that were imported; numba keeps what it compiled of them for as long."""


def kernel(function: Kernel) -> Kernel:
    """A compiled function that Python calls."""
    return _declared(function, KERNEL)


def numpy_kernel(function: Kernel) -> Kernel:
    """A compiled function that Python calls, and in which a division by zero gives an infinity or NaN, as numpy's."""
    return _declared(function, NUMPY_KERNEL)


def inner(function: Kernel) -> Kernel:
    """A function that compiled code alone calls: it has no wrapper for Python, and no machine code of its own."""
    return _declared(function, INNER)


def leaf(function: Kernel) -> Kernel:
    """An inner function that makes no array and gives none back, so that it needs to count no references.

    numba counts a reference to every array that a function is given, which takes longer than what most of these do. It
    refuses to compile one that makes an array. The option is not a public one: a numba without it counts.
    """
    return _declared(function, LEAF)


def _declared(function: Kernel, asked: Mapping[str, Any]) -> Kernel:
    """The function compiled by numba, which keeps the code in the folder of its module."""
    module = _module(function)
    with _kept_in(module.folder):
        declare: Any = numba.njit(cache=True, **asked)
        compiled: Kernel = declare(function)
        numba_internals.ignore_literals(compiled)
    module.functions.append(compiled)
    return compiled


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Let numba keep what is declared meanwhile in a folder."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _module(function: Any) -> _Module:
    """The module of a function; when its first one is declared, all that it imports is there."""
    name, source = function.__module__, Path(inspect.getfile(function))
    if name not in _MODULES:
        found = digest(source.read_bytes(), function.__globals__)
        folder = place(source) / f"{PREFIX}{'.'.join(name.split('.')[-2:])}-{found}"
        with suppress(OSError):  # it is not there yet, or another user's
            os.utime(folder)
        _MODULES[name] = _Module(found, folder)
    return _MODULES[name]


def digest(source: bytes, names: Mapping[str, object]) -> str:
    """Say what the code of a module's functions is made of.

    Args:
        source: the module's.
        names: what it knows by which name: other modules of its package, and their functions and constants.
    """
    root = str(names["__name__"]).partition(".")[0]
    told = {name: _told(value, root) for name, value in sorted(names.items()) if not name.startswith("__")}
    known = "\0".join(f"{name} = {value}" for name, value in told.items() if value is not None)
    return hashlib.sha256(source + known.encode() + ASKED).hexdigest()[:16]


def _told(value: object, root: str) -> str | None:
    """What a name stands for, as far as compiled code can depend on it."""
    if isinstance(value, ModuleType):
        return _of_module(value.__name__, root)
    function = getattr(value, "py_func", None)
    if function is not None:
        return _of_module(function.__module__, root)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value) if _is_constant(value) else None


def _of_module(name: str, root: str) -> str | None:
    """The digest of another module of the package; of one without compiled functions, that of its source."""
    if name in _MODULES:
        return _MODULES[name].digest
    source = getattr(modules.get(name), "__file__", None)
    if name.partition(".")[0] != root or source is None:
        return None
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic))


def place(source: Path) -> Path:
    """Where what is compiled of a file is kept: beside it, or in the user's cache."""
    beside = source.parent / "__pycache__"
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return beside if writable else environment.cache_folder()


def progress() -> tuple[int, int]:
    """How many functions of the imported modules are compiled, by whatever process, and how many there are."""
    indices = sum(1 for module in _MODULES.values() for _ in module.folder.glob("*/*.nbi"))
    return indices, sum(len(module.functions) for module in _MODULES.values())


def pack() -> None:
    """Let go of what is kept of functions for callers that might be compiled later: 20 MiB of a training's."""
    with numba_internals.global_compiler_lock:
        for module in _MODULES.values():
            for function in module.functions:
                linkable_code.pack(function)


def remove_unused() -> None:
    """Remove compiled code that no process has used for long: to import its module is to use it.

    Another checkout may keep its code in the same place, so what is merely not this version's stays.
    """
    own = {module.folder for module in _MODULES.values()}
    for parent in {folder.parent for folder in own}:
        _remove_unused(parent, own)


def _remove_unused(parent: Path, own: set[Path]) -> None:
    """Remove what is unused in one place, by the clock of its disk."""
    used = dict[Path, float]()
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # another process removes it too
            used[folder] = folder.stat().st_mtime
    latest = max((since for folder, since in used.items() if folder in own), default=0.0)
    for folder, since in used.items():
        if folder not in own and latest - since > UNUSED_S:
            shutil.rmtree(folder, ignore_errors=True)
