"""Bodies: what the tasks of a graph's launches do once bound to instances.

A search makes binders and binds none, so torch is imported where something is bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.training.block import Block
from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import Slot
    from maniple.operators.lowering.step_program import Port
    from maniple.operators.rules.rule import Tile
    from maniple.operators.rules.view import View
    from maniple.operators.training.loss_scale import LossScale
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.storage.scratchpad import LaunchScratch, Scratchpad

__all__: list[str] = []


class PureBinder:
    """A binder of bodies that do nothing but write their views."""

    @property
    def pure(self) -> bool:
        """Yes."""
        return True

    def eager(self, point: int) -> str:
        """Why a device cannot issue again what it captured of the body: nothing speaks against it."""
        del point
        return ""

    def pad(self, point: int) -> Scratchpad | None:
        """The memory that the body shares with others: none."""
        del point
        return None


@dataclass(frozen=True)
class Look:
    """How a body sees what its task uses of a region that has another tensor too.

    Args:
        slot: which of the launch's requirements.
        view: where the tensor lies in the region.
        rects: by task the part of the tensor.
    """

    slot: int
    view: View
    rects: Sequence[IndexSpace]


def seen(looks: Sequence[Look], point: int, views: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """The views of a task as its body sees them."""
    found = list(views)
    for look in looks:
        view = found[look.slot]
        if view is not None:
            found[look.slot] = look.view.tile(view, look.rects[point].bounds.shape)
    return found


@dataclass(frozen=True)
class ForwardBinder(PureBinder):
    """Binds an operator's forward body: which view is what comes with `slots`.

    Args:
        graph: the graph.
        node: the operator.
        tiles: one per point.
        slots: what each view is to the operator.
        training: whether a training step runs, and no evaluation.
        checked: whether a NaN among the results is an error.
        scratch: memory that bodies of one processor take turns with.
        looks: what they see otherwise than it lies.
    """

    graph: Graph
    node: Node
    tiles: Sequence[Tile]
    slots: tuple[Slot, ...]
    training: bool
    checked: bool
    scratch: LaunchScratch | None = None
    looks: tuple[Look, ...] = ()

    def eager(self, point: int) -> str:
        """See ``PureBinder.eager``."""
        del point
        return "every result is looked at for the first NaN" if self.checked else ""

    def pad(self, point: int) -> Scratchpad | None:
        """See ``PureBinder.pad``."""
        return None if self.scratch is None else self.scratch.pad(point)

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views and its place."""
        extents, padding = self.graph.bound(self.node).extents(), self.tiles[point].padding
        return "forward", self.node.operator, extents, padding, self.training, self.checked, _looked(self.looks)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one tile."""
        views = seen(self.looks, point, views)
        node, parts = self.node, dict(zip(self.slots, views, strict=True))
        operands = tuple(parts.get(("operand", place)) for place in range(len(node.operands)))
        results = tuple(there(parts["result", place]) for place in range(len(node.results)))
        saved = tuple(there(view) for (role, _), view in parts.items() if role == "saved")
        if not self.training:
            saved = _unread(self.graph, node, self.tiles[point], results)
        clock = parts.get(("clock", 0))
        stream = None if clock is None else RandomStream.of(node.name, clock)
        extents = self.graph.bound(node).extents()
        scratch = None if self.scratch is None else self.scratch.pad(point).turn()
        context = TileContext(self.tiles[point], extents, node.operator, cores, self.training, stream, scratch)
        body = node.operator.variant(views).bind_forward(context, ForwardTensors(operands, results, saved))
        if not self.checked:
            return body

        def check() -> None:
            body()
            for place, result in enumerate(results):
                if result.is_floating_point() and bool(result.isnan().any()):
                    raise RunError(
                        f"operator {node.name} gave the first NaN, in result {place}: its operands have none"
                    )

        return check


@dataclass(frozen=True)
class BackwardBinder(PureBinder):
    """Binds an operator's backward body: which view is what comes with `slots`.

    Args:
        graph: the graph.
        node: the operator.
        tiles: one per point.
        slots: what each view is to the operator.
        scratch: memory that bodies of one processor take turns with.
        looks: what they see otherwise than it lies.
    """

    graph: Graph
    node: Node
    tiles: Sequence[Tile]
    slots: tuple[Slot, ...]
    scratch: LaunchScratch | None = None
    looks: tuple[Look, ...] = ()

    def pad(self, point: int) -> Scratchpad | None:
        """See ``PureBinder.pad``."""
        return None if self.scratch is None else self.scratch.pad(point)

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views and its place."""
        extents, padding = self.graph.bound(self.node).extents(), self.tiles[point].padding
        return "backward", self.node.operator, extents, padding, self.slots, _looked(self.looks)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one tile."""
        return self.bind_adding(point, views, cores, frozenset())

    def adds_in_place(self, adding: frozenset[int]) -> bool:
        """Whether bodies add to some views, and need no scratch for what they add."""
        operator, places = self.node.operator, {self.slots[number][1] for number in adding}
        every = (operator.kernels().accumulates, operator.gpu_kernels().accumulates)
        return all(able is None or places.issubset(able) for able in every)

    def bind_adding(
        self, point: int, views: Sequence[torch.Tensor | None], cores: int, adding: frozenset[int]
    ) -> Callable[[], object]:
        """Bind one tile, of which some gradients are added to what is there."""
        node, views = self.node, seen(self.looks, point, views)
        parts: dict[Slot, torch.Tensor | None] = dict(zip(self.slots, views, strict=True))
        for place, result in enumerate(node.results):
            if result == self.graph.loss_tensor and ("result_gradient", place) not in parts:
                parts["result_gradient", place] = _one(self.graph.tensors[result].dtype)
        results, operands = range(len(node.results)), range(len(node.operands))
        saved = tuple(there(view) for (part, _), view in parts.items() if part == "saved")
        clock = parts.get(("clock", 0))
        stream = None if clock is None else RandomStream.of(node.name, clock)
        extents = self.graph.bound(node).extents()
        scratch = None if self.scratch is None else self.scratch.pad(point).turn()
        context = TileContext(
            self.tiles[point], extents, node.operator, cores, training=True, stream=stream, scratch=scratch
        )
        tensors = BackwardTensors(
            tuple(parts.get(("result_gradient", place)) for place in results),
            tuple(parts.get(("operand", place)) for place in operands),
            tuple(parts.get(("result", place)) for place in results),
            saved,
            tuple(parts.get(("operand_gradient", place)) for place in operands),
            frozenset(self.slots[number][1] for number in adding),
        )
        return node.operator.variant(views).bind_backward(context, tensors)


@dataclass(frozen=True)
class UpdateBinder(PureBinder):
    """Binds a parameter's update: views are the value, the gradient, the optimizer's state, and the step's numbers.

    Args:
        optimizer: the optimizer, as it is for the parameter.
        row: which of the step's numbers the parameter's group has; None where none enter.
        scaled: scratch memory of the bodies, if the loss is scaled: then the scale and the number of skipped steps
            come last.
    """

    optimizer: AbstractOptimizer
    row: int | None = None
    scaled: LaunchScratch | None = None

    def pad(self, point: int) -> Scratchpad | None:
        """See ``PureBinder.pad``."""
        return None if self.scaled is None else self.scaled.pad(point)

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return "update", self.optimizer, self.row, self.scaled is not None

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        block, row, numbers = self.parts(views)
        if self.scaled is None:
            return self.optimizer.bind_updates([block], cores, row, *numbers)
        from maniple.operators.training.loss_scale import ScaledStep, bind_scaled_update

        return bind_scaled_update(
            self.optimizer, block, ScaledStep(row, *numbers), cores, self.scaled.pad(point).turn()
        )

    def parts(self, views: Sequence[torch.Tensor | None]) -> tuple[Block, torch.Tensor | None, list[torch.Tensor]]:
        """The block, the numbers of the step, and whatever else is read."""
        value, gradient, *others = (there(view) for view in views)
        states, numbers = others[: len(self.optimizer.states)], others[len(self.optimizer.states) :]
        row = None if self.row is None else self.optimizer.row_in(numbers.pop(0), self.row)
        return Block(value, gradient, tuple(states)), row, numbers


@dataclass(frozen=True)
class RescaleBinder(PureBinder):
    """Binds a change of the loss' scale: views are the scale, its counts, and the sum of squares of all gradients.

    Args:
        scale: how it changes.
    """

    scale: LossScale

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return "rescale", self.scale

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one memory's."""
        from maniple.operators.training.loss_scale import bind_rescale

        value, tracker, skipped, squares = (there(view) for view in views)
        return bind_rescale(self.scale, squares, value, tracker, skipped)


