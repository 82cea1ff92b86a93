"""Aten operators: an operator of torch applied to a tile, with a factor rule of its own.

What the importer cannot name in the library it writes as a call and a rule:

| call | rule |
|---|---|
| ``gelu(x0, approximate='tanh')`` | ``b s c -> b s c`` |
| ``sum.dim_IntList(x0, [1])`` | ``b s c -> b c`` |
| ``reshape(x0, shape0)`` | ``b s (h d) -> b s h d`` |

In a call, ``x0`` is the tile of operand 0, ``shape0`` the shape of the tile's result 0, and a factor's name its extent
in the tile, so arguments that count elements follow the tile.
"""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, nan
from typing import TYPE_CHECKING, ClassVar, Self, final

from maniple.operators.operator.operator import BackwardReads
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Halo, Rule, Shape
from maniple.operators.rules.view import Rearrangement
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

Slot = tuple[str, int, int, int, int]
"""A window: its factor, kernel, stride, and the rows added below and above."""

Value = Callable[[Mapping[str, object]], object]

_CONSTANTS = {"inf": inf, "nan": nan}

_NUMBER = re.compile(r"(?<![\w.])\d")
_OF_RESULTS = frozenset(f"{name}(x0)" for name in ("tanh", "sigmoid", "exp", "expm1", "sqrt", "rsqrt", "reciprocal"))
"""Calls of which torch computes the gradient from the result alone."""
_OF_DIMENSIONS = frozenset(("permute", "slice", "cat", "gather", "sum", "index"))
"""Operators whose numbers are dimensions, or 1."""


