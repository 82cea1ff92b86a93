"""Compiled functions that only compiled functions call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def inner(function: Kernel) -> Kernel:
    """A function compiled without the wrapper that Python would need to call it: half of its compile time."""
    compiled: Kernel = numba.njit(cache=True, no_cpython_wrapper=True)(function)  # type: ignore[call-overload]
    return compiled
