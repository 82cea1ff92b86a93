"""Comparisons: whether a launch is the recorded one, told at once where the program names the same objects again.

A replay compares every launch, and a loop over its arguments would take most of that time. So a comparison is written
out for each number of arguments:

    argument    recorded        told by
    2.0         float           type(a) is float
    x[P]        the tiles       a.tiles is tiles

A launch that differs is left to `Operation.take`, and so is any with a value that is not plain.
A replayed launch of a value and two regions takes 0.8 us: 0.17 here, where the loop of `Operation.take` takes 0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from maniple.runtime.program.operation import PLAIN, picker

if TYPE_CHECKING:
    from maniple.runtime.program.operation import Domain, Operation
    from maniple.runtime.program.task import Task

__all__: list[str] = []

Take = Callable[["Task[..., Any]", "Domain | None", Sequence[Any]], "tuple[object, ...] | None"]
"""Gives the values of a launch that differs from the recorded one in nothing else; None of another launch."""
_OTHERS = (AttributeError, ValueError)  # no handle where one was; more or fewer arguments


class Known(NamedTuple):
    """Which arguments are values.

    Args:
        regions: of each argument whether it names a region.
        one: whether there is one value ...
        only: ... and where that is.
        some: whether there are values at all.
        values: takes them.
    """

    regions: tuple[bool, ...]
    one: bool
    only: int
    some: bool
    values: Callable[[Sequence[Any]], tuple[object, ...]]


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
    expected = [next(plain) if given is None else given for given in tiles]
    places = [place for place, given in enumerate(tiles) if given is None]
    form = tuple(given is not None for given in tiles)
    known = Known(form, len(places) == 1, places[0] if places else 0, bool(places), picker(places))
    return _WRITTEN_OUT[len(tiles)](operation, known, *expected)


def _none(recorded: Operation, known: Known) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        if task is t and domain is d and not args:
            return ()
        return otherwise(task, domain, args)

    return take


def _one(recorded: Operation, known: Known, x: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take
    (ra,), one, only, some, values = known

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            (a,) = args
            if task is t and domain is d and (a.tiles if ra else type(a)) is x:
                return (args[only],) if one else values(args) if some else ()
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _two(recorded: Operation, known: Known, x: object, y: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take
    (ra, rb), one, only, some, values = known

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b = args
            if task is t and domain is d and (a.tiles if ra else type(a)) is x and (b.tiles if rb else type(b)) is y:
                return (args[only],) if one else values(args) if some else ()
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _three(recorded: Operation, known: Known, x: object, y: object, z: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take
    (ra, rb, rc), one, only, some, values = known

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c = args
            if (
                task is t
                and domain is d
                and (a.tiles if ra else type(a)) is x
                and (b.tiles if rb else type(b)) is y
                and (c.tiles if rc else type(c)) is z
            ):
                return (args[only],) if one else values(args) if some else ()
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _four(recorded: Operation, known: Known, x: object, y: object, z: object, u: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take
    (ra, rb, rc, re), one, only, some, values = known

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c, e = args
            if (
                task is t
                and domain is d
                and (a.tiles if ra else type(a)) is x
                and (b.tiles if rb else type(b)) is y
                and (c.tiles if rc else type(c)) is z
                and (e.tiles if re else type(e)) is u
            ):
                return (args[only],) if one else values(args) if some else ()
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _five(recorded: Operation, known: Known, x: object, y: object, z: object, u: object, v: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take
    (ra, rb, rc, re, rf), one, only, some, values = known

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c, e, f = args
            if (
                task is t
                and domain is d
                and (a.tiles if ra else type(a)) is x
                and (b.tiles if rb else type(b)) is y
                and (c.tiles if rc else type(c)) is z
                and (e.tiles if re else type(e)) is u
                and (f.tiles if rf else type(f)) is v
            ):
                return (args[only],) if one else values(args) if some else ()
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


def _six(recorded: Operation, known: Known, x: object, y: object, z: object, u: object, v: object, w: object) -> Take:
    t, d, otherwise = recorded.task, recorded.domain, recorded.take
    (ra, rb, rc, re, rf, rg), one, only, some, values = known

    def take(task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        try:
            a, b, c, e, f, g = args
            if (
                task is t
                and domain is d
                and (a.tiles if ra else type(a)) is x
                and (b.tiles if rb else type(b)) is y
                and (c.tiles if rc else type(c)) is z
                and (e.tiles if re else type(e)) is u
                and (f.tiles if rf else type(f)) is v
                and (g.tiles if rg else type(g)) is w
            ):
                return (args[only],) if one else values(args) if some else ()
        except _OTHERS:
            pass
        return otherwise(task, domain, args)

    return take


# By the number of arguments; a launch with more is compared by `Operation.take`, in a loop.
_WRITTEN_OUT: tuple[Callable[..., Take], ...] = (_none, _one, _two, _three, _four, _five, _six)
