"""A second process for the first search of an installation: it compiles the half of the simulator that takes longest.

    this process      imports the model, and compiles what times rows and what its strategy calls; then loads the rest
    the second one    lowers a small step, and so compiles the analysis of regions; finds the rest compiled; and ends

Started as `python -m maniple.compile_beside`; all that passes between the two is the compiled code that numba keeps.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from maniple.process.compilation import compiled
from maniple.process.inventory import available_cores
from maniple.strategies.simulation.compilation import compile_all, compile_timing, say_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__: list[str] = []

LOOK_S = 0.2
"""How often the second process is looked at, once this one waits for it."""


@contextmanager
def compile_beside(say: Callable[[str], None]) -> Iterator[None]:
    """Compile all that simulations call, or load it, beside what the context does; on two cores where nothing is yet.

    Args:
        say: is told how far it is.
    """
    process = _second_process()
    if process is None:
        yield
        compile_all()
        return
    try:
        yield
        compile_timing()
        while process.poll() is None:
            say_progress(say)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
    finally:
        process.kill()  # what it has kept is whole
        process.wait()
    compile_all()


def _second_process() -> subprocess.Popen[bytes] | None:
    """A process that compiles, if that helps."""
    done, _ = compiled.progress()
    if done or available_cores() < 2:
        return None
    # A session of its own: Ctrl-C in the terminal comes to this process alone.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "maniple.compile_beside"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    compile_all()
