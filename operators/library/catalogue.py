"""The catalogue: every operator by name.

The library's are entry points of this package, as other packages' are of theirs; what a program makes with
``mp.operator`` is registered. So a graph file that names an operator is read wherever its package is installed.
"""

from __future__ import annotations

from maniple.operators.operator.operator import AbstractOperator
from maniple.process.error import RequestError
from maniple.process.registry import Registry, class_check

__all__: list[str] = []

_CLASS = class_check(
    "operator",
    AbstractOperator,  # type: ignore[type-abstract]
    "make it with mp.operator, or derive it from mp.plugins.TorchOperator or mp.plugins.Operator (docs/extending.md)",
    ("name", "backward_reads"),
)


def _kind(name: str, found: object) -> type[AbstractOperator]:
    """The class of an operator; what ``mp.operator`` gives has it as ``kind``.

    Raises:
        RequestError: it is no operator, or calls itself by another name than files would know it by.
    """
    kind = _CLASS(name, found if isinstance(found, type) else getattr(found, "kind", found))
    if kind.name != name:
        raise RequestError(f"operator {name!r}: {kind.__qualname__} calls itself {kind.name!r}; use that name for it")
    return kind


OPERATORS: Registry[type[AbstractOperator]] = Registry("operator", _kind)
"""All operators that a graph may have."""


def register_operator(kind: type[AbstractOperator]) -> None:
    """Add an operator of the program's own under its name; running a notebook's cell again replaces it.

    Args:
        kind: The class.

    Raises:
        RequestError: It is no operator, or the name belongs to another one.
    """
    OPERATORS.register(str(getattr(kind, "name", kind)), kind)
