"""Batches: the tensors of one call, checked against the graph's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from maniple.process.error import RequestError
from maniple.runtime.storage.copy_kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.arguments import Arguments
    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class BatchForm:
    """What batches of a graph are, looked up once in the graph and then held against each of them.

    Args:
        arguments: how a call's arguments become inputs.
        inputs: every input by name, in order.
        batch: the most samples.
        plain: of every input its dtype, and its shape in a whole batch, where each is an argument of its own.
    """

    arguments: Arguments
    inputs: Mapping[str, TensorInfo]
    batch: int
    plain: tuple[tuple[torch.dtype, tuple[int, ...]], ...]

    @staticmethod
    def of(graph: Graph) -> BatchForm:
        """Look it up."""
        arguments, inputs = graph.arguments, {tensor.name: tensor for tensor in graph.inputs}
        alone = [(name, (name,)) for name in inputs] == list(arguments.inputs.items())
        plain = tuple((torch_dtype(i.dtype), tuple(i.shape)) for i in inputs.values())
        return BatchForm(arguments, inputs, graph.batch, plain if alone and not arguments.fixed else ())

    def check(
        self, args: Sequence[object], kwargs: Mapping[str, object], names: Sequence[str] | None = None
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Give the inputs of one call by name, and how many samples they hold.

        Args:
            args: inputs in the order of `names`; of an import what the module takes: see `Arguments`.
            kwargs: inputs by name; those that the graph has but `names` does not list are accepted and left out.
            names: the inputs that the program needs; None: all.

        Raises:
            RequestError: too many inputs, a missing or unknown one, a wrong dtype or shape, an empty batch, batches of
                different sizes, or more samples than the graph's batch.
        """
        if names is None:
            if not kwargs and (size := self._fitting(args)):
                return dict(zip(self.inputs, args, strict=True)), size  # type: ignore[arg-type]  # it was looked at
            names = list(self.inputs)
        batch = self.arguments.by_name(args, kwargs, names)
        tensors = {name: _tensor(value, self.inputs[name]) for name, value in batch.items()}
        sizes = {name: _samples(value, self.inputs[name], self.batch) for name, value in tensors.items()}
        size = next(iter(sizes.values()))
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{name!r} has {count}" for name, count in sizes.items())
            raise RequestError(f"the inputs hold different numbers of samples: {shown}")
        if size == 0:
            raise RequestError("the batch is empty: expected at least 1 sample")
        if size > self.batch:
            raise RequestError(
                f"the batch has {size} samples, the graph {self.batch}; pass fewer, or build the graph for a larger "
                "batch"
            )
        return {name: tensors[name] for name in names}, size

    def _fitting(self, args: Sequence[object]) -> int:
        """How many samples tensors hold that are one input each, in order; 0 where there is more to say of them."""
        if not self.plain or len(args) != len(self.plain):
            return 0
        size = 0
        for value, (dtype, whole) in zip(args, self.plain, strict=True):
            if not isinstance(value, torch.Tensor) or value.dtype is not dtype or not (value.is_cpu or value.is_cuda):
                return 0
            shape = value.shape
            if shape != whole and (len(shape) != len(whole) or shape[1:] != whole[1:]):
                return 0
            if size not in {0, shape[0]}:
                return 0
            size = shape[0]
        return size if size <= self.batch else 0


def check_batch(
    graph: Graph, args: Sequence[object], kwargs: Mapping[str, object], names: Sequence[str]
) -> tuple[dict[str, torch.Tensor], int]:
    """Give the inputs of one call by name, and how many samples they hold; see `BatchForm.check`."""
    return BatchForm.of(graph).check(args, kwargs, names)


def _tensor(value: object, tensor: TensorInfo) -> torch.Tensor:
    """Check that an input is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise RequestError(
            f"input {tensor.name!r}: expected a torch.Tensor, got {type(value).__name__}; make one of it: "
            "torch.as_tensor(...)"
        )
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
