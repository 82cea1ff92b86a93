"""Tellings: what a launched program says at its end of what it made, once, for its launcher to print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.control.endings import Endings
    from maniple.runtime.control.world import World

__all__: list[str] = []


@final
class Telling:
    """What one thing of a program says before it goes, if the launcher wants to know; at the end of the program else.

    Every rank makes the same and ends them in the same order, for what is said may be put together from all ranks.

    Args:
        world: the rank.
        endings: what is called at the program's end.
        name: of the thing, for where it cannot say anything.
        text: gives what it says; nothing is said of an empty one.
    """

    def __init__(self, world: World, endings: Endings, name: str, text: Callable[[], str]) -> None:
        self._world, self._endings, self._name, self._text = world, endings, name, text

    @classmethod
    def of(cls, world: World, endings: Endings, name: str, text: Callable[[], str]) -> Self:
        """Give the telling of something that was just made; it is told when the program ends, if not before."""
        made = cls(world, endings, name, text)
        if world.report is not None:
            endings.add(made.tell)
        return made

    def tell(self) -> None:
        """Say it, once: rank 0 adds it to the launcher's file."""
        path = self._world.report
        if path is None or self.tell not in self._endings:
            return
        self.forget()
        try:
            text = self._text()
        except RequestError as error:  # the same on every rank; the program itself has done what it should
            text = f"no report of {self._name}: {error}"
        if text and self._world.rank == 0:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    def forget(self) -> None:
        """Say nothing at the end of the program."""
        self._endings.remove(self.tell)
