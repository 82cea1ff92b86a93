"""Kernels that numba compiles: bound to their arguments, and compiled when bound rather than in the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numba

if TYPE_CHECKING:
    from maniple.process.compilation.numba_internals import Dispatcher, Type


def compile_kernel(kernel: Callable[..., object], arguments: tuple[object, ...]) -> Callable[[], None]:
    """The kernel with its arguments, compiled.

    Args:
        kernel: What ``numba.njit`` or ``process.compilation`` gave.
        arguments: Arrays (which stay where they are) and numbers.
    """
    typeof: Callable[[object], Type] = numba.typeof
    compiled = cast("Dispatcher[Callable[..., None]]", kernel)
    compiled.compile(tuple(typeof(argument) for argument in arguments))
    return lambda: compiled(*arguments)
