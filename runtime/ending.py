"""The ending of a launched rank's program: what an exception that nobody caught tells the launcher and the user."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.runtime.control import RankStopped

if TYPE_CHECKING:
    from types import TracebackType

    from maniple.runtime.head_control import HeadControl

__all__: list[str] = []

_controls: list[HeadControl] = []
_installed: list[bool] = []


def install() -> None:
    """Take over `sys.excepthook`, once: a wrong request is one line and exit status 2, a stopped rank says nothing."""
    if _installed:
        return
    _installed.append(True)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_consequence(error):
            raise SystemExit(1)
        request = isinstance(error, RequestError)
        for control in _controls:
            text = str(error) if request else f"{kind.__name__}: {error}"
            control.fail("", text, request=request)
        if request:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(2)
        before(kind, error, trace)

    sys.excepthook = hook


def attend(control: HeadControl) -> None:
    """Tell a control plane of failures from now on."""
    _controls.append(control)


def is_consequence(error: BaseException | None) -> bool:
    """Tell whether an exception, or what it came from, is the stop of the run, which the launcher explains."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, RankStopped):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
