"""Layers: the operators that a published network would count, each with what it only passes on.

FlexFlow's networks (SysML 2019, section 8) have layers with their activations, and cut the weights' users apart only
where they differ. Here an activation, a reshape or a split is an operator of its own, and every step of an unrolled
layer too. Tied, such an operator is cut and placed as its layer is:

    operator                         follows
    relu, flatten, stack             what makes its first operand
    split of an input                its first reader
    linear of another step           the first operator with the same weights and factors
    any other                        nothing: it leads

Where a degree has no counterpart in a follower, the follower stays whole along that dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.operators.library.elementwise.aten import Aten, AtenDetached, AtenLinear
from maniple.operators.library.elementwise.pointwise import Add, ReLU
from maniple.operators.library.randomness.dropout import Dropout
from maniple.operators.library.shapes.layout import Pad
from maniple.operators.library.shapes.shape import Flatten, Reshape
from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.space import Choice

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph, Node
    from maniple.strategies.interface.space import Space
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

PASSING = (Add, Aten, AtenDetached, AtenLinear, Dropout, Flatten, Pad, ReLU, Reshape)
"""What computes element by element, or only moves elements."""


@final
@dataclass(frozen=True, slots=True)
class Layers:
    """The operators that are decided, and what the others become.

    Args:
        leaders: the operators that are decided, ascending.
        place: for every operator the place of its leader among them.
        choices: for every operator what it becomes by each choice of its leader.
    """

    leaders: tuple[int, ...]
    place: tuple[int, ...]
    choices: tuple[Choices, ...]

    def of(self, numbers: tuple[int, ...]) -> Choices:
        """The choices of all operators.

        Args:
            numbers: of the choice of each leader.
        """
        return tuple(own[numbers[place]] for own, place in zip(self.choices, self.place, strict=True))

    def numbers(self, choices: Choices) -> tuple[int, ...] | None:
        """The numbers of some choices, or None where they are not in this space."""
        found = []
        for leader in self.leaders:
            if choices[leader] not in self.choices[leader]:
                return None
            found.append(self.choices[leader].index(choices[leader]))
        return tuple(found) if self.of(tuple(found)) == choices else None


def published_choices(space: Space, number: int) -> Choices:
    """The choices of an operator: equal splits, on every range of processors; of equal ones the first."""
    own = space.operators[number]
    wanted = set(equal_splits(own.factors, own.processors))
    found: dict[object, Choice] = {}
    for choice in own.choices():
        if choice.replicas == 1 and choice.degrees in wanted:
            found.setdefault((choice.degrees, own.plan(choice).processors), choice)
    return tuple(found.values())


def separate(space: Space) -> Layers:
    """Every operator a layer of its own."""
    numbers = tuple(range(len(space.names)))
    return Layers(numbers, numbers, tuple(published_choices(space, number) for number in numbers))


def find_layers(graph: Graph, space: Space) -> Layers:
    """The layers of a graph: see the module."""
    ahead = _ahead(graph, space)
    choices: dict[int, Choices] = {}

    def of(operator: int) -> Choices:
        if operator not in choices:
            if ahead[operator] == operator:
                choices[operator] = published_choices(space, operator)
            else:
                choices[operator] = tuple(_as(space, operator, ahead[operator], c) for c in of(ahead[operator]))
        return choices[operator]

    def leader(operator: int) -> int:
        return operator if ahead[operator] == operator else leader(ahead[operator])

    numbers = range(len(space.names))
    leaders = tuple(operator for operator in numbers if ahead[operator] == operator)
    return Layers(leaders, tuple(leaders.index(leader(o)) for o in numbers), tuple(of(o) for o in numbers))


def _ahead(graph: Graph, space: Space) -> list[int]:
    """For every operator the one that it follows; itself where it leads."""
    found = [node.id for node in graph.nodes]
    fed = [False] * len(found)
    for node in graph.nodes:
        makers = [maker.id for operand in node.operands if operand is not None and (maker := graph.producer(operand))]
        passing = _passes_on(graph, node)
        fed[node.id] = not passing or any(fed[maker] for maker in makers)
        if passing and fed[node.id]:
            found[node.id] = next(maker for maker in makers if fed[maker])
    for node in reversed(graph.nodes):
        if not fed[node.id]:
            readers = [reader.id for reader in graph.nodes if set(node.results).intersection(reader.operands)]
            found[node.id] = readers[0] if readers else node.id
    first: dict[object, int] = {}
    for node in graph.nodes:
        weights = _weights(graph, node)
        if weights and found[node.id] == node.id:
            found[node.id] = first.setdefault((weights, space.operators[node.id]), node.id)
    return found


def _weights(graph: Graph, node: Node) -> tuple[int, ...]:
    return tuple(operand for operand in node.operands if operand is not None and graph.tensors[operand].lasting)


def _passes_on(graph: Graph, node: Node) -> bool:
    return isinstance(node.operator, PASSING) and not _weights(graph, node)


def _as(space: Space, operator: int, other: int, choice: Choice) -> Choice:
    """What an operator becomes as it follows another."""
    own = space.operators[operator]
    if other not in space.neighbours[operator]:
        return choice
    degrees = [1] * len(own.factors)
    for mine, theirs in space.maps[operator][space.neighbours[operator].index(other)]:
        if choice.degrees[theirs] <= own.factors[mine].highest_degree:
            degrees[mine] = choice.degrees[theirs]
    found = Choice(tuple(degrees), 1, choice.start, choice.stride)
    return found if found.tasks > 1 else Choice(found.degrees, 1, choice.start)
