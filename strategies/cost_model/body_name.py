"""Names of bodies: what a task computes, so that the same code with the same values has the same name everywhere."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from itertools import count
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import TYPE_CHECKING, Any, final

import maniple.operators
from maniple.operators.library.shapes.opaque import Opaque
from maniple.operators.operator.formula import Formula
from maniple.operators.proving.user_operator import UserOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []

Apart = tuple[str, "Sequence[object]"]
"""A label, and the values that a value consists of beside it."""

_NUMBERS = count()
WRITTEN_BY_USERS = (UserOperator, Opaque)
"""The operators whose bodies are none of the library's."""


@final
class Nameless:
    """A value that nothing but itself tells from others: a plain object, a tensor.

    It is kept, so that no other value comes to lie at its address while it stands for a task.

    Args:
        value: the value.
    """

    __slots__ = ("_number", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self._number = next(_NUMBERS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nameless) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __lt__(self, other: Nameless) -> bool:
        return self._number < other._number


def body_name(body: object) -> tuple[str, tuple[Nameless, ...]]:
    """Write a body down, and give what of it has no name, in the order of the question marks that stand for it.

    A function is written as where it is, a hash of its code, and what it holds: what its closure captured, and its
    defaults. What it calls by a global name is not looked at.

        scale = 2
        partial(f, scale)               partial(module:f:1:5e1d...((), None, None), (2), {})
        lambda x, by=scale: x * by      module:<lambda>:2:90aa...((), (2), None)
        Filter().apply                  method(module:Filter.apply:7:c13f...((), None, None), ?)

    Args:
        body: an operator, a function, or whatever binds bodies.
    """
    writing = _Writing()
    return writing.write(body), tuple(writing.nameless)


def is_written_by_user(body: object) -> bool:
    """Whether the code of a body is none of the library's, so that no hash of it covers what it does."""
    written = body.function if isinstance(body, Formula) else type(body)
    # Builtins may say None.
    within = (getattr(written, "__module__", None) or "").startswith(f"{maniple.operators.__name__}.")
    return not within or isinstance(body, WRITTEN_BY_USERS)


@final
class _Writing:
    """Writes values down, and collects those that have no name."""

    def __init__(self) -> None:
        self.nameless: list[Nameless] = []
        self._open: list[object] = []

    def write(self, value: object) -> str:
        """A value as text; ``^n`` is the n-th of those that it is a part of."""
        if type(value) in _SELF_TOLD:
            return repr(value)
        for depth, whole in enumerate(self._open):
            if whole is value:
                return f"^{depth}"
        apart = _apart(value)
        if apart is None:
            self.nameless.append(Nameless(value))
            return "?"
        label, parts = apart
        self._open.append(value)
        told = ", ".join(map(self.write, parts))
        self._open.pop()
        return f"{label}({told})"


_SELF_TOLD = frozenset((NoneType, bool, int, float, complex, str, bytes, EllipsisType, range))
"""Types of values that are what they print as."""


def _apart(value: object) -> Apart | None:
    """What a value consists of; None where that is not known."""
    if (known := _KNOWN.get(type(value))) is not None:
        return known(value)
    kind = value if isinstance(value, type) else type(value)
    label = f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in label:  # a class of its own in each call
        return None
    if value is kind:
        return label, ()
    if isinstance(value, Enum):
        return label, (value.name,)
    if is_dataclass(value):
        return label, [getattr(value, each.name) for each in fields(value)]
    return None


def _of_function(function: FunctionType) -> Apart:
    code = function.__code__
    label = f"{function.__module__}:{function.__qualname__}:{code.co_firstlineno}:{_digest(code)}"
    return label, (function.__closure__ or (), function.__defaults__, function.__kwdefaults__)


def _of_builtin(function: BuiltinFunctionType) -> Apart:
    owner = function.__self__
    if owner is None or isinstance(owner, ModuleType):
        return f"{function.__module__}:{function.__qualname__}", ()
    return function.__qualname__, (owner,)


def _of_cell(cell: CellType) -> Apart:
    try:
        return "cell", (cell.cell_contents,)
    except ValueError:  # nothing was assigned yet
        return "cell", ()


@cache
def _digest(code: CodeType) -> str:
    """A hash of what code does: its instructions, the names and constants that they use, and code within it."""
    return hashlib.blake2b(_Writing().write(code).encode(), digest_size=8).hexdigest()


_KNOWN: dict[type, Callable[[Any], Apart]] = {
    FunctionType: _of_function,
    BuiltinFunctionType: _of_builtin,
    MethodType: lambda method: ("method", (method.__func__, method.__self__)),
    partial: lambda bound: ("partial", (bound.func, bound.args, bound.keywords)),
    CellType: _of_cell,
    CodeType: lambda code: (
        "code",
        (code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_code, code.co_names, code.co_consts),
    ),
    ModuleType: lambda module: (module.__name__, ()),
    tuple: lambda values: ("tuple", values),
    list: lambda values: ("list", values),
    dict: lambda table: ("dict", tuple(table.items())),
    set: lambda values: ("set", sorted(values, key=repr)),
    frozenset: lambda values: ("frozenset", sorted(values, key=repr)),
}
