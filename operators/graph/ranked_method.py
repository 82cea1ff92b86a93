"""Builder methods that differ in one number alone: of how many dimensions the windows are that they move."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar

Builder = TypeVar("Builder")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def of_rank(
    name: str, count: int, method: Callable[Concatenate[int, Builder, Arguments], Result]
) -> Callable[Concatenate[Builder, Arguments], Result]:
    """The method of one number of dimensions; ``help`` and type checkers show it as if it were written out.

    Args:
        name: The method's.
        count: The dimensions, which every call is given first.
        method: Of any number of dimensions. Where its documentation has a name of torch with ``Nd``, this one's has
            the number.
    """

    @wraps(method)
    def ranked(self: Builder, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return method(count, self, *args, **kwargs)

    _, *own = signature(method).parameters.values()
    ranked.__name__ = name
    ranked.__qualname__ = f"Graph.{name}"
    ranked.__doc__ = (method.__doc__ or "").replace("Nd", f"{count}d")
    vars(ranked)["__signature__"] = signature(method).replace(parameters=own)
    return ranked
