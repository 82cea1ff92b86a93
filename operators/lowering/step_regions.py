"""The regions of one step: values, gradients and saved regions of a graph's tensors, made on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maniple.operators.lowering.launch_form import SAVED_PLACES
from maniple.operators.lowering.micro_batch import ALL, MicroBatches
from maniple.operators.lowering.working_copy import COPY, PART, base_of, is_passing
from maniple.operators.operator.operator import HALF_DTYPES
from maniple.operators.training import loss_scale
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.scratchpad import Scratchpads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.program.region_table import RegionTable

__all__: list[str] = []

SAVED = {"saved": "", "unread": ".unread"}
"""What the name of what a node saves has behind it."""
SUFFIX = {"value": "", "gradient": ".grad", "again": ".again", PART: ".grad.part"}
"""What the name of a tensor's region has behind that of the tensor."""


class AbstractRegions(Protocol):
    """What a launch asks of the regions that it uses; see `StepRegions`."""

    @property
    def parts(self) -> MicroBatches:
        """The micro-batches."""
        ...

    @property
    def scratchpads(self) -> Scratchpads:
        """Memory for bodies."""
        ...

    def region(self, ref: RegionRef, part: int = ALL) -> LogicalRegion:
        """What a launch form calls by a reference."""
        ...

    def is_apart(self, ref: RegionRef) -> bool:
        """Whether each micro-batch has a region of its own."""
        ...

    def start(self, ref: RegionRef, axis: int, part: int) -> int:
        """Where a micro-batch begins along a dimension of what is kept apart."""
        ...


def has_own(regions: AbstractRegions, ref: RegionRef) -> bool:
    """Whether each micro-batch has a region of its own of what a launch form calls by a reference."""
    return regions.is_apart(ref) or ref[0] == PART or is_passing(ref[0])


class StepRegions:
    """Regions by what they hold.

    Args:
        graph: the graph.
        held: the regions that outlive the step, by the name of their parameter or buffer.
        table: makes the others.
        parts: the micro-batches; None: one.
    """

    def __init__(
        self, graph: Graph, held: Mapping[str, Weight], table: RegionTable, parts: MicroBatches | None = None
    ) -> None:
        self._tensors, self._nodes = graph.tensors, graph.nodes
        self._graph, self._held = graph, held
        self._table = table
        self.scratchpads = Scratchpads()
        """Memory for the bodies of the step's operators."""
        self.parts = MicroBatches(graph) if parts is None else parts
        """The micro-batches."""
        lasting = {("value", tensor.id): held[tensor.name].value for tensor in graph.lasting}
        self._made: dict[tuple[RegionRef, int], LogicalRegion] = {(ref, ALL): made for ref, made in lasting.items()}
        self._clock: LogicalRegion | None = None
        self._hyper: LogicalRegion | None = None
        self._squares: LogicalRegion | None = None

    def region(self, ref: RegionRef, part: int = ALL) -> LogicalRegion:
        """What a launch form calls by a reference.

        Args:
            ref: the reference.
            part: the micro-batch that uses it; what is not kept apart is one region for all.
        """
        if ref[0] == "clock":
            return self.clock
        if ref[0] == "scale":
            return self._held[loss_scale.NAME].value
        own = has_own(self, ref)
        key = ref, part if own else ALL
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def another(self, like: LogicalRegion, ref: RegionRef, part: int) -> LogicalRegion:
        """The region of its own that another micro-batch has of a reference.

        Args:
            like: that of one micro-batch.
            ref: the reference.
            part: the other.
        """
        found = self._made.get((ref, part))
        if found is None:
            name = f"{like.name.rpartition('#')[0]}#{part}"
            found = self._made[ref, part] = self._table.region(name, like.bounds, like.dtype)
        return found

    def further(self, ref: RegionRef, axis: int, part: int, other: int) -> int:
        """How much further on, along a dimension of what all share, another micro-batch begins than one."""
        return self.start(ref, axis, other) - self.start(ref, axis, part)

    def is_apart(self, ref: RegionRef) -> bool:
        """Whether each micro-batch has a region of its own, in which its samples begin at 0."""
        kind, number = ref
        return kind in {"saved", "again", "unread"} or (kind in {"value", "gradient"} and self.parts.apart(number))

    def start(self, ref: RegionRef, axis: int, part: int) -> int:
        """Where a micro-batch begins, among all samples, along a dimension of what is kept apart."""
        kind, number = ref
        if kind in SAVED:
            shape = self._graph.bound(self._nodes[number // SAVED_PLACES]).saved_shapes[number % SAVED_PLACES]
        else:
            shape = self._tensors[number].shape
        return self.parts.start(shape[axis], part)

    def part_bounds(self, ref: RegionRef, part: int, bounds: Rect) -> Rect:
        """What a micro-batch has of the region that it has for itself, or shares with larger ones."""
        kind, number = ref
        if not self.is_apart(ref) or kind in SAVED:
            return bounds
        axis = self.parts.written(number)
        if axis is None:
            return bounds
        extent = self._tensors[number].shape[axis]
        end = self.parts.start(extent, part + 1) if part + 1 < self.parts.count else extent
        hi = (*bounds.hi[:axis], end - self.parts.start(extent, part), *bounds.hi[axis + 1 :])
        return Rect(bounds.lo, hi)

    def value(self, tensor: int) -> LogicalRegion:
        """The values of a tensor that is one region."""
        return self.region(("value", tensor))

    def gradient(self, tensor: int) -> LogicalRegion:
        """The gradient of a tensor that is one region."""
        return self.region(("gradient", tensor))

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        """The graph's tensors, by number."""
        return self._tensors

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

    def _make(self, ref: RegionRef, part: int) -> LogicalRegion:
        kind, number = ref
        mark = "" if part == ALL else f"#{part}"
        if kind in SAVED:
            node, place = self._nodes[number // SAVED_PLACES], number % SAVED_PLACES
            bound, first = self._graph.bound(node), self._tensors[self._nodes[number // SAVED_PLACES].results[0]].dtype
            (saved, _), shape, axis = (
                bound.rule.saved[place],
                bound.saved_shapes[place],
                self.parts.axis(node, "saved", place),
            )
            name, dtype = f"{node.name}.{saved.name}{SAVED[kind]}", saved.dtype or first
        else:
            info, axis = self._tensors[number], self.parts.written(number)
            name, shape, copy = info.name + SUFFIX.get(kind, ""), info.shape, base_of(kind)
            if copy:
                name += (f".{COPY}" if copy == COPY else ".half") + kind.removeprefix(copy)
            dtype = gradient_dtype(info.dtype) if kind in {"gradient", PART} else info.dtype
            dtype = copy if copy in HALF_DTYPES else dtype
        return self._table.region(name + mark, shape if part == ALL else self.parts.local_shape(shape, axis), dtype)


def gradient_dtype(dtype: str) -> str:
    """The dtype of the gradient of a tensor of some dtype: contributions are added up, which halves are not for."""
    return "float32" if dtype in HALF_DTYPES else dtype
