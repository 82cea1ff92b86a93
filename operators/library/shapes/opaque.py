"""Opaque operators: any function of tensors, run whole on one processor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, final

from maniple.operators.operator.function_version import version_of
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

Function = Callable[..., object]
Result = tuple[Shape, str]

_FUNCTIONS: dict[str, Function] = {}


@final
@dataclass(frozen=True, slots=True)
class Opaque(TorchOperator):
    """A pure function of tensors that nothing is known about: it has no factor, so it is one task.

    Its backward computes the function again; it must give the same results for the same operands.

    Args:
        function: Gives a tensor or a tuple of tensors.
        results: Shape and dtype of every result.
        source: The file and line of the function, or of what it stands for.
    """

    function: Function
    results: tuple[Result, ...]
    source: str

    name: ClassVar[str] = "opaque"

    @property
    def opaque_source(self) -> str:
        """See ``AbstractOperator.opaque_source``."""
        return self.source

    @property
    def is_recordable(self) -> bool:
        """See ``TorchOperator.is_recordable``."""
        return False

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """Every dimension written as its extent; see ``AbstractOperator.rule``."""
        operands = ["[]" if shape is None else " ".join(map(str, shape)) for shape in shapes]
        results = [" ".join(map(str, shape)) for shape, _ in self.results]
        return Rule.parse(f"{', '.join(operands)} -> {', '.join(results)}")

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        del dtypes, where
        return tuple(dtype for _, dtype in self.results)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor | tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        del context
        found = self.function(*operands)
        return tuple(found) if isinstance(found, list | tuple) else found  # type: ignore[return-value]

    def with_batch(self, before: int, after: int) -> Self:
        """The same function for results whose dimension 0, where it counts the samples, has another extent."""
        results = tuple(
            ((after, *shape[1:]) if shape[:1] == (before,) else shape, dtype) for shape, dtype in self.results
        )
        return replace(self, results=results)

    def attributes(self) -> dict[str, object]:
        """The function by its name; see ``AbstractOperator.attributes``."""
        return {"function": register(self.function), "results": self.results, "source": self.source}

    @classmethod
    def of_attributes(cls, attributes: Mapping[str, object]) -> Self:
        """See ``AbstractOperator.of_attributes``."""
        function = _FUNCTIONS.get(str(attributes["function"]))
        if function is None:
            raise RequestError(
                f"opaque: the function {attributes['function']!r} is not known here; "
                "build the graph by the program that wrote it"
            )
        results = tuple((tuple(shape), str(dtype)) for shape, dtype in attributes["results"])  # type: ignore[attr-defined]
        return cls(function, results, str(attributes["source"]))


def register(function: Function) -> str:
    """The name under which a graph file finds a function again in this process: its own and its version."""
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    name = f"{place} {version_of(function)}"
    _FUNCTIONS[name] = function
    return name


def source_of(function: Function) -> str:
    """The file and line of a function, as far as Python knows them."""
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return "<unknown>"


def trace_results(function: Function, operands: tuple[tuple[Shape, str] | None, ...], where: str) -> tuple[Result, ...]:
    """Shape and dtype of what a function gives, found on tensors without values.

    Args:
        function: Of tensors.
        operands: Shape and dtype of each; None for an absent one.
        where: Whom messages name.

    Raises:
        RequestError: The function needs values, or gives something else than tensors.
    """
    import torch

    from maniple.runtime.storage.copy_kernels import torch_dtype

    meta = [
        None if item is None else torch.empty(item[0], dtype=torch_dtype(item[1]), device="meta") for item in operands
    ]
    try:
        found = function(*meta)
    except (RuntimeError, NotImplementedError) as error:
        raise RequestError(
            f"{where}: the function does not run on tensors without values ({error}); give its results: "
            "results=[(shape, dtype), ...]"
        ) from error
    described: list[Result] = []
    for value in found if isinstance(found, list | tuple) else (found,):
        if not isinstance(value, torch.Tensor):
            raise RequestError(f"{where}: expected a tensor or a tuple of tensors, got {type(value).__name__}")
        described.append((tuple(value.shape), str(value.dtype).removeprefix("torch.")))
    return tuple(described)
