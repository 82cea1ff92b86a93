"""Input parts: by memory the box of an input that tasks read, of all of it or of what one micro-batch has of it.

Seven samples in three micro-batches, which two processors with memories of their own share:

    micro-batch    0                       1                       2
    memory 0       [0:2]                   [3:4]                   [5:6]      like the second, further on
    memory 1       [2:3]                   [4:5]                   [6:7]
    all            memory 0 [0:6]          memory 1 [2:7]                     of the first and last of each size
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.operators.lowering.micro_batch import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.operators.graph.graph import Node
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.lowering.micro_batch import MicroBatches
    from maniple.operators.rules.task_placement import PlacedTasks
    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Boxes = dict[int, "Rect"]
"""What arrives, by memory."""


@final
class InputParts:
    """What of inputs arrives where.

    Args:
        machine: the machine.
        parts: the micro-batches.
        place: gives the tasks of an operator for a micro-batch.
    """

    def __init__(self, machine: Machine, parts: MicroBatches, place: Callable[[Node, int], PlacedTasks]) -> None:
        self._machine, self._parts, self._place = machine, parts, place
        self._known: dict[tuple[int, ...], tuple[int, Boxes, dict[int, int]]] = {}

    def of(self, tensor: TensorInfo, nodes: Sequence[Node], part: int) -> tuple[Boxes, dict[int, int]]:
        """What arrives, by memory, and which of the memory's processors with a reader comes first.

        Args:
            tensor: the input.
            nodes: the operators of the step.
            part: the micro-batch, of an input that is kept apart.
        """
        readers = [node for node in nodes if tensor.id in node.operands]
        if part == ALL:
            return self._found(tensor, readers, part)
        alike = (tensor.id, *[self._parts.like(node, part) for node in readers])
        if alike not in self._known:
            self._known[alike] = part, *self._found(tensor, readers, part)
        like, boxes, processors = self._known[alike]
        if part == like:
            return boxes, processors
        before, start = self.start(tensor, like), self.start(tensor, part)
        further = [at - other for at, other in zip(start, before, strict=True)]
        return {memory: rect.shift(further) for memory, rect in boxes.items()}, processors

    def start(self, tensor: TensorInfo, part: int) -> tuple[int, ...]:
        """Where a micro-batch begins in an input that is kept apart."""
        along, begin = self._parts.written(tensor.id), self._parts.start
        return tuple([begin(extent, part) if axis == along else 0 for axis, extent in enumerate(tensor.shape)])

    def _found(self, tensor: TensorInfo, readers: Sequence[Node], part: int) -> tuple[Boxes, dict[int, int]]:
        """The hull of what tasks read; see ``of``."""
        boxes: Boxes = {}
        processors: dict[int, int] = {}
        for node in readers:
            for placed in [self._place(node, one) for one in (self._parts.ends(node) if part == ALL else (part,))]:
                for slot in [slot for slot, operand in enumerate(node.operands) if operand == tensor.id]:
                    for point, tile in zip(placed.points, placed.tiles, strict=True):
                        rect, memory = tile.operand_rects[slot], self._machine.memory_of(point.processor)
                        if rect is not None:
                            boxes[memory] = boxes[memory].hull(rect) if memory in boxes else rect
                            processors[memory] = min(processors.get(memory, point.processor), point.processor)
        return boxes, processors
