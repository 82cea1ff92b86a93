"""The names that the library gives to the dimensions of an activation."""

from __future__ import annotations

from maniple.operators.rule import Shape
from maniple.regions.error import RequestError

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
