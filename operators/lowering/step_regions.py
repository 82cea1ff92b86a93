"""The regions of one step: values, gradients and saved regions of a graph's tensors, made on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.launch_form import SAVED_PLACES
from maniple.operators.operator.operator import HALF_DTYPES
from maniple.operators.operator.scratchpad import Scratchpads
from maniple.operators.training import loss_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.program.region_table import RegionTable

__all__: list[str] = []


class StepRegions:
    """Regions by what they hold.

    Args:
        graph: the graph.
        held: the regions that outlive the step, by the name of their parameter or buffer.
        table: makes the others.
    """

    def __init__(self, graph: Graph, held: Mapping[str, Weight], table: RegionTable) -> None:
        self._tensors, self._nodes = graph.tensors, graph.nodes
        self._graph, self._held = graph, held
        self._table = table
        self._values = {tensor.id: held[tensor.name].value for tensor in graph.lasting}
        self._gradients: dict[int, LogicalRegion] = {}
        self._halves: dict[int, LogicalRegion] = {}
        self.scratchpads = Scratchpads()
        """Memory for the bodies of the step's operators."""
        self._saved: dict[int, tuple[LogicalRegion, ...]] = {}
        self._clock: LogicalRegion | None = None
        self._hyper: LogicalRegion | None = None
        self._squares: LogicalRegion | None = None

    def region(self, ref: RegionRef) -> LogicalRegion:
        """What a launch form calls by a reference."""
        kind, number = ref
        if kind in HALF_DTYPES:
            return self.half(number, kind)
        if kind == "saved":
            node, place = divmod(number, SAVED_PLACES)
            return self.saved_regions(self._nodes[node])[place]
        if kind == "clock":
            return self.clock
        if kind == "scale":
            return self._held[loss_scale.NAME].value
        return self.value(number) if kind == "value" else self.gradient(number)

    def value(self, tensor: int) -> LogicalRegion:
        """The values of a tensor."""
        if tensor not in self._values:
            info = self._tensors[tensor]
            self._values[tensor] = self._table.region(info.name, info.shape, info.dtype)
        return self._values[tensor]

    def gradient(self, tensor: int) -> LogicalRegion:
        """The gradient of a tensor."""
        if tensor not in self._gradients:
            info = self._tensors[tensor]
            region = self._table.region(f"{info.name}.grad", info.shape, gradient_dtype(info.dtype))
            self._gradients[tensor] = region
        return self._gradients[tensor]

    def half(self, tensor: int, dtype: str) -> LogicalRegion:
        """The values of a parameter or buffer, cast at its home."""
        if tensor not in self._halves:
            info = self._tensors[tensor]
            self._halves[tensor] = self._table.region(f"{info.name}.half", info.shape, dtype)
        return self._halves[tensor]

    def saved_regions(self, node: Node) -> tuple[LogicalRegion, ...]:
        """What a node's forward leaves for its backward."""
        if node.id not in self._saved:
            bound = self._graph.bound(node)
            first = self._tensors[node.results[0]].dtype
            self._saved[node.id] = tuple(
                self._table.region(f"{node.name}.{saved.name}", shape, saved.dtype or first)
                for (saved, _), shape in zip(bound.rule.saved, bound.saved_shapes, strict=True)
            )
        return self._saved[node.id]

    @property
    def clock(self) -> LogicalRegion:
        """The seed and the number of the step; see ``RandomStream``."""
        if self._clock is None:
            self._clock = self._table.region("clock", (2,), "int64")
        return self._clock

    def hyper(self, optimizer: AbstractOptimizer) -> LogicalRegion | None:
        """The numbers of an optimizer that enter each step; None where they do not."""
        if self._hyper is None and optimizer.enters:
            self._hyper = self._table.region("hyper", optimizer.rows, "float64")
        return self._hyper

    def squares(self, optimizer: AbstractOptimizer) -> LogicalRegion | None:
        """The sum of the squares of all gradients; None where nothing needs it."""
        if self._squares is None and (optimizer.clip_norm is not None or loss_scale.NAME in self._held):
            self._squares = self._table.region("squares", (1,), "float64")
        return self._squares

    def numbers(self, optimizer: AbstractOptimizer) -> tuple[LogicalRegion, ...]:
        """What each task of an update reads whole."""
        scale = self._held[loss_scale.NAME].regions if loss_scale.NAME in self._held else (None, None)
        found = self.hyper(optimizer), self.squares(optimizer), scale[0], scale[-1]
        return tuple(region for region in found if region is not None)


def gradient_dtype(dtype: str) -> str:
    """The dtype of the gradient of a tensor of some dtype: contributions are added up, which halves are not for."""
    return "float32" if dtype in HALF_DTYPES else dtype
