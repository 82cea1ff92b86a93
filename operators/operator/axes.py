"""The names that the library gives to the dimensions of an activation."""

from __future__ import annotations

from collections.abc import Mapping

from maniple.operators.rules.rule import Shape
from maniple.process.error import RequestError

_NAMES = {1: ("b",), 2: ("b", "c"), 3: ("b", "s", "c"), 4: ("b", "c", "y", "x")}


def activation_axes(rank: int) -> tuple[str, ...]:
    """The factors of an activation of that rank: ``b`` first; ``b c y x`` for images, ``b s c`` for sequences."""
    return _NAMES.get(rank) or ("b", *(f"d{axis}" for axis in range(1, rank)))


def present_shape(shape: Shape | None, operator: str) -> Shape:
    """The shape of an operand that must be there.

    Raises:
        RequestError: It is absent.
    """
    if shape is None:
        raise RequestError(f"{operator}: the first operand is required and absent")
    return shape


def is_integer(value: object) -> bool:
    """Whether a value is an integer; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse an attribute that is no integer or below ``least``.

    Raises:
        RequestError: Names the attribute and what came.
    """
    if not is_integer(value) or value < least:
        raise RequestError(f"{name}: expected an integer >= {least}, got {value!r}")


def check_pair(name: str, value: tuple[int, int], least: int) -> None:
    """Refuse an attribute that is no pair of integers of at least ``least``.

    Raises:
        RequestError: Names the attribute and what came.
    """
    if len(value) != 2:
        raise RequestError(f"{name}: expected two integers >= {least}, got {value!r}")
    for item in value:
        check_at_least(name, item, least)


def spatial_axes(dimensions: int) -> str:
    """The factors of the last dimensions of an image-like activation: ``x``, ``yx`` or ``zyx``."""
    return "zyx"[-dimensions:]


def check_windows(operator: str, dimensions: int, fields: Mapping[str, tuple[tuple[int, ...], int]]) -> None:
    """Refuse attributes that are no integer per spatial dimension.

    Args:
        operator: Whom messages name.
        dimensions: How many integers there must be.
        fields: By the attribute's name, its value and the least that each of its integers may be.

    Raises:
        RequestError: Names the attribute and what came.
    """
    for name, (value, least) in fields.items():
        if not isinstance(value, tuple) or len(value) != dimensions:
            raise RequestError(f"{operator}.{name}: expected {dimensions} integers >= {least}, got {value!r}")
        for item in value:
            check_at_least(f"{operator}.{name}", item, least)
