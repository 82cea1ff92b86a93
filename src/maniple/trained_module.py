"""The trained module: one that a trainer trains in place, as an optimizer of torch would, and not a copy of its values.

Where a parameter's home lies whole in the host's memory of a rank, the parameter *is* the home: its data becomes a view
of it, and the memory that it had goes. Any other keeps its memory, and is given what was trained when the trainer ends.

    the home of weight            its memory while the trainer lives    after `close`
    whole, this host's memory     the home's                            the same: nobody else has it any more
    cut among ranks, on a GPU     its own, with what it began with      its own, with what was trained

Tensors are what is trained, so of two modules that have one in common, such as a model and its
encoder, one is trained at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Self, final
from weakref import WeakValueDictionary

import torch

from maniple.operators.graph.state import initial_values
from maniple.operators.lowering.weight import write_weights
from maniple.process.error import RequestError
from maniple.runtime.storage.host_bytes import in_host_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.lowering.weight import Weight
    from maniple.runtime.control.world import World
    from maniple.runtime.execution.rank import RankRuntime
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []

# By the ids of tensors, what trains them: of another graph's trainer, too. One that is forgotten trains nothing.
_TRAINED: WeakValueDictionary[int, TrainedModule] = WeakValueDictionary()


@final
class TrainedModule:
    """A module that is trained in place until `end`.

    Args:
        graph: its import.
        module: the module.
    """

    def __init__(self, graph: Graph, module: torch.nn.Module) -> None:
        self._graph, self._module = graph, module
        self._homes: dict[str, int] = {}
        """By tensor, where its home lies, of those that are their homes."""
        self._held = list[torch.Tensor]()
        """What is trained; while it is held, no other tensor has its id."""

    @classmethod
    def of(cls, graph: Graph, *, in_place: bool, alone: bool, stored: bool) -> Self | None:
        """The module of a graph, to be trained in place; None where a trainer has values of its own.

        Args:
            graph: what is trained.
            in_place: whether the module is.
            alone: whether steps end before others begin, so that a value has one place.
            stored: whether a checkpoint has the first values, and not the graph.

        Raises:
            RequestError: another trainer trains some of the module; or this one cannot, as it is not there, has no
                values or others than the graph, holds some twice, or steps overlap.
        """
        module = graph.module
        owned = {} if module is None else _tensors(module)
        lasting = [tensor.name for tensor in graph.lasting if tensor.name in owned]
        if taken := [name for name in lasting if id(owned[name]) in _TRAINED]:
            raise RequestError(
                f"graph {graph.name!r}: its {taken[0]!r} is trained in place by another trainer, so its values are "
                "under way; close that trainer first"
            )
        if not in_place:
            return None
        if module is None:
            raise RequestError(f"in_place: graph {graph.name!r} has no module; import one with mp.from_torch")
        if not alone:
            raise RequestError("in_place: expected a plan whose steps end with a flush; leave semantics.weights out")
        empty = [tensor.name for tensor in graph.parameters if tensor.name not in owned or owned[tensor.name].is_meta]
        if empty:
            raise RequestError(f"in_place: parameter {empty[0]!r} has no values in the module; leave in_place out")
        _check_imported(graph, owned, stored=stored)
        _check_apart({name: owned[name] for name in lasting})
        return cls(graph, module)

    def move_in(
        self,
        weights: Mapping[str, Weight],
        memories: Mapping[int, Memory],
        write: Callable[[TensorInfo], None] = lambda _: None,
    ) -> None:
        """Have each tensor be its home, wherever that is whole here.

        Args:
            weights: where homes are, by name.
            memories: this rank's, by number.
            write: writes a home, where it has no values yet: a tensor's own memory goes before the next home is
                touched.
        """
        self._homes.clear()
        owned = _tensors(self._module)
        self._forget()
        self._held.extend(owned[tensor.name] for tensor in self._graph.lasting if tensor.name in owned)
        _TRAINED.update((id(own), self) for own in self._held)
        for tensor in self._graph.lasting:
            write(tensor)
            own, home = owned.get(tensor.name), _whole_home(weights[tensor.name], memories)
            if own is not None and home is not None and in_host_memory(own):
                own.data = home
                self._graph.load_state_dict({tensor.name: home}, strict=False)
                self._homes[tensor.name] = home.data_ptr()

    def give(self, world: World, find: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Give each tensor that is not its home what was trained; all ranks do, for each other's sake.

        Nor is one its home any more that the program has moved since, as `module.to` does.

        Args:
            world: the ranks.
            find: finds all values, by name, whole, with all ranks.
        """
        names = [tensor.name for tensor in self._graph.lasting]
        owned = {name: own for name, own in _tensors(self._module).items() if name in names}
        lacking = {name: own for name, own in owned.items() if own.data_ptr() != self._homes.get(name)}
        if world.size == 1 and not lacking:
            return
        values = find()
        with torch.no_grad():
            for name, own in lacking.items():
                own.copy_(values[name])

    def end(self, world: World, runtime: RankRuntime) -> None:
        """Leave the module to others, with the memory that it has.

        A lone rank waits for a step that is under way, which would go on to write into the module; of others it may
        never end.

        Args:
            world: the ranks.
            runtime: this rank's.

        Raises:
            RunError: that step failed, and has left the module as a failed step leaves it.
        """
        try:
            if world.size == 1 and runtime.error is None:
                runtime.drain()
        finally:
            self._forget()

    def _forget(self) -> None:
        for own in self._held:
            _TRAINED.pop(id(own), None)
        self._held.clear()


