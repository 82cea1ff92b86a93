"""Optimizers by name, and as plain data that another process or a file can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from maniple.operators.training.adam import Adam, AdamW
from maniple.operators.training.averaging import Averaged
from maniple.operators.training.descent import SGD
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.operators.training.torch_rule import TorchRule
from maniple.process.error import RequestError, nearest

__all__: list[str] = []

BY_NAME: Mapping[str, Callable[[], AbstractOptimizer]] = {
    "sgd": lambda: SGD(lr=0.1),
    "momentum": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": Adam,
    "adamw": AdamW,
}
"""What commands know; a prediction does not depend on rates."""
_KINDS: Mapping[str, type[AbstractOptimizer]] = {
    kind.__name__: kind for kind in (SGD, Adam, AdamW, TorchRule, Averaged)
}


def optimizer_named(name: str) -> AbstractOptimizer:
    """The optimizer of a name, with arguments that do for a prediction.

    Raises:
        RequestError: there is none.
    """
    if name not in BY_NAME:
        raise RequestError(f"--optimizer: no optimizer {name!r}{nearest(name, [*BY_NAME])}")
    return BY_NAME[name]()


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
    inner = {"inner": optimizer_of(options["inner"])} if "inner" in options else {}
    return _KINDS[kind](**{name: _frozen(value) for name, value in options.items()} | inner)


def _plain(value: Any) -> Any:
    return plain_optimizer(value) if isinstance(value, AbstractOptimizer) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
