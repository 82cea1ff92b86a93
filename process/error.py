"""The family of errors that Maniple raises on purpose."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ManipleError(Exception):
    """An error that Maniple raises on purpose, with the next step in its message."""


class RequestError(ManipleError, ValueError):
    """A request that cannot be met as asked; commands that meet it end with exit status 2."""


class RoomError(RequestError):
    """A request whose values some memory cannot hold; one that needs less may be met."""


class RunError(ManipleError, RuntimeError):
    """A run that failed after it was accepted; commands that meet it end with exit status 1.

    `here` says whether it is this rank's own: of another's failure that rank tells its user.
    """

    here: bool = True


def nearest(name: str, choices: Iterable[str]) -> str:
    """A message's ending that lists the good choices, the nearest one first where there is one.

    Args:
        name: what came.
        choices: what is accepted; listed in sorted order.

    Returns:
        A suffix such as ``"; did you mean 'expert'? choices: data_parallel, expert"``.
    """
    known = sorted(set(choices))
    if not known:
        return "; there are no choices"
    listed = "choices: " + ", ".join(known)
    lowered: dict[str, str] = {}
    for choice in known:
        lowered.setdefault(choice.lower(), choice)
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f"; did you mean {lowered[close[0]]!r}? {listed}" if close else f"; {listed}"
