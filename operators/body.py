"""Bodies: what the tasks of a graph's launches do once bound to instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.operators.operator import TileContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maniple.operators.graph import Graph, Node
    from maniple.operators.optimizer import SGD
    from maniple.operators.program import Port
    from maniple.operators.rule import Tile
    from maniple.regions.rectangle import Rect

__all__: list[str] = []

Views = "Sequence[torch.Tensor | None]"


@dataclass(frozen=True)
class ForwardBinder:
    """Binds an operator's forward body: views are its operands, its result, and what it saves.

    Args:
        graph: the graph.
        node: the operator.
        tiles: one per point.
    """

    graph: Graph
    node: Node
    tiles: tuple[Tile, ...]

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one tile."""
        given = iter(views)
        operands = [None if operand is None else next(given) for operand in self.node.operands]
        result = _there(next(given))
        saved = tuple(_there(view) for view in given)
        context = _context(self.graph, self.node, self.tiles[point], cores)
        return self.node.operator.kernels().bind_forward(context, tuple(operands), result, saved)


@dataclass(frozen=True)
class BackwardBinder:
    """Binds an operator's backward body: which view is what comes with `slots`.

    Args:
        graph: the graph.
        node: the operator.
        tiles: one per point.
        slots: for each view its part (`gradient`, `operand`, `result`, `saved`, `operand_gradient`) and its number.
    """

    graph: Graph
    node: Node
    tiles: tuple[Tile, ...]
    slots: tuple[tuple[str, int], ...]

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one tile."""
        count = len(self.node.operands)
        operands: list[torch.Tensor | None] = [None] * count
        gradients: list[torch.Tensor | None] = [None] * count
        gradient: torch.Tensor | None = None
        result: torch.Tensor | None = None
        saved: list[torch.Tensor] = []
        for (part, number), view in zip(self.slots, views, strict=True):
            if part == "gradient":
                gradient = view
            elif part == "operand":
                operands[number] = view
            elif part == "result":
                result = view
            elif part == "saved":
                saved.append(_there(view))
            else:
                gradients[number] = view
        context = _context(self.graph, self.node, self.tiles[point], cores)
        return self.node.operator.kernels().bind_backward(
            context, gradient, tuple(operands), result, tuple(saved), tuple(gradients)
        )


@dataclass(frozen=True)
class UpdateBinder:
    """Binds a parameter's update: views are the value, the gradient, and the optimizer's state.

    Args:
        optimizer: the optimizer.
    """

    optimizer: SGD

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        value, gradient, *states = (_there(view) for view in views)
        return self.optimizer.bind_update(value, gradient, tuple(states), cores)


@dataclass(frozen=True)
class InputBinder:
    """Binds the arrival of an input: takes the oldest tensor of the port and copies the part that this memory uses.

    Args:
        port: where the program leaves the batch.
        rects: the part that each point copies.
    """

    port: Port
    rects: tuple[Rect, ...]

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one memory's part."""
        target = _there(views[0])
        where = self.rects[point].slices((0,) * target.ndim)
        values = self.port.values
        return lambda: target.copy_(values.popleft()[where])


@dataclass(frozen=True)
class FetchBinder:
    """Binds the way out: a copy of the tensor goes to the port.

    Args:
        port: where the program picks it up.
    """

    port: Port

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one memory's fetch."""
        source = _there(views[0])
        values = self.port.values
        return lambda: values.append(source.clone())


def _there(view: torch.Tensor | None) -> torch.Tensor:
    if view is None:
        msg = "the runtime gave no view for a rectangle that is not empty"
        raise TypeError(msg)
    return view


def _context(graph: Graph, node: Node, tile: Tile, cores: int) -> TileContext:
    return TileContext(tile, graph.bound(node).extents(), node.operator, cores)
