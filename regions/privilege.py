"""Privileges: what a task may do with the region that it is given."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Literal, final

from maniple.process.error import RequestError, nearest

Kind = Literal["read", "write-discard", "read-write", "reduce"]

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INTEGER_LIMITS = {
    "int64": (-(2**63), 2**63 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
}


class Coherence(enum.Enum):
    """How uses of the same elements by several tasks are ordered (Bauer et al., SC 2012, section 2).

    ==============  =======================================================================================
    exclusive       as if the launches ran one after the other; points of one launch must not interfere
    atomic          points of one launch may interfere: each runs before or after the other, never amid it
    simultaneous    tasks whose instances are one may run at once, and keep what order they need themselves
    ==============  =======================================================================================
    """

    EXCLUSIVE = "exclusive"
    ATOMIC = "atomic"
    SIMULTANEOUS = "simultaneous"


@final
@dataclass(frozen=True, slots=True)
class ReductionOp:
    """An operation that is associative and commutative, so that contributions may be folded in parts.

    Args:
        name: a word for file entries, such as ``sum``.
        symbol: what a program writes: ``+``, ``*``, ``min``, ``max``, or the name of a registered operation.
        neutral: the identity of a registered operation, the same for every type of elements.
    """

    name: str
    symbol: str
    neutral: float | int | bool | None = None

    def identity(self, dtype_name: str) -> float | int | bool:
        """The value that changes nothing: what an instance of contributions starts from.

        Args:
            dtype_name: the elements' type, such as ``float32``.

        Raises:
            RequestError: there is no identity for that type.
        """
        if self.neutral is not None:
            return self.neutral
        if dtype_name in _FLOATS:
            return {"+": 0.0, "*": 1.0, "min": math.inf, "max": -math.inf}[self.symbol]
        if dtype_name in _INTEGER_LIMITS:
            least, most = _INTEGER_LIMITS[dtype_name]
            return {"+": 0, "*": 1, "min": most, "max": least}[self.symbol]
        if dtype_name == "bool":
            return {"+": False, "*": True, "min": True, "max": False}[self.symbol]
        msg = f"no identity of reduce({self.symbol}) for elements of type {dtype_name!r}"
        raise RequestError(msg + nearest(dtype_name, (*_FLOATS, *_INTEGER_LIMITS, "bool")))

    def __str__(self) -> str:
        return self.symbol


_OPERATIONS = {
    op.symbol: op
    for op in (
        ReductionOp("sum", "+"),
        ReductionOp("product", "*"),
        ReductionOp("minimum", "min"),
        ReductionOp("maximum", "max"),
    )
}


@final
@dataclass(frozen=True, slots=True)
class Privilege:
    """One way of using a region.

    ================  ==================================================================
    kind              what the task does
    ================  ==================================================================
    read              sees the values and leaves them
    write-discard     writes every element and sees none of the old values
    read-write        sees the values and may change them
    reduce(op)        folds contributions into values that it does not see
    accumulate(op)    the same, and folds them into what its processor contributed before
    ================  ==================================================================

    Where contributions accumulate, a processor holds one of them for each box that its tasks contribute to, however
    many tasks do; where they do not, each task holds one of its own until somebody reads.

    Args:
        kind: one of the four.
        op: the operation, for ``reduce`` and for nothing else.
        accumulates: of ``reduce``, whether contributions accumulate.

    Raises:
        RequestError: the kind is not one of the four, or there is an operation where there should be none, or
            none where there should be one.
    """

    kind: Kind
    op: ReductionOp | None = None
    accumulates: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            msg = f"unknown privilege {self.kind!r}"
            raise RequestError(msg + nearest(self.kind, _KINDS))
        if (self.kind == "reduce") != (self.op is not None):
            msg = f"privilege {self.kind!r} with the operation {self.op}: reduce has one, and only reduce"
            raise RequestError(msg)
        if self.accumulates and self.op is None:
            msg = f"privilege {self.kind!r} that accumulates: only contributions do, which have the kind 'reduce'"
            raise RequestError(msg)

    @property
    def reads(self) -> bool:
        """Whether the task sees the values."""
        return self.kind in {"read", "read-write"}

    @property
    def writes(self) -> bool:
        """Whether the task's values replace the old ones."""
        return self.kind in {"write-discard", "read-write"}

    @property
    def reduces(self) -> bool:
        """Whether the task folds contributions."""
        return self.kind == "reduce"

    def __str__(self) -> str:
        if self.op is None:
            return self.kind
        return f"{'accumulate' if self.accumulates else 'reduce'}({self.op.symbol})"


_KINDS: tuple[Kind, ...] = ("read", "write-discard", "read-write", "reduce")

READ = Privilege("read")
WRITE_DISCARD = Privilege("write-discard")
READ_WRITE = Privilege("read-write")
_REDUCE = {symbol: Privilege("reduce", op) for symbol, op in _OPERATIONS.items()}


def add_operation(name: str, neutral: float) -> Privilege:
    """The privilege to fold with a further operation, known by its name from now on.

    Args:
        name: what ``reduce`` knows it by; a name that was added before is replaced.
        neutral: its identity.

    Raises:
        RequestError: the name is that of a built-in operation.
    """
    if name in _OPERATIONS:
        msg = f"reduction {name!r} is built in and cannot be replaced; choose another name"
        raise RequestError(msg)
    made = _REDUCE[name] = Privilege("reduce", ReductionOp(name, name, neutral))
    return made


def reduce(symbol: str) -> Privilege:
    """The privilege to fold contributions with one operation.

    Args:
        symbol: ``+``, ``*``, ``min``, ``max``, or the name of a registered operation.

    Raises:
        RequestError: the symbol is none of these.
    """
    if symbol not in _REDUCE:
        msg = f"unknown reduction {symbol!r}"
        raise RequestError(msg + nearest(symbol, _REDUCE))
    return _REDUCE[symbol]


def accumulate(symbol: str) -> Privilege:
    """The privilege to fold contributions with one operation into what the processor contributed before.

    Args:
        symbol: as for ``reduce``.

    Raises:
        RequestError: the symbol is none of these.
    """
    return replace(reduce(symbol), accumulates=True)
