"""Optimizers by name, and as plain data that another process or a file can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from maniple.operators.training.adam import Adam, AdamW
from maniple.operators.training.averaging import Averaged
from maniple.operators.training.descent import SGD
from maniple.operators.training.muon import Muon, non_matrices
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.operators.training.torch_rule import TorchRule
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.training.parameter import Model

__all__: list[str] = []

BY_NAME: Mapping[str, Callable[[Model], AbstractOptimizer]] = {
    "sgd": lambda _: SGD(lr=0.1),
    "momentum": lambda _: SGD(lr=0.1, momentum=0.9),
    "adam": lambda _: Adam(),
    "adamw": lambda _: AdamW(),
    "muon": lambda graph: Muon(groups={others: AdamW()} if (others := non_matrices(graph)) else ()),
}
"""What commands know; a prediction does not depend on rates."""
_KINDS: Mapping[str, type[AbstractOptimizer]] = {
    kind.__name__: kind for kind in (SGD, Adam, AdamW, Muon, TorchRule, Averaged)
}
OPTIMIZER = "optimizer"
"""What stands before an optimizer that is an argument of another."""


def optimizer_named(name: str, graph: Model) -> AbstractOptimizer:
    """The optimizer of a name, with arguments that do for a prediction.

    Args:
        name: the name.
        graph: whose parameters it updates.

    Raises:
        RequestError: there is none.
    """
    check_optimizer_name(name)
    return BY_NAME[name](graph)


def check_optimizer_name(name: str) -> None:
    """Refuse a name that no optimizer has.

    Raises:
        RequestError: there is none.
    """
    if name not in BY_NAME:
        raise RequestError(f"--optimizer: no optimizer {name!r}{nearest(name, [*BY_NAME])}")


def plain_optimizer(optimizer: AbstractOptimizer | None) -> list[Any]:
    """An optimizer as what JSON can hold; nothing of none."""
    if optimizer is None:
        return []
    own: tuple[Any, ...] = fields(optimizer)  # type: ignore[arg-type]
    return [type(optimizer).__name__, {each.name: _plain(getattr(optimizer, each.name)) for each in own}]


def optimizer_of(plain: list[Any]) -> AbstractOptimizer | None:
    """The optimizer that was written down.

    Raises:
        RequestError: another version wrote it.
    """
    if not plain:
        return None
    kind, options = plain
    if kind not in _KINDS:
        raise RequestError(f"optimizer: expected one of {', '.join(_KINDS)}, got {kind!r}")
    return _KINDS[kind](**{name: _frozen(value) for name, value in options.items()})


def _plain(value: Any) -> Any:
    """An argument of an optimizer; one that is an optimizer itself is a table, which no other is."""
    if isinstance(value, AbstractOptimizer):
        return {OPTIMIZER: plain_optimizer(value)}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return optimizer_of(value[OPTIMIZER])
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
