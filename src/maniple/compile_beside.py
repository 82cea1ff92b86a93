"""A second process for the first search of an installation: it compiles a part of the simulator beside the first.

    this process      lowers a small step, and so compiles what lowers        then finds the rest compiled, and loads it
    the second one    compiles what times rows and movements, and ends

Started as `python -m maniple.compile_beside`; all that passes between the two is the compiled code that numba keeps.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maniple.runtime.process.inventory import available_cores
from maniple.strategies.lowering import compiled
from maniple.strategies.simulation.compilation import compile_all, compile_timing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []


def compile_on_two_cores() -> None:
    """Compile all that simulations call, or load it; on two cores where nothing is compiled yet."""
    with _second_process():
        compile_all()


@contextmanager
def _second_process() -> Iterator[None]:
    """A process that compiles meanwhile, if that helps; it is ended with the context, and what it has kept is whole."""
    done, _ = compiled.progress()
    if done or available_cores() < 2:
        yield
        return
    # A session of its own: Ctrl-C in the terminal comes to this process alone.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "maniple.compile_beside"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    compile_timing()
