"""Tellings: what a launched program says at its end of what it made, once, for its launcher to print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.execution.rank import RankRuntime

__all__: list[str] = []


@final
class Telling:
    """What one thing of a program says before it goes, if the launcher wants to know; at the end of the program else.

    Every rank makes the same and ends them in the same order, for what is said may be put together from all ranks.

    Args:
        runtime: the rank.
        name: of the thing, for where it cannot say anything.
        text: gives what it says; nothing is said of an empty one.
    """

    def __init__(self, runtime: RankRuntime, name: str, text: Callable[[], str]) -> None:
        self._runtime, self._name, self._text = runtime, name, text

    @classmethod
    def of(cls, runtime: RankRuntime, name: str, text: Callable[[], str]) -> Self:
        """Give the telling of something that was just made; it is told when the program ends, if not before."""
        made = cls(runtime, name, text)
        if runtime.world.report is not None:
            runtime.endings.append(made.tell)
        return made

    def tell(self) -> None:
        """Say it, once: rank 0 adds it to the launcher's file."""
        path = self._runtime.world.report
        if path is None or self.tell not in self._runtime.endings:
            return
        self.forget()
        try:
            text = self._text()
        except RequestError as error:  # the same on every rank; the program itself has done what it should
            text = f"no report of {self._name}: {error}"
        if text and self._runtime.world.rank == 0:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    def forget(self) -> None:
        """Say nothing at the end of the program."""
        if self.tell in self._runtime.endings:
            self._runtime.endings.remove(self.tell)
