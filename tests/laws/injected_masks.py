"""Plain torch with the masks that a graph draws: so that a module with dropout can be its judge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from maniple.operators.graph import Graph
from maniple.operators.kernels.dropout import drawn_factors
from maniple.operators.library.attention import Attention
from maniple.operators.library.dropout import Dropout
from maniple.operators.random_stream import RandomStream
from maniple.regions.rectangle import Rect


@contextmanager
def masks_of(graph: Graph, seed: int, step: int) -> Iterator[None]:
    """Let torch's dropout and attention, in the order of their calls, drop what the graph's operators drop.

    Args:
        graph: an imported module.
        seed: of the trainer.
        step: the number of the step.
    """
    clock = torch.tensor([seed, step])
    names = iter([node.name for node in graph.nodes if isinstance(node.operator, Dropout)])
    attentions = iter([node for node in graph.nodes if isinstance(node.operator, Attention)])

    def factors(name: str, p: float, value: Tensor) -> Tensor:
        shape = tuple(value.shape)
        return drawn_factors(RandomStream.of(name, clock), p, shape, Rect.of_shape(shape), value.dtype)

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        return input * factors(next(names), p, input) if training and p else input

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        name = next(attentions).name
        if enable_gqa:
            key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = scores.softmax(-1)
        return (weights * factors(name, dropout_p, weights) if dropout_p else weights) @ value

    with (
        mock.patch("torch.nn.functional.dropout", dropout),
        mock.patch("torch.nn.functional.scaled_dot_product_attention", attention),
    ):
        yield
