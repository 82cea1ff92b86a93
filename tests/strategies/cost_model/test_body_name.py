"""Names of bodies: the same code and values have one name, other code or values another, and none is an address."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from maniple.strategies.cost_model.body_name import body_name
from maniple.strategies.interface.strategy import Problem


def by_default(scale: object) -> Callable[..., object]:
    def scaled(x: object, by: object = scale, *, than: object = 0) -> object:
        return x, by, than

    return scaled


def by_keyword(scale: object) -> Callable[..., object]:
    def scaled(x: object, *, by: object = scale) -> object:
        return x, by

    return scaled


def by_closure(scale: object) -> Callable[..., object]:
    return lambda x: (x, scale)


class Filter:
    def __init__(self, width: int) -> None:
        self.width = width

    def apply(self, x: object) -> object:
        return x, self.width


def nested(depth: int) -> Callable[..., object]:
    def descend(left: int = depth) -> int:
        return descend(left - 1) if left else 0

    return descend


MAKERS: list[Callable[[Any], object]] = [by_default, by_keyword, by_closure, partial(partial, by_closure), nested]


@pytest.mark.parametrize("make", MAKERS)
def test_what_a_function_holds_tells_it_from_others_made_in_its_place(make: Callable[[Any], object]) -> None:
    values = [1, 2, 1.0, True, "1", b"1", None, (1,), [1], {1: 2}, {1, 2}, operator.add, Filter, by_closure(1)]
    names = [body_name(make(value)) for value in values]
    assert len({name for name, _ in names}) == len(values)
    assert names == [body_name(make(value)) for value in [*values[:-1], by_closure(1)]]
    assert not any(nameless or re.search("0x", name) for name, nameless in names)


def test_code_in_one_line_has_names_of_its_own() -> None:
    """They differ by instructions, constants, what they call, what they take, and code within."""
    # fmt: off
    many: list[Callable[..., Any]] = [lambda x: x + 1, lambda x: x + 2, lambda x: x - 1, lambda x: x.sin(), lambda x: x.cos(), lambda x, y: y, lambda x, *y: y, lambda x: lambda: 1, lambda x: lambda: 2]  # noqa: E501
    # fmt: on
    assert len({body_name(one) for one in many}) == len(many)


def test_a_plain_object_is_told_from_others_by_itself_and_is_kept() -> None:
    one, other = Filter(3), Filter(3)
    (text, nameless), (again, itself), (_, another) = map(body_name, (one.apply, one.apply, other.apply))
    assert text == again
    assert "0x" not in text
    assert nameless == itself
    assert hash(nameless) == hash(itself)
    assert nameless != another
    assert sorted([another, nameless]) == [nameless, another]
    assert nameless[0].value is one


def test_classes_made_within_functions_and_tensors_have_no_name() -> None:
    class Local:
        pass

    for value in (Local, Local(), torch.zeros(2)):
        assert [one.value for one in body_name((value, 1))[1]] == [value]


def test_dataclasses_are_their_fields_and_what_holds_itself_ends() -> None:
    held: list[object] = [1]
    held.append(held)
    assert body_name(held) == ("list(1, ^0)", ())
    name, nameless = body_name(Problem)
    assert (name, nameless) == ("maniple.strategies.interface.strategy:Problem()", ())
    assert body_name(partial(max, 1)) == ("partial(builtins:max(), tuple(1), dict())", ())
