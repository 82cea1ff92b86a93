"""The mappers by name: built-ins and other packages' alike are entry points, loaded when they are asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

from maniple.process.error import RequestError
from maniple.process.registry import Registry, class_check
from maniple.runtime.program.mapper import Mapper

__all__: list[str] = []

MAPPERS: Registry[type[Mapper]] = Registry(
    "mapper",
    class_check("mapper", Mapper, "derive it from mp.Mapper (docs/how-to/mapper.md)"),
)
"""All mappers that can be asked for."""


def register_mapper(name: str, mapper: type[Mapper]) -> None:
    """Register a mapper under a name, for `--mapper` and `make_mapper`; the same class defined again replaces itself.

    Args:
        name: the name.
        mapper: a subclass of `Mapper` that needs no arguments, or one: what follows a colon, as in `name:argument`.

    Raises:
        RequestError: it is no mapper, or the name belongs to another one.
    """
    MAPPERS.register(name, mapper)


def make_mapper(name: str) -> Mapper:
    """Make the mapper of a name.

    Args:
        name: such as `default`, or with an argument `logging:decisions.jsonl`.

    Raises:
        RequestError: there is none (names the nearest), two packages claim the name, or an argument is missing or
            too much.
    """
    name, colon, argument = name.partition(":")
    found = cast("Callable[..., Mapper]", MAPPERS.lookup(name))
    parameters = inspect.signature(found).parameters
    wanted = [each for each in parameters.values() if each.default is each.empty]
    if len(wanted) > bool(colon):
        raise RequestError(f"mapper {name!r} needs a {wanted[0].name}; write {name}:{wanted[0].name.upper()}")
    if colon and not parameters:
        raise RequestError(f"mapper {name!r} takes no argument, got {argument!r}; write {name}")
    return found(argument) if colon else found()
