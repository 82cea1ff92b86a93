"""Comparisons: whether a launch is the recorded one, told at once where the program names the same objects again.

A replay compares every launch, so what is compared is written out: one function for each form of an argument list, made
when a launch of that form is first recorded, as `dataclasses` makes methods. That pays: a launch with two values and
three regions, compared in 0.8 us in all, takes 0.14 us here, 0.32 us in `Operation.take` and 0.51 us in a closure, both
of which go through the arguments in a loop. For a value and two regions:

    def take(task, domain, args):
        try:
            a0, a1, a2, = args
            if task is t and domain is d and type(a0) is x0 and a1.tiles is x1 and a2.tiles is x2:
                return (a0,)
        except (AttributeError, ValueError):  # no handle where one was, or more or fewer arguments
            pass
        return otherwise(task, domain, args)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from maniple.runtime.program.operation import PLAIN

if TYPE_CHECKING:
    from maniple.runtime.program.operation import Domain, Operation
    from maniple.runtime.program.task import Task

__all__: list[str] = []

Take = Callable[["Task[..., Any]", "Domain | None", Sequence[Any]], "tuple[object, ...] | None"]
"""Gives the values of a launch that differs from the recorded one in nothing else; None of another launch."""


def comparison(operation: Operation, kinds: Sequence[type]) -> Take:
    """Make what does as `Operation.take`.

    Args:
        operation: the recorded launch.
        kinds: the types of its values, which are told at once in values of the same types.
    """
    tiles = operation.arguments
    make = _maker(tuple(given is not None for given in tiles))
    plain = iter(kind if kind in PLAIN else None for kind in kinds)
    known = [next(plain) if given is None else given for given in tiles]
    take: Take = make(operation.take, operation.task, operation.domain, *known)
    return take


@cache
def _maker(form: tuple[bool, ...]) -> Callable[..., Take]:
    """Make what makes comparisons of one form.

    Args:
        form: for each argument whether it names a region.
    """
    known = [f"x{place}" for place in range(len(form))]
    values = "".join(f"a{place}, " for place, named in enumerate(form) if not named)
    looks = ["a{0}.tiles is x{0}" if named else "type(a{0}) is x{0}" for named in form]
    tests = [look.format(place) for place, look in enumerate(looks)]
    lines = [
        f"def make({', '.join(['otherwise', 't', 'd', *known])}):",
        "    def take(task, domain, args):",
        "        try:",
        f"            {''.join(f'a{place}, ' for place in range(len(form))) or '()'} = args",
        f"            if {' and '.join(['task is t', 'domain is d', *tests])}:",
        f"                return ({values})",
        "        except (AttributeError, ValueError):",
        "            pass",
        "        return otherwise(task, domain, args)",
        "    return take",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)  # noqa: S102  (written here, of nothing but the numbers of arguments)
    made: Callable[..., Take] = scope["make"]
    return made
