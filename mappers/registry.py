"""The registry of mappers: by name, from entry points, or registered by a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from maniple.regions.error import RequestError, nearest
from maniple.runtime.program.mapper import Mapper

__all__: list[str] = []

GROUP = "maniple.mappers"

_registered: dict[str, type[Mapper]] = {}


def register_mapper(name: str, mapper: type[Mapper]) -> None:
    """Register a mapper under a name, for `--mapper` and `make_mapper`; the same class defined again replaces itself.

    Args:
        name: the name.
        mapper: a subclass of `Mapper` that needs no arguments, or one: what follows a colon, as in `name:argument`.

    Raises:
        RequestError: it is no mapper, or the name belongs to another one.
    """
    if not (isinstance(mapper, type) and issubclass(mapper, Mapper)):
        msg = f"mapper {name!r}: expected a subclass of maniple.Mapper, got {mapper!r}"
        raise RequestError(msg)
    held = _registered.get(name)
    if held is not None and _qualified(held) != _qualified(mapper):
        msg = f"mapper {name!r} is registered already, by {_qualified(held)}; got {_qualified(mapper)}"
        raise RequestError(msg)
    if held is None and any(point.name == name for point in entry_points(group=GROUP)):
        msg = f"mapper {name!r} belongs to an installed package; choose another name than {', '.join(mapper_names())}"
        raise RequestError(msg)
    _registered[name] = mapper


def mapper_names() -> tuple[str, ...]:
    """Give the names of all mappers, sorted."""
    return tuple(sorted({*_registered, *(point.name for point in entry_points(group=GROUP))}))


def make_mapper(name: str) -> Mapper:
    """Make the mapper of a name.

    Args:
        name: such as `default`, or with an argument `logging:decisions.jsonl`.

    Raises:
        RequestError: there is none (names the nearest), two packages claim the name, or an argument is missing or
            too much.
    """
    name, colon, argument = name.partition(":")
    found = _find(name)
    wanted = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    if len(wanted) > bool(colon):
        raise RequestError(f"mapper {name!r} needs a {wanted[0].name}; write {name}:{wanted[0].name.upper()}")
    if colon and not inspect.signature(found).parameters:
        raise RequestError(f"mapper {name!r} takes no argument, got {argument!r}; write {name}")
    return found(argument) if colon else found()


def _find(name: str) -> Callable[..., Mapper]:
    if name in _registered:
        return _registered[name]
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        raise RequestError(f"there is no mapper {name!r}{nearest(name, mapper_names())}")
    if len(points) > 1:
        raise RequestError(f"mapper {name!r} comes from several packages: {', '.join(p.value for p in points)}")
    loaded: object = points[0].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Mapper)):
        raise RequestError(f"mapper {name!r}: {points[0].value} is no subclass of maniple.Mapper")
    return loaded


def _qualified(mapper: type[Mapper]) -> str:
    return f"{mapper.__module__}.{mapper.__qualname__}"
