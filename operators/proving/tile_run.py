"""Tile runs: an operator computed tile by tile in one process, as a plan would have it, without runtime or regions.

The prover compares such runs of one operator with each other. What a body must not do shows: results and gradients
are filled with NaN before they are written, and operands must be as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from maniple.operators.graph.differentiation import gradient_operands, gradient_results
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.process.error import RunError
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.rule import BoundRule, Tile
    from maniple.regions.rectangle import Rect

__all__: list[str] = []

_FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "+": torch.add,
    "*": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Args:
        values: of every tensor of the graph that was computed, by id.
        gradients: of every float tensor that has one, by id.
    """

    values: dict[int, torch.Tensor]
    gradients: dict[int, torch.Tensor]


class TileRun:
    """Forward and backward of a graph under a plan.

    Args:
        graph: the graph.
        plan: the degrees of every operator; processors do not matter.
        rules: takes the place of the bound rule of some nodes.
    """

    def __init__(self, graph: Graph, plan: Plan, rules: Mapping[int, BoundRule] | None = None) -> None:
        self._graph = graph
        self._tensors = graph.tensors
        self._plan = plan
        self._rules = rules or {}
        self._saved: dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, ...]] = {}

    def run(self, given: Mapping[int, torch.Tensor], seeds: Mapping[int, torch.Tensor]) -> Outcome:
        """Compute everything.

        Args:
            given: the inputs, parameters and buffers by id.
            seeds: gradients of results, by id.

        Raises:
            RunError: a body gave something else than its rule says, or changed an operand.
        """
        values = dict(given)
        gradients = {tensor: seed.clone() for tensor, seed in seeds.items()}
        with torch.no_grad():
            for node in self._graph.nodes:
                self._forward(node, values)
            for node in reversed(self._graph.nodes):
                self._backward(node, values, gradients)
        return Outcome(values, gradients)

    def _bind(self, node: Node) -> BoundRule:
        return self._rules.get(node.id) or self._graph.bound(node)

    def _tiles(self, node: Node) -> list[tuple[Tile, TileContext]]:
        bound, degrees = self._bind(node), dict(self._plan.operator(node.name).degrees)
        return [
            (tile, TileContext(tile, bound.extents(), node.operator, stream=self._stream(node)))
            for tile in bound.tiles(degrees)
            if not tile.is_empty
        ]

    @staticmethod
    def _stream(node: Node) -> RandomStream | None:
        """Random numbers of an operator that draws: those of seed 0 and step 0, in every run."""
        return RandomStream.of(node.name, torch.zeros(2, dtype=torch.int64)) if node.operator.random else None

    def _forward(self, node: Node, values: dict[int, torch.Tensor]) -> None:
        bound, degrees = self._bind(node), dict(self._plan.operator(node.name).degrees)
        whole = [
            _blank(shape, self._tensors[i].dtype) for i, shape in zip(node.results, bound.result_shapes, strict=True)
        ]
        written = [torch.zeros(shape, dtype=torch.bool) for shape in bound.result_shapes]
        for tile, context in self._tiles(node):
            operands = tuple(_part(values, i, rect) for i, rect in zip(node.operands, tile.operand_rects, strict=True))
            before = [None if value is None else value.clone() for value in operands]
            parts = tuple(
                _blank(rect.shape, self._tensors[i].dtype)
                for i, rect in zip(node.results, tile.result_rects, strict=True)
            )
            first = self._tensors[node.results[0]].dtype
            saved = tuple(
                _blank(rect.shape, item.dtype or first)
                for (item, _), rect in zip(bound.rule.saved, tile.saved_rects, strict=True)
            )
            node.operator.kernels().bind_forward(context, ForwardTensors(operands, parts, saved))()
            _check_unchanged(node, operands, before)
            self._saved[node.id, tile.index] = saved
            for place, (target, part, seen) in enumerate(zip(whole, parts, written, strict=True)):
                where = tile.result_rects[place].slices((0,) * target.ndim)
                fold = bound.folds(place, degrees)
                if fold is None:
                    target[where] = part
                else:
                    target[where] = torch.where(seen[where], _FOLDS[fold](target[where], part), part)
                seen[where] = True
        values.update(zip(node.results, whole, strict=True))

    def _backward(self, node: Node, values: dict[int, torch.Tensor], gradients: dict[int, torch.Tensor]) -> None:
        known = {i: gradients.get(i) for i in gradient_results(self._graph, node).values()}
        slots = gradient_operands(self._graph, node)
        if not slots or all(gradient is None for gradient in known.values()):
            return
        reads = node.operator.backward_reads
        for tile, context in self._tiles(node):
            rects = zip(node.results, tile.result_rects, strict=True)
            given = tuple(_part(gradients, i, rect) if i in known else None for i, rect in rects)
            read = reads.operand_places(len(node.operands))
            operands = tuple(
                _part(values, i, rect) if place in read else None
                for place, (i, rect) in enumerate(zip(node.operands, tile.operand_rects, strict=True))
            )
            results = tuple(
                _part(values, i, rect) if place in reads.results else None
                for place, (i, rect) in enumerate(zip(node.results, tile.result_rects, strict=True))
            )
            targets = tuple(
                None
                if rect is None or rect.is_empty or place not in slots
                else _blank(rect.shape, self._tensors[slots[place]].dtype)
                for place, rect in enumerate(tile.gradient_rects)
            )
            saved = self._saved[node.id, tile.index]
            tensors = BackwardTensors(given, operands, results, saved, targets)
            node.operator.kernels().bind_backward(context, tensors)()
            for place, (target, rect) in enumerate(zip(targets, tile.gradient_rects, strict=True)):
                if target is not None and rect is not None:
                    self._add(gradients, slots[place], values[slots[place]], rect, target)

    def _add(
        self,
        gradients: dict[int, torch.Tensor],
        tensor: int,
        value: torch.Tensor,
        rect: Rect,
        part: torch.Tensor,
    ) -> None:
        """Add a tile's contribution to a gradient; what nobody contributes to stays NaN, as nobody's memory is."""
        whole = gradients.setdefault(tensor, torch.full_like(value, float("nan")))
        where = rect.slices((0,) * whole.ndim)
        whole[where] = torch.where(whole[where].isnan(), part, whole[where] + part)


def _blank(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Memory that nobody has written yet."""
    kind = torch_dtype(dtype)
    return torch.full(shape, float("nan") if kind.is_floating_point else 1, dtype=kind)


def _part(values: Mapping[int, torch.Tensor], tensor: int | None, rect: Rect | None) -> torch.Tensor | None:
    """What a tile is given of a tensor; nothing where it uses none of it."""
    if tensor is None or rect is None or rect.is_empty or tensor not in values:
        return None
    whole = values[tensor]
    return whole[rect.slices((0,) * whole.ndim)].clone()


def _check_unchanged(node: Node, operands: tuple[torch.Tensor | None, ...], before: list[torch.Tensor | None]) -> None:
    for place, (value, old) in enumerate(zip(operands, before, strict=True)):
        if value is not None and old is not None and not torch.equal(value, old):
            raise RunError(f"{node.name}: the body changed its operand {place}; a body writes to its results alone")
