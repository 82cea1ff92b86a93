"""Sequences whose items are made when somebody asks for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

__all__: list[str] = []

Item_co = TypeVar("Item_co", covariant=True)


class OnDemand(Sequence[Item_co]):
    """A sequence that gives an item by its number as `item` makes it, once or each time."""

    @abstractmethod
    def item(self, number: int) -> Item_co:
        """Give the item of a number from 0 to the last one."""

    @overload
    def __getitem__(self, number: int) -> Item_co: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Item_co, ...]: ...
    def __getitem__(self, number: int | slice) -> Item_co | tuple[Item_co, ...]:
        """Give one of them, or several; negative numbers count from the end."""
        count = len(self)
        if isinstance(number, slice):
            return tuple([self.item(each) for each in range(*number.indices(count))])
        if not -count <= number < count:
            msg = f"expected a number below {count}, got {number}"
            raise IndexError(msg)
        return self.item(number % count)
