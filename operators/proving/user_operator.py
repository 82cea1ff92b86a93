"""Operators that a user adds: a factor rule and a pure function of tiles."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast, final

from maniple.operators.library.catalogue import CATALOGUE, register_operator
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.function_version import version_of
from maniple.operators.operator.operator import FLOAT_DTYPES
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.regions.error import RequestError

if TYPE_CHECKING:
    import torch

    from maniple.operators.operator.operator import TileContext
    from maniple.operators.rules.rule import Window

Body = Callable[..., object]
Examples = Callable[[Mapping[str, int], "torch.Generator"], Sequence["torch.Tensor | None"]]


@final
@dataclass(frozen=True)
class Definition:
    """What ``mp.operator`` was given.

    Args:
        function: The body.
        text: The factor rule.
        reduce: See ``Rule.parse``.
        halos: See ``Rule.parse``.
        sizes: See ``Rule.parse``.
        dtypes: Of the results; empty, or ``""`` for one: the operands' float dtype.
        examples: Makes operands for the prover from the factors' extents; None: normal numbers.
        wants_tile: Whether the body takes the tile as keyword ``tile``.
    """

    function: Body
    text: str
    reduce: str
    halos: Mapping[str, Window]
    sizes: Mapping[str, int]
    dtypes: tuple[str, ...]
    examples: Examples | None
    wants_tile: bool


@dataclass(frozen=True, slots=True)
class UserOperator(TorchOperator):
    """The base of every operator that a user adds: a class for each definition.

    Args:
        arguments: The keyword arguments of its body, sorted by name.
        version: A hash of the body's source, so that ranks with different code are told apart.
    """

    arguments: tuple[tuple[str, object], ...] = ()
    version: str = ""

    definition: ClassVar[Definition]

    def __post_init__(self) -> None:
        own = version_of(self.definition.function)
        if self.version != own:
            raise RequestError(
                f"operator {self.name}: the graph was made with version {self.version} of its body, this is {own}; "
                "build the graph again"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """See ``AbstractOperator.rule``."""
        chosen = self.definition
        return Rule.parse(chosen.text, chosen.halos, sizes=chosen.sizes, shapes=shapes, reduce=chosen.reduce)

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        del where
        common = next((dtype for dtype in dtypes if dtype in FLOAT_DTYPES), FLOAT_DTYPES[0])
        count = self.definition.text.partition("->")[2].count(",") + 1
        given = self.definition.dtypes or ("",) * count
        return tuple(dtype or common for dtype in given)

    def forward(
        self, context: TileContext, operands: tuple[torch.Tensor | None, ...]
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """See ``TorchOperator.forward``."""
        extra = {"tile": context} if self.definition.wants_tile else {}
        return self.definition.function(*operands, **dict(self.arguments), **extra)  # type: ignore[return-value]


@final
class OperatorFunction:
    """What ``mp.operator`` makes of a function: called with tensors of a graph, it adds a node to the graph.

    Args:
        kind: The operator's class.
    """

    def __init__(self, kind: type[UserOperator]) -> None:
        self.kind = kind
        self.__doc__ = kind.definition.function.__doc__

    def __call__(
        self, *operands: Tensor | None, name: str | None = None, **arguments: object
    ) -> Tensor | tuple[Tensor, ...]:
        """Apply the operator.

        Args:
            operands: Tensors of one graph; None for an absent optional one.
            name: The node's name; None: the function's and a counter.
            arguments: The keyword arguments of the body.

        Returns:
            The result, or the results where the rule has several.

        Raises:
            RequestError: No tensor of a graph, or shapes that do not fit the rule.
        """
        graph = next((operand.graph for operand in operands if isinstance(operand, Tensor)), None)
        if graph is None:
            given = ", ".join(type(operand).__name__ for operand in operands)
            raise RequestError(f"operator {self.kind.name}: expected tensors of a graph, got ({given})")
        found = graph.apply(self.operator(**arguments), operands, (), name)
        return found[0] if len(found) == 1 else found

    def operator(self, **arguments: object) -> UserOperator:
        """The operator with some keyword arguments."""
        return self.kind(tuple(sorted(arguments.items())), version_of(self.kind.definition.function))


def operator(
    text: str,
    *,
    reduce: str = "",
    halos: Mapping[str, Window] | None = None,
    sizes: Mapping[str, int] | None = None,
    dtypes: Sequence[str] = (),
    detached: Sequence[int] = (),
    flops_per_point: int = 1,
    examples: Examples | None = None,
    name: str | None = None,
) -> Callable[[Body], OperatorFunction]:
    """Make an operator of a pure function of tiles.

        @mp.operator("b s k, n k -> b s n", reduce="k:sum", flops_per_point=2)
        def project(x, weight):
            return x @ weight.T

    The function is called with the part of each operand that a tile reads, and gives the part of each result that it
    writes, or its contribution where parts fold. It writes to no operand. Keyword arguments are attributes; one called
    ``tile`` is given the ``TileContext``: where the tile lies in the whole. Its gradient is autograd's.
    ``maniple check-rule file.py:project`` compares it whole and split in every legal way.

    Args:
        text: The factor rule, e.g. ``"b s k, n k -> b s n"``; see docs/reference/factor-rules.md.
        reduce: How parts of a split of each factor fold into results that lack it, e.g. ``"k:max"``.
        halos: The window of every factor written ``y~``.
        sizes: Extents of factors that no operand gives.
        dtypes: Of the results; ``""``: the operands' float dtype, as for all by default.
        detached: The places of float results through which no gradient flows.
        flops_per_point: The arithmetic of one point of the iteration space.
        examples: Makes operands for ``check-rule`` from the factors' extents and a generator.
        name: Of the operator; the function's by default.

    Raises:
        RequestError: The text is not a rule, or the library has an operator of that name.
    """

    def decorate(function: Body) -> OperatorFunction:
        label = str(name or getattr(function, "__name__", "operator"))
        definition = Definition(
            function,
            text,
            reduce,
            dict(halos or {}),
            dict(sizes or {}),
            tuple(dtypes),
            examples,
            _takes_tile(function),
        )
        try:
            return _defined(label, definition, detached=tuple(detached), flops_per_point=flops_per_point)
        except RequestError as error:
            found = RequestError(f"operator {label!r} ({place_of(function)}): {error}")
            if (refused := _REFUSED.get()) is None:
                raise found from error
            refused[label] = found
            return cast("OperatorFunction", Refused(label, found))

    return decorate


@final
@dataclass(frozen=True)
class Refused:
    """What stands for an operator whose rule is none, while a file is looked through.

    Args:
        name: The operator's.
        error: Why it is none.
    """

    name: str
    error: RequestError

    def __call__(self, *operands: object, **arguments: object) -> NoReturn:
        """Say why there is no such operator.

        Raises:
            RequestError: Always.
        """
        del operands, arguments
        raise self.error


_REFUSED: ContextVar[dict[str, RequestError] | None] = ContextVar("refused", default=None)


@contextmanager
def refusals() -> Iterator[dict[str, RequestError]]:
    """A stretch in which a wrong rule stops nobody; gives what was refused, by the operator's name."""
    found: dict[str, RequestError] = {}
    token = _REFUSED.set(found)
    try:
        yield found
    finally:
        _REFUSED.reset(token)


def place_of(function: Body) -> str:
    """File and line of a function, as far as it has them."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "a function without source"


def _defined(name: str, definition: Definition, **traits: object) -> OperatorFunction:
    """The operator of a definition, in the catalogue from now on."""
    known = CATALOGUE.get(name)
    if known is not None and not issubclass(known, UserOperator):
        raise RequestError("the library has one of that name; give another: name=...")
    if "..." not in definition.text:
        Rule.parse(definition.text, definition.halos, sizes=definition.sizes, reduce=definition.reduce)
    own = {"name": name, "definition": definition, "__slots__": (), "__module__": definition.function.__module__}
    kind = type(name, (UserOperator,), own | traits)
    register_operator(kind)
    return OperatorFunction(kind)


def _takes_tile(function: Body) -> bool:
    """Whether a body has a parameter ``tile``; one that is built in tells nothing of its parameters."""
    try:
        return "tile" in inspect.signature(function).parameters
    except ValueError:
        return False
