"""Stacks: how a rank writes where all of its threads are to its log, when the launcher asks before it ends a run.

What writes them is called by the system and needs no interpreter lock, so a rank answers inside any call; one that is
stopped does not answer.
"""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

__all__: list[str] = []


def answer(log: str | None) -> int:
    """Have this process write its stacks to its log from now on, whenever a signal asks for them.

    Args:
        log: the file; None for none.

    Returns:
        The signal; 0 where the program has a use for it of its own, or there is no log.
    """
    number = _asking()
    if log is None or not number or signal.getsignal(number) is not signal.SIG_DFL:
        return 0
    # The handler keeps the file, which so stays open for as long as the process runs.
    faulthandler.register(number, Path(log).open("ab", buffering=0), all_threads=True, chain=False)  # noqa: SIM115
    return number


def _asking() -> int:
    """Choose a signal that no library is known to use: a real-time one, or what comes nearest."""
    if hasattr(signal, "SIGRTMIN"):
        return int(signal.SIGRTMIN) + 7
    return int(getattr(signal, "SIGUSR2", 0))
