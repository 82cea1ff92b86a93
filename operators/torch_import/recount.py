"""Recounting: which numbers in an imported graph count samples, told by importing the module twice.

An exported program has numbers for the batch that it was exported with. Two imports of one module, for n and n + 1
samples, differ in the numbers that count samples and in no others:

| samples | expand | mean of a loss |
|---|---|---|
| 4 | ``sizes={"b": 4}`` | ``div.Scalar(sum(x0), 32)`` |
| 5 | ``sizes={"b": 5}`` | ``div.Scalar(sum(x0), 40)`` |
| n | ``sizes={"b": n}`` | ``div.Scalar(sum(x0), 8 * n)`` |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from maniple.operators.library.aten import AtenCall
from maniple.operators.library.draw import Draw, Sizes
from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.graph import Graph
    from maniple.operators.operator import AbstractOperator

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


class Recount:
    """The operators of an imported graph for any number of samples.

    Args:
        graph: For the batch that it was imported with.
        constants: In that graph.
        again: Imports the module for another batch.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[str, torch.Tensor],
        again: Callable[[int], tuple[Graph, Mapping[str, torch.Tensor]]],
    ) -> None:
        self._graph = graph
        self._constants = constants
        self._again = again
        self._other: Graph | None = None

    def __call__(self, samples: int) -> Sequence[AbstractOperator]:
        """The operators of all nodes, in order.

        Raises:
            RequestError: The module calls other operators for another batch, or counts samples in a way that no
                multiple of their number gives.
        """
        if self._other is None:
            self._other = self._checked(*self._again(self._graph.batch + 1))
        found = []
        for node, other in zip(self._graph.nodes, self._other.nodes, strict=True):
            if isinstance(node.operator, AtenCall) and isinstance(other.operator, AtenCall):
                found.append(self._recounted(node.operator, other.operator, samples))
            elif isinstance(node.operator, Draw) and isinstance(other.operator, Draw):
                found.append(node.operator.with_sizes(self._sizes(node.operator.sizes, other.operator.sizes, samples)))
            else:
                found.append(node.operator)
        return found

    def _recounted(self, first: AtenCall, second: AtenCall, samples: int) -> AbstractOperator:
        """The operator of two imports for another number of samples."""
        if len(first.windows) != len(second.windows):
            raise self._refusal(first.call)
        return replace(
            first,
            call=self._text(first.call, second.call, samples),
            text=self._text(first.text, second.text, samples),
            sizes=self._sizes(first.sizes, second.sizes, samples),
            windows=tuple(
                (mine[0], *(self._line(a, b, samples) for a, b in zip(mine[1:], theirs[1:], strict=True)))  # type: ignore[misc]
                for mine, theirs in zip(first.windows, second.windows, strict=True)
            ),
        )

    def _text(self, first: str, second: str, samples: int) -> str:
        """A call or a rule of two imports for another number of samples."""
        if _NUMBER.sub("", first) != _NUMBER.sub("", second):
            raise self._refusal(first)
        numbers, others = (map(int, _NUMBER.findall(text)) for text in (first, second))
        counted = iter([self._line(*pair, samples) for pair in zip(numbers, others, strict=True)])
        return _NUMBER.sub(lambda _: str(next(counted)), first)

    def _sizes(self, first: Sizes, second: Sizes, samples: int) -> Sizes:
        """Extents of two imports for another number of samples."""
        sizes = dict(second)
        return tuple((name, self._line(size, sizes.get(name, size), samples)) for name, size in first)

    def _line(self, at_batch: int, at_next: int, samples: int) -> int:
        """A number that is linear in the samples, from its values for n and n + 1 of them."""
        return at_batch + (at_next - at_batch) * (samples - self._graph.batch)

    def _checked(self, other: Graph, constants: Mapping[str, torch.Tensor]) -> Graph:
        """The other graph; refuse a module whose operators, or constants, depend on the number of samples otherwise."""
        mine, theirs = ([node.name for node in graph.nodes] for graph in (self._graph, other))
        if mine != theirs:
            raise self._refusal(next(iter(sorted({*mine} ^ {*theirs})), mine[0]))
        for name, value in self._constants.items():
            if name not in constants or not torch.equal(value, constants[name]):
                raise self._refusal(name)
        return other

    def _refusal(self, what: str) -> RequestError:
        return RequestError(
            f"graph '{self._graph.name}': {what!r} depends on the number of samples in a way that cannot be told from "
            f"{self._graph.batch} and {self._graph.batch + 1} of them; pass whole batches of {self._graph.batch}, or "
            "import the module with a batch of at least 2"
        )
