"""Holders: what has memory of the ranks until it is closed, as a trainer has its weights and instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__: list[str] = []


class AbstractHolder(ABC):
    """What has memory of the ranks until it is closed; a `with` closes it."""

    @abstractmethod
    def close(self) -> None:
        """Wait for what is under way on all ranks, and let go of what is held."""

    @abstractmethod
    def _let_go(self) -> None:
        """Let go of it, without waiting for anybody."""

    def __enter__(self) -> Self:
        """Give it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; with an error on its way out, without waiting for other ranks."""
        if kind is None:
            self.close()
        else:
            self._let_go()