@dataclass(frozen=True)
class NormBinder(PureBinder):
    """Binds a gradient's part in the norm of all: views are a block of it, and the sum of squares to write."""

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return ("norm",)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        from maniple.operators.training.norm_kernels import bind_squares

        gradient, squares = (there(view) for view in views)
        return bind_squares(gradient, squares, cores)


@dataclass(frozen=True)
class AssignBinder(PureBinder):
    """Binds a buffer's change: views are the buffer and its next value."""

    def signature(self, point: int) -> Hashable:
        """What the body is, apart from its views."""
        del point
        return ("assign",)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one block."""
        buffer, value = (there(view) for view in views)
        return lambda: buffer.copy_(value)


@dataclass(frozen=True)
class InputBinder:
    """Binds the arrival of an input: takes the oldest tensor that the port has for this memory, and copies it.

    Args:
        port: where the program leaves the batch.
    """

    port: Port

    def eager(self, point: int) -> str:
        """See ``PureBinder.eager``."""
        del point
        return "every run takes another tensor of the program's"

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one memory's part."""
        from maniple.runtime.devices.device import Bare

        target, values = there(views[0]), self.port.queues[point]
        # What the port has for a device lies in pinned memory, or on it: the host goes on.
        return Bare(lambda: target.copy_(values.popleft(), non_blocking=True))


