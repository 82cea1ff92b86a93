"""The networks that are trained on GPUs beside torch: convolutions, residual blocks, a decoder, an LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Net(NamedTuple):
    """A network to train.

    Args:
        module: makes it.
        batch: draws inputs of so many samples.
        sizes: a small and a large batch.
    """

    module: Callable[[], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, ...]]
    sizes: tuple[int, int]


class Residual(nn.Module):
    """A residual network of ResNet-18's blocks, without statistics of the batch."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width)]) for _ in range(2 * blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        h = self.stem(x)
        for convolution, norm in self.blocks:  # type: ignore[misc]
            h = h + norm(convolution(h)).relu()
        return F.cross_entropy(self.head(h.mean((2, 3))), y)


class Decoder(nn.Module):
    """A small GPT."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(words, width), max(1, width // 64)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    *(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)),
                    *(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)),
                ]
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        h = self.words(x)
        for norm1, qkv, out, norm2, up, down in self.layers:  # type: ignore[misc]
            parts = qkv(norm1(h)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            h = h + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            h = h + down(F.gelu(up(norm2(h))))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Recurrent(nn.Module):
    """An LSTM of two layers."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return F.cross_entropy(self.head(self.lstm(self.words(x))[0]).flatten(0, 1), y.flatten())


def nets(*, small: bool) -> dict[str, Net]:
    """The networks of the table of steps; small ones for a rehearsal on a CPU."""
    width, words, length, size = (8, 20, 6, 8) if small else (512, 8192, 128, 32)
    low, high = (2, 4) if small else (8, 128)

    def pictures(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(count, 3, size, size), torch.randint(0, 10, (count,))

    def text(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randint(0, words, (count, length)), torch.randint(0, words, (count, length))

    return {
        "cnn": Net(lambda: Residual(8 if small else 64, 1), pictures, (low, high)),
        "resnet": Net(lambda: Residual(8 if small else 128, 2 if small else 8), pictures, (low, high)),
        "gpt": Net(lambda: Decoder(width, 1 if small else 6, words), text, (low, high // 4 or 1)),
        "lstm": Net(lambda: Recurrent(width, words), text, (low, high)),
    }
