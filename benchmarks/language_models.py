"""Language models as pipelines cut them: decoders like Llama-3-8B and DeepSeek-V2-Lite, as modules without values.

Positions are left out, and norms are those of the root mean square: neither matters for where stages are cut, as every
layer has the same of them.

    model       layers                           a layer's products    the last projection
    Llama       32, width 4096, 8 key heads      218 million           525 million, 2.4 layers
    DeepSeek    27, width 2048, one dense, then  82 million            210 million, 2.6 layers
                6 of 64 experts and 2 shared
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maniple.operators.torch_import.from_torch import from_torch

if TYPE_CHECKING:
    import maniple as mp


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder.

    Args:
        words: of the vocabulary.
        width: of a position.
        layers: how many.
        heads: of attention.
        key_heads: of keys and values, which heads share.
        hidden: of a dense layer's gated perceptron.
        dense: so many layers have one; the others have experts.
        experts: of a layer.
        chosen: so many experts have a word, on average: each takes the same number of a text's words.
        shared: experts that have every word.
        expert_hidden: of an expert's gated perceptron.
    """

    words: int
    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int
    dense: int
    experts: int = 0
    chosen: int = 0
    shared: int = 0
    expert_hidden: int = 0


LLAMA = Sizes(128256, 4096, 32, 32, 8, 14336, 32)
DEEPSEEK = Sizes(102400, 2048, 27, 16, 16, 10944, 1, 64, 6, 2, 1408)


class Attention(nn.Module):
    """Causal attention whose keys and values are shared by groups of heads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.key_heads, self.each = sizes.heads, sizes.key_heads, sizes.width // sizes.heads
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, sizes.key_heads * self.each, bias=False)
        self.value = nn.Linear(sizes.width, sizes.key_heads * self.each, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, steps, width) to the same shape."""
        n, steps, width = x.shape
        query = self.query(x).view(n, steps, self.heads, self.each).transpose(1, 2)
        key = self.key(x).view(n, steps, self.key_heads, self.each).transpose(1, 2)
        value = self.value(x).view(n, steps, self.key_heads, self.each).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.key_heads < self.heads
        )
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(n, steps, width))
        return result


class Gated(nn.Module):
    """A perceptron whose hidden features are gated."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape (..., width) to the same."""
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Experts(nn.Module):
    """Experts of fixed capacity: each takes the words of a text that score highest with it, always as many."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        count, width, hidden = sizes.experts, sizes.width, sizes.expert_hidden
        self.share = sizes.chosen, sizes.experts
        self.router = nn.Linear(width, count, bias=False)
        self.gate = nn.Parameter(torch.empty(count, width, hidden))
        self.up = nn.Parameter(torch.empty(count, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.shared = Gated(width, hidden * sizes.shared)

    def forward(self, x: Tensor) -> Tensor:
        """(N, steps, width) to the same shape."""
        n, steps, width = x.shape
        scores = self.router(x).softmax(2)
        best, words = scores.transpose(1, 2).topk(steps * self.share[0] // self.share[1], 2)
        at = words.reshape(n, -1, 1).expand(-1, -1, width)
        taken = x.gather(1, at).view(n, self.share[1], -1, width)
        hidden = F.silu(torch.matmul(taken, self.gate)) * torch.matmul(taken, self.up)
        given = torch.matmul(hidden, self.down) * best.unsqueeze(3)
        result: Tensor = self.shared(x).scatter_add(1, at, given.reshape(n, -1, width))
        return result


class Block(nn.Module):
    """Attention and a perceptron or experts, each behind a norm and with a shortcut."""

    def __init__(self, sizes: Sizes, number: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.attention = Attention(sizes)
        self.after = Gated(sizes.width, sizes.hidden) if number < sizes.dense else Experts(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, steps, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.after(self.norm(x))
        return result


class Decoder(nn.Module):
    """Guesses every next word of a text."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, number) for number in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """The mean cross-entropy over all words."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def decoder(name: str, sizes: Sizes, batch: int, steps: int) -> mp.Graph:
    """A decoder as a graph; its parameters have no values, for it is only planned."""
    with torch.device("meta"):
        module = Decoder(sizes)
        texts = {each: torch.zeros(batch, steps, dtype=torch.int64) for each in ("tokens", "following")}
    return from_torch(module, texts, name=name)
