"""Recounting: an imported graph for another number of samples, by importing the module once more.

An exported program has numbers for the batch that it was exported with, and how they follow the batch cannot be read
off it. So the operators for n samples are those of an import with n samples. It must have the same nodes with the same
rules, for a plan names these:

| samples | mean of a loss | of the distances of all pairs |
|---|---|---|
| 4 | ``div.Scalar(sum(x0), 32)`` | ``div.Scalar(sum(x0), 16)`` |
| 5 | ``div.Scalar(sum(x0), 40)`` | ``div.Scalar(sum(x0), 25)`` |
| 1 | ``div.Scalar(sum(x0), 8)`` | refused |

In an import with one sample the sample dimension looks like one that repeats, so its rules are others. Its numbers are
those on the line through two and three samples, if the numbers for more samples lie on it as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from maniple.operators.library.elementwise.aten import AtenCall
from maniple.operators.library.randomness.draw import Draw, Sizes
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.operator.operator import AbstractOperator

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


class Recount:
    """The operators of an imported graph for any number of samples.

    Args:
        graph: For the batch that it was imported with.
        constants: In that graph.
        again: Imports the module for another batch.
        foresee: Is told for which several it will be imported.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[str, torch.Tensor],
        again: Callable[[int], tuple[Graph, Mapping[str, torch.Tensor]]],
        foresee: Callable[[Sequence[int]], None],
    ) -> None:
        self._nodes = graph.nodes
        self._batch, self._name = graph.batch, graph.name
        self._constants = constants
        self._again, self._foresee = again, foresee
        self._known = {graph.batch: [node.operator for node in graph.nodes]}

    def __call__(self, samples: int) -> Sequence[AbstractOperator]:
        """The operators of all nodes, in order.

        Raises:
            RequestError: The module calls other operators for another batch, or counts samples in a way that cannot
                be told.
        """
        if samples not in self._known:
            self._known[samples] = self._import_again(samples) if samples > 1 else self._of_one()
        return self._known[samples]

    def foresee(self, counts: Sequence[int]) -> None:
        """Have the module imported together for what will be asked for.

        Args:
            counts: Numbers of samples.
        """
        wanted = {*counts} - {1} | ({*self._for_one} if 1 in counts else set())
        if len(new := sorted(wanted - self._known.keys())) > 1:
            self._foresee(new)

    @property
    def _for_one(self) -> tuple[int, int, int]:
        """The numbers of samples from which those of one follow."""
        return 2, 3, max(4, self._batch)

    def _import_again(self, samples: int) -> list[AbstractOperator]:
        """The operators of an import; refuse one with other nodes, rules or constants."""
        try:
            graph, constants = self._again(samples)
        except RequestError as error:
            raise RequestError(f"graph '{self._name}' cannot be made for {samples} samples: {error}") from error
        for name, value in self._constants.items():
            if name not in constants or not torch.equal(value, constants[name]):
                raise self._refusal(name, samples)
        others = {node.name: node for node in graph.nodes}
        for node in self._nodes:
            if node.name not in others or _form(node) != _form(others[node.name]):
                raise self._refusal(node.name, samples)
        if len(others) > len(self._nodes):
            raise self._refusal(min(others.keys() - {node.name for node in self._nodes}), samples)
        return [others[node.name].operator for node in self._nodes]

    def _of_one(self) -> list[AbstractOperator]:
        """The operators for one sample, from those for two, three and more."""
        known = [self(samples) for samples in self._for_one]
        return [self._one(node, *operators) for node, *operators in zip(self._nodes, *known, strict=True)]

    def _one(self, node: Node, *operators: AbstractOperator) -> AbstractOperator:
        """An operator for one sample."""
        calls = [operator for operator in operators if isinstance(operator, AtenCall)]
        if calls:
            windows = tuple(
                (slots[0][0], *(self._line(node, numbers) for numbers in zip(*(s[1:] for s in slots), strict=True)))
                for slots in zip(*(call.windows for call in calls), strict=True)
            )
            return replace(
                calls[0],
                call=self._text(node, [call.call for call in calls]),
                text=self._text(node, [call.text for call in calls]),
                sizes=self._sizes(node, [call.sizes for call in calls]),
                windows=windows,
            )
        draws = [operator for operator in operators if isinstance(operator, Draw)]
        if draws:
            return draws[0].with_sizes(self._sizes(node, [draw.sizes for draw in draws]))
        if any(operator != operators[0] for operator in operators):
            raise self._refusal(node.name, 1)
        return operators[0]

    def _text(self, node: Node, texts: Sequence[str]) -> str:
        """A call or a rule for one sample."""
        if len({_NUMBER.sub("", text) for text in texts}) > 1:
            raise self._refusal(node.name, 1)
        numbers = zip(*(map(int, _NUMBER.findall(text)) for text in texts), strict=True)
        counted = iter([self._line(node, found) for found in numbers])
        return _NUMBER.sub(lambda _: str(next(counted)), texts[0])

    def _sizes(self, node: Node, sizes: Sequence[Sizes]) -> Sizes:
        """Extents for one sample."""
        each = [dict(found) for found in sizes]
        return tuple((name, self._line(node, [found[name] for found in each])) for name, _ in sizes[0])

    def _line(self, node: Node, numbers: Sequence[int]) -> int:
        """A number for one sample, from those for two, for three and for more of them."""
        two, three, more = numbers
        if more != two + (three - two) * (max(4, self._batch) - 2):
            raise self._refusal(node.name, 1)
        return 2 * two - three

    def _refusal(self, what: str, samples: int) -> RequestError:
        ways = f"pass whole batches of {self._batch}"
        if self._batch == 1:
            ways += ", or import the module with a batch of at least 2"
        return RequestError(
            f"graph '{self._name}': {what!r} depends on the number of samples in a way that cannot be told for "
            f"{samples} from an import with {self._batch}; {ways}"
        )


def _form(node: Node) -> tuple[object, ...]:
    """What a node must have in common with that of another import: what a plan names, and where operands are from."""
    operator = node.operator
    text = operator.text if isinstance(operator, AtenCall | Draw) else ""
    return node.name, type(operator), node.given, node.own, node.results, _NUMBER.sub("", text)
