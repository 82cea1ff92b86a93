"""Home values: parameters and buffers, read and written where they live at this rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.runtime.kernels import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maniple.operators.node import TensorInfo
    from maniple.operators.weight import Weight
    from maniple.regions.rectangle import Rect
    from maniple.runtime.memory import Memory

__all__: list[str] = []


def write(
    tensors: Iterable[TensorInfo],
    weights: Mapping[str, Weight],
    memories: Mapping[int, Memory],
    values: Callable[[TensorInfo, Rect], torch.Tensor],
) -> None:
    """Write tensors at this rank's part of their home.

    Args:
        tensors: which.
        weights: where each lives, by name.
        memories: of this rank.
        values: gives what a rectangle of a tensor gets.
    """
    for tensor in tensors:
        weight = weights[tensor.name]
        for number, rects in weight.home:
            for rect in rects if number in memories else ():
                memories[number].assign(weight.value, rect, values(tensor, rect))


def read(
    tensors: Iterable[TensorInfo], weights: Mapping[str, Weight], memories: Mapping[int, Memory]
) -> dict[str, torch.Tensor]:
    """Read tensors whole; the memories must be those of all ranks.

    Args:
        tensors: which.
        weights: where each lives, by name.
        memories: of the only rank.
    """
    found = {}
    for tensor in tensors:
        whole = found[tensor.name] = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
        weight = weights[tensor.name]
        for number, rects in weight.home:
            for rect in rects:
                whole[rect.slices((0,) * rect.ndim)] = memories[number].view(weight.value, rect)
    return found
