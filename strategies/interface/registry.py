"""The strategies by name: built-ins and other packages' alike are entry points, loaded when they are asked for."""

from __future__ import annotations

from typing import Any

from maniple.process.registry import Registry, class_check
from maniple.strategies.interface.strategy import AbstractStrategy

__all__: list[str] = []

# A strategy's state is its own business; whoever drives it only hands it back.
AnyStrategy = AbstractStrategy[Any]

HINT = (
    "derive it from mp.plugins.DirectStrategy and define name and plan(problem), or from mp.plugins.Strategy "
    "(docs/how-to/strategy.md)"
)
STRATEGIES: Registry[type[AnyStrategy]] = Registry(
    "strategy",
    class_check("strategy", AbstractStrategy, HINT, ("name", "needs_budget")),  # type: ignore[type-abstract]
)
"""All strategies that can be asked for."""


def register_strategy(name: str, strategy: type[AnyStrategy]) -> None:
    """Add a strategy of the program's own under a name; running a notebook's cell again replaces it.

    Raises:
        RequestError: it is no strategy, or the name belongs to another one.
    """
    STRATEGIES.register(name, strategy)
