"""Searches on several processes: strategies whose proposals are made in work items that do not need each other.

A work item is a value: where it stands, and how far it has come. Whoever holds a workbench for the same problem can
take it further, in this process or another; what it finds depends on nothing but the item. When all items of a round
have ended, the state of the search follows from them and says which items come next. So a plan depends on the seed and
the number of proposals, and not on how many processes there are, or how fast.

    round   items      who                      what follows
    1       a b c d    a c: one, d b: another   from the fastest plan of the four
    2       e f g h    all in one               likewise

Proposals are counted item by item in the order of the round. A search that ends within a round counts, and uses, its
items up to and with the first that has not ended: those that steps one after another would have come to.

Every plan that is evaluated counts as a proposal: what a search has found changes in no step that does not count. So it
does not matter which of the states with one number of proposals a search ends in, and one that ended after some seconds
is found again by its number.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, final

from maniple.operators.operator.function_version import version_of
from maniple.process.error import RequestError
from maniple.strategies.interface.strategy import AbstractStrategy

if TYPE_CHECKING:
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

State = TypeVar("State")
Address = tuple[str, str, str]
"""Where another process finds a strategy's class: its module, its qualified name, and a hash of its source."""


class WorkItem(Protocol):
    """A part of a round, as far as it has come: a value."""

    @property
    def proposals(self) -> int:
        """How many changes it has evaluated."""
        ...

    @property
    def most(self) -> int:
        """How many it evaluates at most; 0 for one that makes none."""
        ...

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        ...

    def step(self, bench: Any, /) -> Self:
        """The item after one more change has been evaluated, or passed over.

        Args:
            bench: a workbench for the problem; what it holds goes to where the item stands, and stays where it then
                stands.
        """
        ...

    def pack(self) -> list[Any] | None:
        """The item as numbers, strings, bytes, None, and lists of these; None where it must stay in its process."""
        ...


class AbstractParallelStrategy(AbstractStrategy[State]):
    """A strategy whose work comes in rounds of work items, which several processes can take further."""

    needs_budget: ClassVar[bool] = True
    width: ClassVar[int] = 8
    """So many items are a round: more processes than that have nothing to do."""

    @abstractmethod
    def items(self, state: State) -> tuple[WorkItem, ...]:
        """The items of the present round, in the order in which their proposals count."""

    @abstractmethod
    def with_items(self, state: State, items: tuple[WorkItem, ...]) -> State:
        """The state whose present round has come as far as these items; there may be fewer than before."""

    @abstractmethod
    def before(self, state: State) -> int:
        """How many proposals were made before the present round."""

    @abstractmethod
    def next_round(self, state: State) -> State:
        """The state after a round all of whose items have ended, or that had none."""

    @abstractmethod
    def bench(self, problem: Problem) -> Any:
        """A workbench: what any process needs to take items of a problem further, made once in each."""

    @abstractmethod
    def bench_of(self, state: State) -> Any:
        """The workbench of the process that the state is in."""

    @abstractmethod
    def unpack(self, plain: list[Any]) -> WorkItem:
        """The item that its ``pack`` gave.

        Raises:
            RequestError: it is none.
        """

    def advance(self, item: WorkItem, bench: Any) -> WorkItem:
        """An item after one more step at a workbench; all that drive a search ask this."""
        return item.step(bench)

    @final
    def step(self, state: State) -> State:
        """The state after one more step of the first item that has not ended, or after the round."""
        for number, item in enumerate(self.items(state)):
            if not item.finished:
                return self.with_item(state, number, self.advance(item, self.bench_of(state)))
        return self.next_round(state)

    @final
    def with_item(self, state: State, number: int, item: WorkItem) -> State:
        """The state in which one item, by its number, has come further."""
        items = self.items(state)
        return self.with_items(state, (*items[:number], item, *items[number + 1 :]))

    @final
    def settle(self, state: State) -> State:
        """The state without the items after the first that has proposals left."""
        items = self.items(state)
        ends = [number for number, item in enumerate(items) if item.most and not item.finished]
        return self.with_items(state, items[: ends[0] + 1]) if ends else state


def address_of(kind: type[AbstractStrategy[Any]]) -> Address:
    """Where another process finds a strategy's class.

    Raises:
        RequestError: no module that can be imported has it under its name.
    """
    found: object = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not kind:
        raise RequestError(
            f"another process cannot import {kind.__qualname__} from {kind.__module__}; define the class in a module "
            "of its own, at the top level"
        )
    return kind.__module__, kind.__qualname__, version_of(kind)


def strategy_at(address: Address) -> type[AbstractStrategy[Any]]:
    """The class at an address.

    Raises:
        RequestError: there is none here, or one of other source.
    """
    module, qualname, version = address
    try:
        found: Any = import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"{module}:{qualname} cannot be loaded here ({error})") from error
    if not (isinstance(found, type) and issubclass(found, AbstractStrategy)):
        raise RequestError(f"{module}:{qualname} is no strategy here, but {found!r}")
    if version_of(found) != version:
        raise RequestError(f"{module}:{qualname} is another class here: its source differs")
    return found
