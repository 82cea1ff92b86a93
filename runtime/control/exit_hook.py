"""The exit hook of a launched rank's program: what an exception that nobody caught tells the launcher and the user."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, NoReturn

from maniple.process.error import RequestError, RunError
from maniple.runtime.control.control import RankStopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from maniple.process.error import ManipleError
    from maniple.runtime.control.control import Control
    from maniple.runtime.control.coordinator_client import CoordinatorClient

__all__: list[str] = []

_PACKAGE = Path(__file__).parents[2]
_controls: list[CoordinatorClient] = []
_installed: list[bool] = []

# How long a rank that ends of another's failure waits to be stopped for that one; then it tells of it itself.
PATIENCE_S = 5.0


def install() -> None:
    """Take over `sys.excepthook`, once: a wrong request is one line and exit status 2, a stopped rank says nothing."""
    if _installed:
        return
    _installed.append(True)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_consequence(error) or (_is_failure_elsewhere(error) and all(map(await_stop, _controls))):
            raise SystemExit(1)
        request = isinstance(error, RequestError)
        place, inside = _find_place(trace)
        for control in _controls:
            text = str(error) if request else f"{kind.__name__}: {error}{place}"
            control.fail("", text, request=request, inside=inside)
        if request:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(2)
        before(kind, error, trace)

    sys.excepthook = hook


def attend(control: CoordinatorClient) -> None:
    """Tell a control plane of failures from now on."""
    _controls.append(control)


def is_consequence(error: BaseException | None) -> bool:
    """Tell whether an exception, or what it came from, is the stop of the run, which the launcher explains."""
    return any(isinstance(each, RankStopped) for each in _chain(error))


def is_broken_off() -> bool:
    """Say whether an exception that the interpreter has printed ended the program: then nothing is waited for.

    At a prompt the program goes on after one.
    """
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


def await_stop(control: Control) -> bool:
    """Wait until the rank where a task failed has had the run stopped; says whether it has."""
    stopped = threading.Event()
    control.on_stop(lambda _: stopped.set())
    return stopped.wait(PATIENCE_S)


def end_badly(control: Control, error: ManipleError) -> NoReturn:
    """End this process with status 1, for what its program has not heard of before it ended.

    Where a task failed on another rank, that one tells its user.
    """
    elsewhere = isinstance(error, RunError) and not error.here and await_stop(control)
    if not elsewhere:
        control.fail("the end of the program", f"{type(error).__name__}: {error}")
        sys.stderr.write(f"error: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    control.close()
    os._exit(1)


def _is_failure_elsewhere(error: BaseException) -> bool:
    return any(isinstance(each, RunError) and not each.here for each in _chain(error))


def _find_place(trace: TracebackType | None) -> tuple[str, bool]:
    """Find the line of the user's program that raised, as messages say it, and whether that was a call of Maniple's."""
    place, inside = "", False
    for frame, line in walk_tb(trace):
        inside = inside or Path(frame.f_code.co_filename).is_relative_to(_PACKAGE)
        if not inside and frame.f_code.co_filename.partition(os.sep + "site-packages" + os.sep)[1] == "":
            place = f" at {Path(frame.f_code.co_filename).name}:{line}"
    return place, inside


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give an exception and all that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
