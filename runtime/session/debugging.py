"""Debugging: the checks of a program's tasks, as a switch and as a block."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from maniple.runtime.session.session import Session

__all__: list[str] = []


class Debugging(AbstractContextManager[None]):
    """A program's debugging, switched on or off from when this is made; as a block, until its end.

    Args:
        session: the program.
        on: whether tasks are checked from now on.
    """

    def __init__(self, session: Session, *, on: bool) -> None:
        session.tracing.pause("debugging")
        self._session = session
        self._before = session.debugging
        session.switch_debugging(on=on)

    def __enter__(self) -> None:
        """Do nothing: it has begun."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go back to how it was."""
        self._session.switch_debugging(on=self._before)
