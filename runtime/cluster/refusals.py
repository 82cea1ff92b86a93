"""Refusals: the ranks that refused what was asked for, and what that makes of the run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.runtime.cluster.coordinator_event import Finish

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

# Other ranks get this long to refuse a request that one rank refused: they read the same files.
REFUSAL_S = 5.0


@final
class Refusals:
    """Which ranks refused the request, and since when there is one.

    A wrong request is every rank's: those that have not refused it get a moment to do so.
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._since: float | None = None

    def __contains__(self, rank: int) -> bool:
        """Say whether a rank refused."""
        return rank in self._texts

    def __bool__(self) -> bool:
        """Say whether any did."""
        return bool(self._texts)

    def text(self, rank: int) -> str | None:
        """Give what a rank that refused said, after its name; None for one that did not."""
        return self._texts.get(rank)

    def note(self, rank: int, text: str, now: float, *, again: bool = True) -> None:
        """Take in that a rank refused.

        Args:
            rank: which.
            text: what it said, after its name.
            now: seconds.
            again: whether this takes the place of what it said before.
        """
        if again or rank not in self._texts:
            self._texts[rank] = text
        self._since = now if self._since is None else self._since

    def is_due(self, now: float) -> bool:
        """Say whether the ranks that have not refused had time enough to."""
        return self._since is not None and now - self._since >= REFUSAL_S

    def judge(self, place: Callable[[int], str]) -> Finish:
        """Judge a run in which ranks refused the request: what rank 0 says, it has said to the user itself."""
        if 0 in self._texts:
            return Finish(2, None, None)
        rank = min(self._texts)
        return Finish(2, f"{place(rank)} {self._texts[rank]}", rank)
