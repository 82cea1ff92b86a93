"""Quiet threads: they wait for messages and hold no lock for which a forked process could wait in vain."""

from __future__ import annotations

import threading
from typing import final

__all__: list[str] = []


@final
class QuietThread(threading.Thread):
    """A thread of the program's own that takes no lock but those of what it serves.

    A process that is forked meanwhile has the forking thread alone, and every lock as it was. Beside quiet threads that
    is harmless if the process leaves alone what these serve.
    """
