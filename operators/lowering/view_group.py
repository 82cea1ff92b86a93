"""View groups: tensors of a graph that are views of one of them, so that the operators between them need no task.

    linear (b s c) -> reshape (b s 3 h d) -> permute (3 b h s d) -> three slices -> queries, keys, values (b h s d)
    attention (b h s d) -> permute (b s h d) -> reshape (b s c) -> linear

Of the first group the root is what the linear layer gives, and all others lie in it. Of the second it is what the next
linear layer reads: what attention gives with heads before places lies in that, but not the other way about, since (h d)
of one axis would be two axes apart. Whoever uses a member uses the part of the root where it lies; nobody copies.

The operators of a group have no launches if what every task uses of a member is a box of the root under the plan, and
the gradients of members add up to that of the root without them:

    alone     one operator contributes, to all of the root's gradient
    apart     several do, each to a part of its own, which together are all
    shared    several do, each to all of it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Literal, final

from maniple.operators.graph.differentiation import find_needed
from maniple.operators.rules.view import Strided, View

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.rules.bounds import Bounds
    from maniple.operators.rules.view import Rearrangement

__all__: list[str] = []

Gradients = Literal["alone", "apart", "shared"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ViewGroup:
    """Tensors that are views of one.

    Args:
        root: the tensor that is there.
        members: all of them, the root included, and how they lie in it.
        nodes: the operators between them.
    """

    root: int
    members: Mapping[int, View]
    nodes: tuple[int, ...]

    def gradients(self, uses: Iterable[tuple[int, Bounds]], contributed: Sequence[int]) -> Gradients | None:
        """How gradients of members add up where its operators have no launches; None where they must have some.

        Args:
            uses: what the tasks of each launch of other operators use of a member, or of its gradient.
            contributed: the members to whose gradients those launches contribute, once for each requirement.
        """
        if any(self.members[tensor].bounds(tiles) is None for tensor, tiles in uses):
            return None
        whole = [self.members[tensor].is_whole for tensor in contributed]
        if all(whole):
            return "alone" if len(whole) < 2 else "shared"
        if max(Counter(contributed).values()) > 1:
            return None
        images = [self.members[tensor].image() for tensor in contributed]
        boxes = [image[0] for image in images if image is not None]
        if len(boxes) < len(images) or any(_meet(one, other) for one, other in combinations(boxes, 2)):
            return None
        together = sum(int((box[:, 1] - box[:, 0]).prod()) for box in boxes)
        return "apart" if together == prod(self.members[self.root].shape) else None


def step_targets(graph: Graph, *, training: bool) -> frozenset[int]:
    """The tensors that a step is made for: of training the loss and the next values of buffers, else the outputs."""
    if not training or graph.loss_tensor is None:
        return frozenset(graph.outputs.values())
    return frozenset((graph.loss_tensor, *graph.assignments.values()))


def view_groups(graph: Graph, targets: Collection[int]) -> tuple[ViewGroup, ...]:
    """Find the groups of a graph.

    Args:
        graph: as it is before operators are composed of others.
        targets: the tensors that a step is made for, which somebody takes as they are: they are in no group.
    """
    edges: dict[int, tuple[Node, Rearrangement]] = {}
    for node in find_needed(graph, targets):
        rearrangement = _rearrangement(graph, node)
        if rearrangement is not None and not {node.operands[0], node.results[0]}.intersection(targets):
            edges[node.results[0]] = node, rearrangement
    groups = _Groups(graph, edges)
    settled: set[int] = set()
    found = []
    for node, _ in edges.values():
        first = node.operands[0]
        if first is not None and first not in settled:
            group = groups.best(first)
            settled.update(group.members)
            found += [group] if group.nodes else []
    return tuple(found)


def is_rearranged(graph: Graph, node: Node) -> bool:
    """Whether a node's result may lie in its operand, or that in it."""
    return _rearrangement(graph, node) is not None


def _rearrangement(graph: Graph, node: Node) -> Rearrangement | None:
    """How a node's result lies in its operand; None where it computes something, or the operand is kept or brought."""
    operand, *others = node.operands
    if others or operand is None or len(node.results) != 1:
        return None
    given, made = graph.tensors[operand], graph.tensors[node.results[0]]
    if given.kind != "activation" or given.dtype != made.dtype or not prod(made.shape):
        return None
    return node.operator.rearrangement(given.shape, made.shape)


@final
class _Groups:
    """Looks for groups.

    Args:
        graph: the graph.
        edges: the operators that compute nothing, by their results.
    """

    def __init__(self, graph: Graph, edges: Mapping[int, tuple[Node, Rearrangement]]) -> None:
        self._tensors, self._edges = graph.tensors, edges
        self._below: dict[int | None, list[int]] = {}
        for result, (node, _) in edges.items():
            self._below.setdefault(node.operands[0], []).append(result)

    def best(self, first: int) -> ViewGroup:
        """Of the groups that a tensor is in, and nothing that it is made of, the largest; of equal ones the first."""
        roots, groups = [first], []
        for root in roots:
            groups.append(self._with_root(first, root))
            roots += [result for result in self._below.get(root, ()) if self._edges[result][1].cut is None]
        return max(groups, key=lambda group: len(group.members))

    def _with_root(self, first: int, root: int) -> ViewGroup:
        """The group of a root that has all elements of a tensor; that tensor by itself where it does not lie in it."""
        shape, nodes = self._tensors[root].shape, []
        found, above = {root: Strided.whole(shape)}, root
        while above != first:
            node, rearrangement = self._edges[above]
            operand = node.operands[0] or 0
            before = rearrangement.operand(found[above], self._tensors[operand].shape)
            if before is None or View.of(shape, before) is None:
                return self._with_root(first, first)
            found[operand] = before
            nodes.append(node.id)
            above = operand
        wanted = list(found)
        for tensor in wanted:
            for result in self._below.get(tensor, ()):
                node, rearrangement = self._edges[result]
                after = rearrangement.result(found[tensor])
                if result not in found and after is not None and View.of(shape, after) is not None:
                    found[result] = after
                    wanted.append(result)
                    nodes.append(node.id)
        views = {tensor: View.of(shape, place) for tensor, place in found.items()}
        members = {tensor: view for tensor, view in views.items() if view is not None}
        return ViewGroup(root, members, tuple(sorted(nodes)))


def _meet(one: Bounds, other: Bounds) -> bool:
    """Whether two boxes, as (low, high) of each axis, share an element."""
    return bool(((one[:, 0] < other[:, 1]) & (other[:, 0] < one[:, 1])).all())
