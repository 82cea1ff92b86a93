"""GPT-2: Radford et al., Language Models are Unsupervised Multitask Learners (2019), the smallest of table 2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maniple.zoo.model import LanguageModel, word_loss
from maniple.zoo.transformer_parts import Attention, perceptron


class GPTBlock(nn.Module):
    """Causal attention and a perceptron, each behind a layer normalization and with a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal=True)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = perceptron(width, 4 * width, nn.GELU(approximate="tanh"))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, steps, width) to the same shape."""
        normal = self.attention_norm(x)
        x = x + self.dropout(self.attention(normal, normal))
        result: Tensor = x + self.dropout(self.perceptron(self.perceptron_norm(x)))
        return result


class GPT(LanguageModel):
    """A decoder-only transformer; the embedding and the last projection are one parameter.

    Args:
        words: The size of the vocabulary.
        steps: Words of a text.
        width: Features of a position.
        heads: Of every attention.
        layers: Blocks.
        dropout: Probability.
    """

    def __init__(
        self,
        words: int = 50257,
        steps: int = 1024,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(words, steps)
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(steps, width) * 0.01)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, words, bias=False)
        self.classifier.weight = self.embedding.weight

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """The mean cross-entropy over all words."""
        x = self.dropout(self.embedding(tokens) + self.positions)
        return word_loss(self.classifier(self.norm(self.blocks(x))), following)
