"""The parts of a transformer: attention and the perceptron between."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Scaled dot-product attention by several heads.

    Queries, keys and values have projections of their own, so that a plan can give whole heads to a processor.

    Args:
        width: Features of a position.
        heads: How many there are; divides the width.
        dropout: Probability of dropping a weight.
        causal: Whether a position sees only itself and those before it.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """What each position of ``x`` (N, steps, width) finds in ``memory`` (N, positions, width)."""
        query, key, value = (
            projected.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projected in (self.query(x), self.key(memory), self.value(memory))
        )
        dropout = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        result: Tensor = self.projection(found.transpose(1, 2).flatten(2))
        return result


def perceptron(width: int, inner: int, activation: nn.Module) -> nn.Sequential:
    """Two linear layers at every position."""
    return nn.Sequential(nn.Linear(width, inner), activation, nn.Linear(inner, width))