@dataclass(frozen=True)
class FetchBinder:
    """Binds the way out: a copy of the tensor goes to the port, and is there once the run has ended.

    Args:
        port: where the program picks it up, when it has waited for the run.
        first: the number of the port's queue that is the first point's.
    """

    port: Port
    first: int = 0

    def eager(self, point: int) -> str:
        """See ``PureBinder.eager``."""
        del point
        return "every run gives the program a tensor of its own"

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one memory's fetch."""
        from maniple.runtime.devices.device import Bare
        from maniple.runtime.storage.copy_kernels import bind_leave

        leave = bind_leave(there(views[0]))
        values = self.port.queues[self.first + point]
        return Bare(lambda: values.append(leave()))


def _looked(looks: Sequence[Look]) -> Hashable:
    """What of looks a body depends on, apart from its views."""
    return tuple([(look.slot, look.view) for look in looks])


def _one(dtype: str) -> torch.Tensor:
    """The gradient of the loss with respect to itself."""
    import torch

    from maniple.runtime.storage.copy_kernels import torch_dtype

    return torch.ones((), dtype=torch_dtype(dtype))


def _unread(graph: Graph, node: Node, tile: Tile, results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Memory for what a kernel saves in an evaluation, where nothing reads it."""
    from maniple.runtime.storage.copy_kernels import torch_dtype

    return tuple(
        results[0].new_empty(rect.shape, dtype=torch_dtype(item.dtype) if item.dtype else None)
        for (item, _), rect in zip(graph.bound(node).rule.saved, tile.saved_rects, strict=True)
    )


def there(view: torch.Tensor | None) -> torch.Tensor:
    """A view that a launch has for every point."""
    if view is None:
        msg = "the runtime gave no view for a rectangle that is not empty"
        raise TypeError(msg)
    return view
