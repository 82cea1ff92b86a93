"""Batches: the tensors of one call, checked against the graph's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.regions.error import RequestError, nearest
from maniple.runtime.kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph import Graph
    from maniple.operators.node import TensorInfo

__all__: list[str] = []


def check_batch(
    graph: Graph, args: Sequence[torch.Tensor], kwargs: Mapping[str, torch.Tensor], names: Sequence[str]
) -> tuple[dict[str, torch.Tensor], int]:
    """Give the inputs of one call by name, and how many samples they hold.

    Args:
        graph: the graph.
        args: inputs in the order of `names`.
        kwargs: inputs by name; those that the graph has but `names` does not list are accepted and left out.
        names: the inputs that the program needs.

    Raises:
        RequestError: too many inputs, a missing or unknown one, a wrong dtype or shape, an empty batch, batches of
            different sizes, or more samples than the graph's batch.
    """
    batch = _by_name(graph, args, kwargs, names)
    known = {tensor.name: tensor for tensor in graph.inputs}
    sizes = {name: _samples(value, known[name], graph.batch) for name, value in batch.items()}
    size = next(iter(sizes.values()))
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name!r} has {count}" for name, count in sizes.items())
        raise RequestError(f"the inputs hold different numbers of samples: {shown}")
    if size == 0:
        raise RequestError("the batch is empty: expected at least 1 sample")
    if size > graph.batch:
        raise RequestError(
            f"the batch has {size} samples, the graph {graph.batch}; pass fewer, or build the graph for a larger batch"
        )
    return {name: batch[name] for name in names}, size


def _by_name(
    graph: Graph, args: Sequence[torch.Tensor], kwargs: Mapping[str, torch.Tensor], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Give all inputs of one call by name, those that the program does not need included."""
    known = [tensor.name for tensor in graph.inputs]
    if len(args) > len(names):
        raise RequestError(f"expected at most {len(names)} inputs ({', '.join(names)}), got {len(args)}")
    batch = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in known:
            raise RequestError(f"graph {graph.name!r} has no input {name!r}{nearest(name, known)}")
        if name in batch:
            raise RequestError(f"input {name!r} was given twice, by position and by name")
        batch[name] = value
    for name in names:
        if name not in batch:
            raise RequestError(f"input {name!r} is missing; expected {', '.join(names)}")
    return batch


def _samples(value: torch.Tensor, tensor: TensorInfo, most: int) -> int:
    """Check the type and shape of one input, and count its samples."""
    if not isinstance(value, torch.Tensor):
        raise RequestError(f"input {tensor.name!r}: expected a torch.Tensor, got {type(value).__name__}")
    if value.device.type != "cpu":
        raise RequestError(f"input {tensor.name!r}: expected a tensor on the CPU, got one on {value.device}")
    if value.dtype != torch_dtype(tensor.dtype):
        raise RequestError(f"input {tensor.name!r}: expected dtype {tensor.dtype}, got {str(value.dtype)[6:]}")
    if value.ndim != len(tensor.shape) or tuple(value.shape[1:]) != tensor.shape[1:]:
        wanted = ", ".join(["n", *map(str, tensor.shape[1:])])
        raise RequestError(
            f"input {tensor.name!r}: expected shape ({wanted}) with n <= {most}, got {tuple(value.shape)}"
        )
    return value.shape[0]
