"""Comparisons: whether a launch is the recorded one, told at once where the program names the same objects again.

A replay compares every launch, and a loop over its arguments would take most of that time. So a comparison is written
out for each number of arguments. Whether one is a value or names a region need not be known: a value is of the type
that it had, a region names the object that it named, and neither is ever the other's.

    argument    recorded        told by
    2.0         float           type(a) is float
    x[P]        the tiles       a.tiles is tiles

A launch that differs is left to `Operation.take`, and so is any with a value that is not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from maniple.runtime.program.operation import PLAIN, picker

if TYPE_CHECKING:
    from maniple.runtime.program.operation import Domain, Operation
    from maniple.runtime.program.task import Task

__all__: list[str] = []

Take = Callable[["Task[..., Any]", "Domain | None", Sequence[Any]], "tuple[object, ...] | None"]
"""Gives the values of a launch that differs from the recorded one in nothing else; None of another launch."""
Values = Callable[[Sequence[Any]], tuple[object, ...]]
_OTHERS = (AttributeError, ValueError)  # no handle where one was; more or fewer arguments


def comparison(operation: Operation, kinds: Sequence[type]) -> Take:
    """Make what does as `Operation.take`.

    Args:
        operation: the recorded launch.
        kinds: the types of its values, which are told at once in values of the same types.
    """
    tiles = operation.arguments
    if len(tiles) >= len(_WRITTEN_OUT) or not PLAIN.issuperset(kinds):
        return operation.take
    plain = iter(kinds)
    known = [next(plain) if given is None else given for given in tiles]
    values = picker([place for place, given in enumerate(tiles) if given is None])
    return _WRITTEN_OUT[len(tiles)](operation, values, *known)


def _none(recorded: Operation, values: Values) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        if task is t and domain is d and not args:
            return ()
        return otherwise(task, domain, args)

    return take


def _one(recorded: Operation, values: Values, x: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            (a,) = args
            if task is t and domain is d and (type(a) is x or a.tiles is x):
                return values(args)
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _two(recorded: Operation, values: Values, x: object, y: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b = args
            if task is t and domain is d and (type(a) is x or a.tiles is x) and (type(b) is y or b.tiles is y):
                return values(args)
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _three(recorded: Operation, values: Values, x: object, y: object, z: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c = args
            if (
                task is t
                and domain is d
                and (type(a) is x or a.tiles is x)
                and (type(b) is y or b.tiles is y)
                and (type(c) is z or c.tiles is z)
            ):
                return values(args)
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _four(recorded: Operation, values: Values, x: object, y: object, z: object, u: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c, e = args
            if (
                task is t
                and domain is d
                and (type(a) is x or a.tiles is x)
                and (type(b) is y or b.tiles is y)
                and (type(c) is z or c.tiles is z)
                and (type(e) is u or e.tiles is u)
            ):
                return values(args)
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _five(recorded: Operation, values: Values, x: object, y: object, z: object, u: object, v: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c, e, f = args
            if (
                task is t
                and domain is d
                and (type(a) is x or a.tiles is x)
                and (type(b) is y or b.tiles is y)
                and (type(c) is z or c.tiles is z)
                and (type(e) is u or e.tiles is u)
                and (type(f) is v or f.tiles is v)
            ):
                return values(args)
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _six(recorded: Operation, values: Values, x: object, y: object, z: object, u: object, v: object, w: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c, e, f, g = args
            if (
                task is t
                and domain is d
                and (type(a) is x or a.tiles is x)
                and (type(b) is y or b.tiles is y)
                and (type(c) is z or c.tiles is z)
                and (type(e) is u or e.tiles is u)
                and (type(f) is v or f.tiles is v)
                and (type(g) is w or g.tiles is w)
            ):
                return values(args)
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


# By the number of arguments; a launch with more is compared by `Operation.take`, in a loop.
_WRITTEN_OUT: tuple[Callable[..., Take], ...] = (_none, _one, _two, _three, _four, _five, _six)