def begin_values(
    module: TrainedModule | None,
    graph: Graph,
    weights: Mapping[str, Weight],
    memories: Mapping[int, Memory],
    seed: int,
) -> None:
    """Write initial values at home.

    Args:
        module: the graph's, where it is trained in place.
        graph: has the values.
        weights: where homes are, by name.
        memories: this rank's, by number.
        seed: of values that are drawn.
    """

    def write(*tensors: TensorInfo) -> None:
        write_weights(weights, memories, tensors, lambda tensor, rect: initial_values(graph, tensor, rect, seed))

    if module is None:
        write(*graph.lasting)
    else:
        module.move_in(weights, memories, write)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers, by name, as they are now: forward may have assigned a buffer."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers(remove_duplicate=False))}


def _whole_home(weight: Weight, memories: Mapping[int, Memory]) -> torch.Tensor | None:
    """The home of a weight, where it is all in the host's memory of this rank, which no other writes into."""
    whole = weight.value.bounds
    for number, rects in weight.home:
        memory = memories.get(number)
        if memory is None or memory.device is not None or memory.arena is not None:
            continue
        if sum(rect.volume for rect in rects) == whole.volume:
            return memory.view(weight.value, whole)
    return None


def _check_imported(graph: Graph, owned: Mapping[str, torch.Tensor], *, stored: bool) -> None:
    """Refuse a module that is not the one that was imported any more: what it has would be lost.

    Args:
        graph: its import, with the values that training begins with.
        owned: what the module has, by name.
        stored: whether a checkpoint has the first values; the module's have to fit in kind alone then.

    Raises:
        RequestError: names the first tensor that is another.
    """
    for tensor in graph.lasting:
        own, given = owned.get(tensor.name), graph.state.get(tensor.name)
        if own is None or given is None or own.data_ptr() == given.data_ptr():
            continue
        alike = own.shape == given.shape and own.dtype == given.dtype
        if not alike or not (stored or torch.equal(own.to(given.device), given)):
            raise RequestError(
                f"in_place: {tensor.name!r} of the module is not what graph {graph.name!r} begins with; import the "
                "module again, with the values that training is to begin with"
            )


def _check_apart(owned: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors that have bytes in common, which torch would train together and homes do not.

    Raises:
        RequestError: names two.
    """
    spans = []
    for name, tensor in owned.items():
        if in_host_memory(tensor) and tensor.numel():
            reach = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            spans.append((begin, begin + (reach + 1) * tensor.element_size(), name))
    spans.sort()
    for (_, end, name), (begin, _, other) in pairwise(spans):
        if begin < end:
            one, two = sorted((name, other), key=list(owned).index)
            raise RequestError(f"in_place: {one!r} and {two!r} share memory; give each its own, or tie them")
