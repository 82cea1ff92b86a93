"""The table of handlers: what writes each operator of torch into a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maniple.operators.operator.aten_overload import Overload, is_pointwise, is_random
from maniple.operators.torch_import.exported_call import plain_name

POINTWISE = "pointwise"
"""The name of the handler for all operators that torch tags as pointwise."""

TABLE: dict[str, Callable[..., Any]] = {}
"""By an operator's name with its overload, or by its packet's name for all overloads."""


def handles(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a handler under the names of what it writes.

    A handler takes the translation and the call, and gives a tensor, known values, or a list of them; None where the
    operator's arguments are beyond it, so that the operator becomes one task.
    """

    def enter(handler: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            TABLE[name] = handler
        return handler

    return enter


def handler(target: Overload) -> Callable[..., Any] | None:
    """What writes an operator; one that torch tags as pointwise needs no entry of its own."""
    name = plain_name(target)
    found = TABLE.get(name) or TABLE.get(name.partition(".")[0])
    if found is None and is_pointwise(target) and not is_random(target):
        return TABLE[POINTWISE]
    return found
