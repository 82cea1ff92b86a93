"""The transformer: Vaswani et al., Attention Is All You Need (2017), the base model of table 3."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from maniple.zoo.model import Translator, word_loss
from maniple.zoo.transformer_parts import Attention, perceptron


class EncoderLayer(nn.Module):
    """Attention to the text and a perceptron, each with a shortcut, dropout and layer normalization."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, causal=causal)
        self.attention_norm = nn.LayerNorm(width)
        self.perceptron = perceptron(width, inner, nn.ReLU())
        self.perceptron_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor) -> Tensor:
        """The first part."""
        result: Tensor = self.attention_norm(x + self.dropout(self.attention(x, x)))
        return result

    def think(self, x: Tensor) -> Tensor:
        """The last part."""
        result: Tensor = self.perceptron_norm(x + self.dropout(self.perceptron(x)))
        return result

    def forward(self, x: Tensor) -> Tensor:
        """(N, steps, width) to the same shape."""
        return self.think(self.attend(x))


class DecoderLayer(EncoderLayer):
    """An encoder layer that looks only back, with attention to the encoder's result between its parts."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__(width, heads, inner, dropout, causal=True)
        self.memory_attention = Attention(width, heads, dropout)
        self.memory_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
        """(N, steps, width) to the same shape."""
        x = self.attend(x)
        x = self.memory_norm(x + self.dropout(self.memory_attention(x, memory)))
        return self.think(x)


class Transformer(Translator):
    """Encoder and decoder; the embeddings of both languages and the last projection are one parameter.

    Args:
        words: The size of the shared vocabulary.
        steps: Words of a text.
        width: Features of a position.
        heads: Of every attention.
        inner: Features inside the perceptrons.
        layers: Of the encoder, and of the decoder.
        dropout: Probability.
    """

    def __init__(
        self,
        words: int = 37000,
        steps: int = 64,
        width: int = 512,
        heads: int = 8,
        inner: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(words, steps)
        self.embedding = nn.Embedding(words, width)
        self.register_buffer("positions", sinusoids(steps, width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads, inner, dropout) for _ in range(layers)))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, inner, dropout) for _ in range(layers))
        self.classifier = nn.Linear(width, words, bias=False)
        self.classifier.weight = self.embedding.weight

    def embed(self, tokens: Tensor) -> Tensor:
        """Word and position."""
        scale = math.sqrt(self.embedding.embedding_dim)
        result: Tensor = self.dropout(self.embedding(tokens) * scale + self.positions)
        return result

    def forward(self, source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        """The mean cross-entropy over all words."""
        memory = self.encoder(self.embed(source))
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return word_loss(self.classifier(x), following)


def sinusoids(steps: int, width: int) -> Tensor:
    """Section 3.5: sines and cosines of the position, of wavelengths from 2 pi to 10000 * 2 pi."""
    angles = torch.arange(steps).unsqueeze(1) * 10000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
