"""State dicts: the values of parameters and buffers by name, as torch.nn.Module has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.operators.graph.initialization import initial
from maniple.process.error import RequestError, nearest
from maniple.regions.rectangle import Rect
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo

__all__: list[str] = []


def initial_values(graph: Graph, tensor: TensorInfo, rect: Rect, seed: int) -> torch.Tensor:
    """The initial values of a rectangle of a parameter or buffer: what a state dict gave, else what its rule draws."""
    given = graph.state.get(tensor.name)
    if given is not None:
        return given[rect.slices((0,) * len(tensor.shape))]
    return torch.from_numpy(initial(tensor, rect, seed))


def initial_state(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """See ``Graph.state_dict``."""
    found = {
        tensor.name: initial_values(graph, tensor, Rect.of_shape(tensor.shape), seed).clone()
        for tensor in graph.lasting
        if tensor.persistent
    }
    return with_ties(graph, found)


def with_ties(graph: Graph, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict with the further names of its tensors."""
    return state | {name: state[tensor] for name, tensor in graph.ties.items() if tensor in state}


def check_state(graph: Graph, state: Mapping[str, torch.Tensor], *, strict: bool) -> dict[str, torch.Tensor]:
    """The entries of a state dict, when they fit the graph's parameters and buffers.

    Args:
        graph: The graph.
        state: By name.
        strict: Whether every parameter and persistent buffer must be there.

    Raises:
        RequestError: A missing or unknown entry, a wrong shape or dtype, or a tensor without values.
    """
    known = {tensor.name: tensor for tensor in graph.lasting}
    state = {graph.ties.get(name, name): value for name, value in state.items()}
    for name in state:
        if name not in known:
            raise RequestError(
                f"state dict: graph '{graph.name}' has no parameter or buffer '{name}'" + nearest(name, [*known])
            )
    missing = [name for name, tensor in known.items() if strict and tensor.persistent and name not in state]
    if missing:
        raise RequestError(
            f"state dict: {len(missing)} of {len(known)} entries are missing, the first is '{missing[0]}'; "
            "give all of them, or pass strict=False to keep the others"
        )
    found = {}
    for name, value in state.items():
        tensor = known[name]
        if not isinstance(value, torch.Tensor) or value.is_meta:
            raise RequestError(f"state dict: '{name}': expected a tensor with values, got {_describe(value)}")
        if tuple(value.shape) != tensor.shape or value.dtype != torch_dtype(tensor.dtype):
            raise RequestError(
                f"state dict: '{name}': expected shape {tensor.shape} of {tensor.dtype}, got {_describe(value)}"
            )
        found[name] = value.detach()
    return found


def _describe(value: object) -> str:
    """A value as messages show it."""
    if isinstance(value, torch.Tensor):
        place = " on the meta device" if value.is_meta else ""
        return f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}{place}"
    return type(value).__name__
