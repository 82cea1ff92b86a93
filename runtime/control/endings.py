"""Endings: what is left to do when the program of a rank ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


@final
class Endings:
    """What a program holds back, and what things of it have to say before they go.

    Every rank has the same endings in the same order, for what they say may be put together from all ranks.
    """

    def __init__(self) -> None:
        self._release: Callable[[], object] | None = None
        self._calls: list[Callable[[], object]] = []

    def hold_back(self, release: Callable[[], object]) -> None:
        """Take note of what starts the launches that are held back; it takes the place of what did before."""
        self._release = release

    def release(self) -> None:
        """Start what is held back."""
        if self._release is not None:
            self._release()

    def add(self, call: Callable[[], object]) -> None:
        """Have something called at the end, after all that is already."""
        self._calls.append(call)

    def remove(self, call: Callable[[], object]) -> None:
        """Have something not called, if it was to be."""
        if call in self._calls:
            self._calls.remove(call)

    def __contains__(self, call: object) -> bool:
        """Say whether something will be called."""
        return call in self._calls

    def call_all(self) -> None:
        """Call what is to be called at the end; what is called may remove itself."""
        for call in tuple(self._calls):
            call()
