"""Batches: the tensors of one call, checked against the graph's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.process.error import RequestError
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo

__all__: list[str] = []


def check_batch(
    graph: Graph, args: Sequence[object], kwargs: Mapping[str, object], names: Sequence[str]
) -> tuple[dict[str, torch.Tensor], int]:
    """Give the inputs of one call by name, and how many samples they hold.

    Args:
        graph: the graph.
        args: inputs in the order of `names`; of an import what the module takes: see `Arguments`.
        kwargs: inputs by name; those that the graph has but `names` does not list are accepted and left out.
        names: the inputs that the program needs.

    Raises:
        RequestError: too many inputs, a missing or unknown one, a wrong dtype or shape, an empty batch, batches of
            different sizes, or more samples than the graph's batch.
    """
    batch = graph.arguments.by_name(args, kwargs, names)
    known = {tensor.name: tensor for tensor in graph.inputs}
    tensors = {name: _tensor(value, known[name]) for name, value in batch.items()}
    sizes = {name: _samples(value, known[name], graph.batch) for name, value in tensors.items()}
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
    return {name: tensors[name] for name in names}, size


def _tensor(value: object, tensor: TensorInfo) -> torch.Tensor:
    """Check that an input is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise RequestError(f"input {tensor.name!r}: expected a torch.Tensor, got {type(value).__name__}")
    return value


def _samples(value: torch.Tensor, tensor: TensorInfo, most: int) -> int:
    """Check the device, dtype and shape of one input, and count its samples."""
    if value.device.type not in {"cpu", "cuda"}:
        raise RequestError(f"input {tensor.name!r}: expected a tensor on the CPU or on CUDA, got one on {value.device}")
    if value.dtype != torch_dtype(tensor.dtype):
        raise RequestError(f"input {tensor.name!r}: expected dtype {tensor.dtype}, got {str(value.dtype)[6:]}")
    if value.ndim != len(tensor.shape) or tuple(value.shape[1:]) != tensor.shape[1:]:
        wanted = ", ".join(["n", *map(str, tensor.shape[1:])])
        raise RequestError(
            f"input {tensor.name!r}: expected shape ({wanted}) with n <= {most}, got {tuple(value.shape)}"
        )
    return value.shape[0]
