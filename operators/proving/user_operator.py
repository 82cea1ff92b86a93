"""Operators that a user adds: a factor rule and a pure function of tiles."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast, final

from maniple.operators.library.catalogue import register_operator
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.function_version import version_of
from maniple.operators.operator.given_kernel import BackwardKernel, ForwardKernel, GivenKernel
from maniple.operators.operator.operator import FLOAT_DTYPES, Kernels
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.process.error import RequestError

if TYPE_CHECKING:
    import torch

    from maniple.operators.operator.operator import TileContext
    from maniple.operators.rules.rule import Window

Body = Callable[..., object]
Part = tuple[str, str]
"""(kind of processor, ``forward`` or ``backward``)."""
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
    bodies: ClassVar[Mapping[Part, GivenKernel]] = {}
    """What its author gave instead of the function and of autograd."""

    @property
    def is_recordable(self) -> bool:
        """See ``TorchOperator.is_recordable``."""
        return False

    def __post_init__(self) -> None:
        own = self.own_version()
        if self.version != own:
            raise RequestError(
                f"operator {self.name}: the graph was made with version {self.version} of its body, this is {own}; "
                "build the graph again"
            )

    @classmethod
    def own_version(cls) -> str:
        """A hash of the sources of its function and of the bodies of its kernels."""
        return version_of(cls.definition.function, *(cls.bodies[part].variant.function for part in sorted(cls.bodies)))

    def plain(self) -> UserOperator:
        """The operator without its author's kernels, for the prover."""
        own = {"bodies": {}, "__slots__": (), "__module__": type(self).__module__}
        kind = type(self.name, (type(self),), own)
        return cast("type[UserOperator]", kind)(self.arguments, version_of(self.definition.function))

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``: its author's for a CPU, as far as there are any."""
        return self._given("cpu")

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: its author's for a GPU, as far as there are any."""
        return self._given("gpu")

    def _given(self, processor: str) -> Kernels:
        plain, arguments = TorchOperator.kernels(self), dict(self.arguments)
        forward, backward = self.bodies.get((processor, "forward")), self.bodies.get((processor, "backward"))
        return Kernels(
            plain.bind_forward if forward is None else ForwardKernel(forward, arguments),
            plain.bind_backward if backward is None else BackwardKernel(backward, arguments),
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
        return self.kind(tuple(sorted(arguments.items())), self.kind.own_version())

    def forward(self, kind: str) -> Callable[[Body], Body]:
        """Take a body of its own for forward, in place of the function.

            @gate.forward("numba")
            def gate_forward(x, y, out):
                for i in range(out.shape[0]):
                    out[i] = x[i] * y[i]

        It takes the operands and then the results, and writes these. ``maniple check-rule`` proves that it gives what
        the function gives. Give it before the operator is applied.

        Args:
            kind: ``cpu`` (torch tensors), ``numba`` (numpy arrays, compiled), ``cuda`` or ``numba.cuda``.

        Raises:
            RequestError: There is no such kind, or the body does not take these.
        """
        operands, results = self._names()
        return self._taken("forward", kind, "the operands and then the results", (*operands, *results))

    def backward(self, kind: str) -> Callable[[Body], Body]:
        """Take a body of its own for backward, in place of autograd.

        It takes the gradients of the results, the operands, and then the gradients of the operands, and writes these.
        Without one, backward computes the function again under autograd.

        Args:
            kind: See ``forward``.

        Raises:
            RequestError: There is no such kind, or the body does not take these.
        """
        operands, results = self._names()
        given, written = (tuple(f"gradient of {name}" for name in names) for names in (results, operands))
        wanted = "the results' gradients, the operands and then the operands' gradients"
        return self._taken("backward", kind, wanted, (*given, *operands, *written))

    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What messages call the operands and the results."""
        operands, _, results = self.kind.definition.text.partition("->")
        return (
            tuple(f"operand {place}" for place in range(operands.count(",") + 1)),
            tuple(f"result {place}" for place in range(results.count(",") + 1)),
        )

    def _taken(self, part: str, kind: str, wanted: str, names: tuple[str, ...]) -> Callable[[Body], Body]:
        def take(body: Body) -> Body:
            try:
                kernel = GivenKernel.made(kind, body, wanted, names)
            except RequestError as error:
                raise RequestError(f"operator {self.kind.name!r}, {part} ({place_of(body)}): {error}") from error
            held = self.kind.bodies.get((kernel.variant.processor, part))
            if held is not None and held.variant.kind != kind:
                raise RequestError(
                    f"operator {self.kind.name!r}, {part} ({place_of(body)}): processors of kind "
                    f"{kernel.variant.processor} have a body already, {held.variant.kind!r}; give one of the two"
                )
            self.kind.bodies = {**self.kind.bodies, (kernel.variant.processor, part): kernel}
            return body

        return take


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
        RequestError: The text is not a rule, or another operator has that name.
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
            return _define(label, definition, detached=tuple(detached), flops_per_point=flops_per_point)
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


def _define(name: str, definition: Definition, **traits: object) -> OperatorFunction:
    """The operator of a definition, known by its name from now on."""
    if "..." not in definition.text:
        Rule.parse(definition.text, definition.halos, sizes=definition.sizes, reduce=definition.reduce)
    function = definition.function  # the same one, as of a notebook's cell that runs again, makes the same operator
    told = {"__module__": function.__module__, "__qualname__": getattr(function, "__qualname__", name)}
    own = {"name": name, "definition": definition, "__slots__": (), **told}
    kind = cast("type[UserOperator]", type(name, (UserOperator,), own | traits))
    try:
        register_operator(kind)
    except RequestError as error:
        raise RequestError(str(error).removeprefix(f"operator {name!r}: ")) from error
    return OperatorFunction(kind)


def _takes_tile(function: Body) -> bool:
    """Whether a body has a parameter ``tile``; one that is built in tells nothing of its parameters."""
    try:
        return "tile" in inspect.signature(function).parameters
    except ValueError:
        return False