@dataclass(frozen=True, slots=True)
class AtenCall(TorchOperator):
    """A call of an operator of torch.ops.aten, and the rule by which it is split.

    Args:
        call: As above.
        text: The factor rule.
        dtypes: Of the results.
        sizes: Extents that no operand's dimension gives by itself.
        windows: Of every halo of the rule, in the order of its dimensions.
        source: File and line of what was imported, where the operator is opaque.
    """

    call: str
    text: str
    dtypes: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...] = ()
    windows: tuple[Slot, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        _parse(self.call)

    @property
    def opaque_source(self) -> str:
        """See ``AbstractOperator.opaque_source``."""
        return f"{self.call.partition('(')[0]} at {self.source}" if self.source else ""

    @property
    def counts_storage(self) -> bool:
        """See ``TorchOperator.counts_storage``."""
        return self.call.startswith("as_strided")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule as it was given; see ``AbstractOperator.rule``."""
        halos: dict[str, list[Halo]] = {}
        for factor, kernel, stride, below, above in self.windows:
            halos.setdefault(factor, []).append(Halo(kernel, stride, below, 1, above))
        return Rule.parse(self.text, halos, sizes=dict(self.sizes))

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        del dtypes, where
        return self.dtypes

    def with_batch(self, before: int, after: int) -> Self:
        """The same call, if none of its numbers may count samples; a graph of ``from_torch`` has them counted again."""
        dimensions = re.split(r"[.(]", self.call, maxsplit=1)[0] in _OF_DIMENSIONS
        if before != after and (self.sizes or (not dimensions and _NUMBER.search(self.call))):
            raise RequestError(
                f"{self.call!r} has numbers that may count samples, and a graph from a file does not say which; pass "
                f"whole batches of {before}, or import the module anew and load_state_dict() the values"
            )
        return self

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor | tuple[Tensor, ...]:
        """The call; see ``TorchOperator.forward``."""
        tile = context.tile
        if self.counts_storage:
            operands = tuple(None if operand is None else operand.clone() for operand in operands)
        known: dict[str, object] = {factor: tile.extent(factor) for factor in tile.factors}
        known |= {f"x{place}": operand for place, operand in enumerate(operands)}
        known |= {f"shape{place}": list(rect.shape) for place, rect in enumerate(tile.result_rects)}
        found = _parse(self.call)(known)
        return tuple(found) if isinstance(found, list | tuple) else found  # type: ignore[return-value]


@final
@dataclass(frozen=True, slots=True)
class Aten(AtenCall):
    """A call whose gradients depend on its operands' values, or on its result's."""

    name: ClassVar[str] = "aten"

    @property
    def backward_reads(self) -> BackwardReads:  # type: ignore[override]  # the call decides it
        """See ``AbstractOperator``: torch keeps of some functions the result, and not the operand."""
        return BackwardReads(results=(0,)) if self.call in _OF_RESULTS else BackwardReads(operands=None)


@final
@dataclass(frozen=True, slots=True)
class AtenLinear(AtenCall):
    """A call that is linear in its float operands (a copy, a permutation, a sum): its backward reads none of them."""

    name: ClassVar[str] = "aten_linear"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()

    def rearrangement(self, operand: Shape, result: Shape) -> Rearrangement | None:
        """Of a reshape, a permutation and a slice; see ``AbstractOperator.rearrangement``."""
        packet = re.split(r"[.(]", self.call, maxsplit=1)[0]
        if packet == "reshape":
            return Rearrangement(shape=result)
        if packet == "permute":
            return Rearrangement(order=tuple(json.loads(self.call[self.call.index("[") : -1])))
        if packet == "slice" and len(self.windows) == 1:
            _, kernel, stride, below, _ = self.windows[0]
            axis = int(self.call.split(",")[1])
            if (kernel, stride) == (1, 1) and below <= 0 and result[axis] <= operand[axis] + below:
                return Rearrangement(cut=(axis, -below, result[axis] - below))
        return None


@final
@dataclass(frozen=True, slots=True)
class AtenContraction(AtenCall):
    """A call that adds up products, such as a matrix product."""

    name: ClassVar[str] = "aten_contraction"
    flops_per_point: ClassVar[int] = 2


@final
@dataclass(frozen=True, slots=True)
class AtenDetached(AtenCall):
    """A call through which no gradient flows."""

    name: ClassVar[str] = "aten_detached"
    detached: ClassVar[tuple[int, ...]] = (0,)
    differentiable: ClassVar[tuple[int, ...] | None] = ()


# CPython 3.11 counts how deep a tree is for all threads together, and fails where two of them make one (gh-106905).
_ONE_AT_A_TIME = threading.Lock()


@lru_cache(maxsize=4096)
def _parse(call: str) -> Value:
    """What a call computes from the values of its names.

    Raises:
        RequestError: The text is no call of literals and names.
    """
    try:
        with _ONE_AT_A_TIME:
            tree = ast.parse(call, mode="eval")
        return _value(tree.body, call)
    except SyntaxError as error:
        raise RequestError(f"aten operator: {call!r} is no call: {error.msg}") from error


def _value(node: ast.expr, call: str) -> Value:
    """What one expression gives."""
    match node:
        case ast.Constant(value=value):
            return lambda _: value
        case ast.Name(id=name):
            return lambda known: _resolve(name, known, call)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return lambda _: -value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return lambda _: -inf
        case ast.List(elts=elements):
            items = [(_value(element, call), isinstance(element, ast.Name)) for element in elements]
            # A part of a concatenation may lie outside of a tile.
            return lambda known: [value for item, named in items if (value := item(known)) is not None or not named]
        case ast.Call(func=function, args=arguments, keywords=keywords):
            target = _target(ast.unparse(function))
            given = [_value(argument, call) for argument in arguments]
            named = {str(keyword.arg): _value(keyword.value, call) for keyword in keywords}
            return lambda known: target(*(item(known) for item in given), **{k: v(known) for k, v in named.items()})
    raise RequestError(f"aten operator: {call!r}: expected literals, names, lists and calls, got {ast.unparse(node)!r}")


def _resolve(name: str, known: Mapping[str, object], call: str) -> object:
    """The value of a name: an operand, a shape, an extent, a dtype, or a number that has no literal."""
    if name in known:
        return known[name]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    from maniple.runtime.storage.copy_kernels import torch_dtype

    try:
        return torch_dtype(name)
    except (AttributeError, TypeError) as error:
        raise RequestError(f"aten operator: {call!r}: unknown name {name!r}") from error


def _target(name: str) -> Callable[..., object]:
    """The operator of that name, found when it is called: planning does not need torch."""

    def call(*args: object, **kwargs: object) -> object:
        from maniple.operators.operator.aten_overload import calculation

        return calculation(name)(*args, **kwargs)

    return call
