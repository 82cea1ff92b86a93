"""Nesting: values inside dictionaries, lists, tuples and dataclasses, flat under dotted names and back again.

| argument | value | leaves |
|---|---|---|
| `x` | a tensor | `x` |
| `extra` | `{"labels": y, "scale": 2.0}` | `extra.labels`, `extra.scale` |
| `pair` | `(a, [b, c])` | `pair.0`, `pair.1.0`, `pair.1.1` |
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from maniple.process.error import RequestError

_DEPTH = 4
"""How far inside an object of any other kind a tensor is looked for."""


def leaves(name: str, value: object) -> list[tuple[str, object]]:
    """What a value holds that is no container, in order, each with its dotted name; the value itself if it is none."""
    items = _items(value)
    if items is None:
        return [(name, value)]
    return [leaf for key, item in items for leaf in leaves(f"{name}.{key}", item)]


def tensors(name: str, value: object) -> list[tuple[str, Tensor]]:
    """The tensors among the leaves."""
    return [(path, leaf) for path, leaf in leaves(name, value) if isinstance(leaf, Tensor)]


def rebuilt(name: str, value: Any, leaf: Callable[[str, object], object]) -> Any:
    """A value of the same form with other leaves.

    Args:
        name: What the value is called.
        value: Is not changed.
        leaf: Gives the new leaf for a dotted name and the old one.
    """
    items = _items(value)
    if items is None:
        return leaf(name, value)
    found = [(key, rebuilt(f"{name}.{key}", item, leaf)) for key, item in items]
    if isinstance(value, tuple):
        parts = [item for _, item in found]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    fresh = copy.copy(value)
    for key, item in found:
        if isinstance(value, Mapping | list):
            fresh[key] = item
        else:
            object.__setattr__(fresh, key, item)  # also of a frozen one: nobody has seen it yet
    return fresh


def check_plain(name: str, value: object) -> None:
    """Refuse a leaf that is no tensor but may hold some, which would be constants.

    Raises:
        RequestError: Names the place.
    """
    kind = type(value).__name__
    if hasattr(type(value), "__array__") and getattr(value, "shape", None) != ():
        raise RequestError(
            f"from_torch: '{name}' is of type {kind}, whose values would be constants; pass a tensor, such as "
            "torch.as_tensor(it)"
        )
    if isinstance(value, Iterator):
        raise RequestError(
            f"from_torch: '{name}' is of type {kind}, into which the import cannot look; pass a list of what it gives"
        )
    held = next(_find_held(name, value, _DEPTH), None)
    if held is not None:
        raise RequestError(
            f"from_torch: '{name}' is of type {kind} and holds a tensor, {held}, which would be a constant; pass it in "
            "a dictionary, list, tuple or dataclass, or as an argument of its own"
        )


def _items(value: object) -> list[tuple[Any, Any]] | None:
    """What a container holds, by key; None for what is none."""
    if isinstance(value, MutableMapping):
        return list(value.items())
    if isinstance(value, tuple) and (type(value) is tuple or hasattr(value, "_fields")):
        return list(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if isinstance(value, list):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value) if hasattr(value, field.name)]
    return None


def _find_held(name: str, value: object, depth: int) -> Iterator[str]:
    """The places of tensors in an object that is no container."""
    inside: list[tuple[str, object]] = []
    if isinstance(value, set | frozenset | tuple):
        inside = [(f"{name}[...]", item) for item in value]
    elif isinstance(value, Mapping):
        inside = [(f"{name}[{key!r}]", item) for key, item in value.items()]
    elif not isinstance(value, type):
        named = getattr(value, "__dict__", {})
        slots = [slot for kind in type(value).__mro__ for slot in _slots(kind) if hasattr(value, slot)]
        inside = [(f"{name}.{key}", item) for key, item in named.items()]
        inside += [(f"{name}.{slot}", getattr(value, slot)) for slot in slots]
    for place, item in inside:
        for path, leaf in leaves(place, item):
            if isinstance(leaf, Tensor):
                yield path
            elif depth:
                yield from _find_held(path, leaf, depth - 1)


def _slots(kind: type) -> tuple[str, ...]:
    """The slots that a class declares itself."""
    found = vars(kind).get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
