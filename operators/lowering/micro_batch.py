"""Micro-batches: how the samples of a step are cut into parts that go through a pipeline one after the other.

Seven samples in three micro-batches; a linear layer whose samples are split over two processors:

    micro-batch       0              1         2
    samples           [0:3]          [3:5]     [5:7]
    tiles (b=2)       [0:2] [2:3]    [3:4]...  [5:6]...      where they are among all samples
    region linear#j   [0:3]          [0:2]     [0:2]         of its own, from 0, as long as the largest micro-batch

An operator is cut if it has one factor that counts samples, and it exchanges nothing over it. Any other runs whole,
once for all micro-batches; so does what prepares inputs that each micro-batch reads whole. What gives to none, as what
counts steps for a buffer, *follows* them all. A tensor is kept apart, in a region for each micro-batch, if the operator
that writes it and all that read it are cut along its samples; else it is one region, of which each micro-batch may
write or read a part. An input, which no operator writes, is kept apart in the same way: its parts arrive one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.operators.graph.differentiation import find_needed
from maniple.operators.rules.tile import split_range

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.rules.bound_rule import Within
    from maniple.operators.rules.tile import TensorRole
    from maniple.operators.rules.window import Range

__all__: list[str] = []

ALL = -1
"""The number of the one micro-batch of what is not cut."""


@final
class MicroBatches:
    """The micro-batches of a step, and what of a graph is cut with them.

    Args:
        graph: the graph.
        count: how many micro-batches are wanted; where there are fewer samples, the last ones are empty and left out.
        whole: names of operators that run whole in any case.
    """

    def __init__(self, graph: Graph, count: int = 1, whole: Collection[str] = ()) -> None:
        self._graph, self._whole, self._batch = graph, frozenset(whole), graph.batch if count > 1 else 1
        self.count = 1 if count == 1 else min(count, graph.batch)
        """How many have samples."""
        self.ranges = split_range(graph.batch, self.count) if self.count > 1 else ()
        """The samples of each."""
        sizes = [high - low for low, high in self.ranges]
        self._smaller = next((part for part, size in enumerate(sizes) if size < sizes[0]), 0)
        self._axes: dict[tuple[int, TensorRole, int], int] = {}
        self._factors: dict[int, str] = {}
        self._first_differs: set[int] = set()
        self._following: frozenset[int] = frozenset()
        if self.count > 1:
            for node in graph.nodes:
                self._cut(node)
            for node in self._prepared():
                self._factors.pop(node.id, None)
            self._following = self._find_following()
        self._written = {
            result: self.axis(node, "result", place)
            for node in graph.nodes
            for place, result in enumerate(node.results)
        }
        for tensor in graph.inputs:
            self._written[tensor.id] = self._read_along(tensor.id)
        self._apart = self._find_apart()

    def is_cut(self, node: Node) -> bool:
        """Whether a node runs once for each micro-batch."""
        return node.id in self._factors

    def follows(self, node: Node) -> bool:
        """Whether a node runs whole, and no micro-batch reads what it gives: a buffer gets it when all are through."""
        return node.id in self._following

    def parts(self, node: Node) -> range:
        """The numbers of the micro-batches for which a node runs."""
        return range(self.count) if self.is_cut(node) else range(ALL, 0)

    def like(self, node: Node, part: int) -> int:
        """The first micro-batch that is as large, and of whose operands a node uses the same ones."""
        if part == ALL:
            return ALL
        low, high = self.ranges[part]
        found = 1 if node.id in self._first_differs and part else 0
        # Larger ones come first, and differ by a sample.
        return found if high - low == self.ranges[found][1] - self.ranges[found][0] else self._smaller

    def ends(self, node: Node) -> list[int]:
        """The first and the last micro-batch of each kind for which a node runs: those between lie between them."""
        found: dict[int, list[int]] = {}
        for part in self.parts(node):
            found.setdefault(self.like(node, part), []).append(part)
        return sorted({part for own in found.values() for part in (own[0], own[-1])})

    def within(self, node: Node, part: int) -> Within | None:
        """What of a node's samples a micro-batch has; None where it is not cut."""
        if not self.is_cut(node):
            return None
        name = self._factors[node.id]
        return name, self._scaled(part, self._graph.bound(node).factor(name).extent)

    def axis(self, node: Node, role: TensorRole, place: int) -> int | None:
        """The dimension along which a node's micro-batches cut a tensor; None where each uses the same elements."""
        return self._axes.get((node.id, role, place)) if self.is_cut(node) else None

    def written(self, tensor: int) -> int | None:
        """The dimension along which micro-batches write a tensor, or read an input; None where all use the same."""
        return self._written.get(tensor)

    def apart(self, tensor: int) -> bool:
        """Whether a tensor has a region for each micro-batch."""
        return tensor in self._apart

    def local_shape(self, shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
        """The shape of a region of one micro-batch: that of the largest, which is the first."""
        if axis is None:
            return shape
        _, largest = self._scaled(0, shape[axis])
        return (*shape[:axis], largest, *shape[axis + 1 :])

    def start(self, extent: int, part: int) -> int:
        """Where a micro-batch begins along a dimension of so many elements."""
        return self._scaled(part, extent)[0]

    def _scaled(self, part: int, extent: int) -> Range:
        """The elements of a micro-batch in a dimension, or factor, that counts samples."""
        (low, high), unit = self.ranges[part], extent // self._batch
        return low * unit, high * unit

    def _cut(self, node: Node) -> None:
        """Find the factor of a node that counts samples, and which dimensions of its tensors its parts cut."""
        bound, batch = self._graph.bound(node), self._graph.batch
        found = [factor for factor in bound.factors if factor.role == "sample" and factor.highest_degree > 1]
        if len(found) != 1 or found[0].extent % batch or node.name in self._whole:
            return
        name, place = found[0].name, bound.factors.index(found[0])
        if name in node.operator.exchanges():
            return
        axes: dict[tuple[int, TensorRole, int], int] = {}
        shapes = {
            "operand": bound.operand_shapes,
            "operand_gradient": bound.operand_shapes,
            "result": bound.result_shapes,
            "saved": bound.saved_shapes,
        }
        for part in (0, self.count - 1):
            table = bound.table((1,) * len(bound.factors), (name, self._scaled(part, found[0].extent)))
            for role, tensors in table.parts.axes.items():
                for number, dimensions in enumerate(tensors):
                    cut = [axis for axis, (factor, _) in enumerate(dimensions or ()) if factor == place]
                    shape = shapes[role][number] or ()
                    if len(cut) > 1:
                        return
                    for axis in cut:
                        # A window over samples, or samples that lie in another order, is no part of one micro-batch.
                        whole = shape[axis] % batch == 0
                        if not whole or (dimensions or ())[axis][1][0] != self._scaled(part, shape[axis]):
                            return
                        axes[node.id, role, number] = axis
        self._factors[node.id] = name
        self._axes |= axes
        if any(pattern.joins == name for pattern in bound.rule.operands):
            self._first_differs.add(node.id)

    def _prepared(self) -> list[Node]:
        """What prepares inputs that each micro-batch reads whole, such as the labels that the mean of a loss counts.

        It depends on nothing that is trained or drawn, so it may run before all micro-batches, and must.
        """
        nodes = self._graph.nodes
        producers = {result: node for node in nodes for result in node.results}
        given = {tensor.id for tensor in self._graph.tensors if tensor.kind == "input"}
        for node in nodes:
            if not node.operator.random and given.issuperset(o for o in node.operands if o is not None):
                given.update(node.results)
        wanted = [
            operand
            for node in nodes
            if self.is_cut(node)
            for place, operand in enumerate(node.operands)
            if operand is not None and self.axis(node, "operand", place) is None
        ]
        found: dict[int, Node] = {}
        while wanted:
            operand = wanted.pop()
            writer = producers.get(operand)
            if writer is not None and operand in given and writer.id not in found:
                found[writer.id] = writer
                wanted += [before for before in writer.operands if before is not None]
        return list(found.values())

    def _find_following(self) -> frozenset[int]:
        """The nodes that run whole and give only to each other and to buffers."""
        loss, found = self._graph.loss_tensor, set[int]()
        ends = [*self._graph.assignments.values(), *([] if loss is None else [loss])]
        read = {loss}
        for node in reversed(find_needed(self._graph, ends)):
            if node.id in self._factors or not read.isdisjoint(node.results):
                read.update(node.operands)
            else:
                found.add(node.id)
        return frozenset(found)

    def _read_along(self, tensor: int) -> int | None:
        """The dimension along which all micro-batches that read an input take their samples of it."""
        found = {
            self.axis(node, "operand", place)
            for node in self._graph.nodes
            for place, operand in enumerate(node.operands)
            if operand == tensor
        }
        return found.pop() if len(found) == 1 else None

    def _find_apart(self) -> frozenset[int]:
        """The tensors that are cut alike by the operator that writes them and all that read them."""
        found = {tensor for tensor, axis in self._written.items() if axis is not None}
        for node in self._graph.nodes:
            for place, operand in enumerate(node.operands):
                if operand in found:
                    axes = {self.axis(node, "operand", place), self.axis(node, "operand_gradient", place)}
                    if axes != {self._written[operand]}:
                        found.discard(operand)
        return frozenset(found.difference(self._graph.assignments.values(), (self._graph.loss_tensor,)))
