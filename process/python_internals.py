"""What is used of CPython that it does not document: all of it is named here, and nowhere else.

Checked with CPython 3.11, and with no other.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__: list[str] = []

_runpy: Any = import_module("runpy")
run_module: Callable[[str], object] = _runpy._run_module_as_main  # noqa: SLF001
"""Run a module as the interpreter does for `-m`: in `__main__`, with the module's file as the first argument."""

frame_above: Callable[[int], FrameType] = sys._getframe  # noqa: SLF001
"""The frame so many calls above the caller's: what `inspect` looks at, without the list of source lines it builds."""

# What `signal` wraps. In Python 3.11 the wrappers try in vain to make a member of an enumeration of every handler: a
# block that holds SIGINT back takes up to 60 us of a run of 200 tasks with them, without them 14 at most, most of it
# because caches are cold.
_signal: Any = import_module("_signal")
handler_of: Callable[[int], Any] = _signal.getsignal
"""What handles a signal: as `signal.getsignal`."""
set_handler: Callable[[int, Any], Any] = _signal.signal
"""Have something handle a signal; gives what did before: as `signal.signal`."""
