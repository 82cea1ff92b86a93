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


def convolutional(width: int, size: int) -> nn.Module:
    """A network in the way of VGG (Simonyan and Zisserman, ICLR 2015, configuration A) for images of some size."""
    layers: list[nn.Module] = []
    before = 3
    for wide in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0):
        if not wide:
            layers.append(nn.MaxPool2d(2))
            size //= 2
            continue
        layers += [nn.Conv2d(before, wide * width, 3, padding=1), nn.ReLU()]
        before = wide * width
    return Classified(*layers, nn.Flatten(), nn.Linear(before * size * size, before), nn.ReLU(), nn.Linear(before, 10))


class Classified(nn.Module):
    """Layers in a row, and the cross-entropy of what the last gives."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return F.cross_entropy(self.layers(x), y)


class Residual(nn.Module):
    """A block of a residual network: basic, or with a bottleneck a quarter as wide.

    He et al., Deep residual learning for image recognition, CVPR 2016, table 1; the stride of a bottleneck is that of
    its convolution of 3 by 3.
    """

    def __init__(self, before: int, after: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        inside = after // 4 if bottleneck else after
        kinds = ((1, 1), (3, stride), (1, 1)) if bottleneck else ((3, stride), (3, 1))
        widths = (before, *[inside] * (len(kinds) - 1), after)
        layers: list[nn.Module] = []
        for (kernel, step), source, target in zip(kinds, widths[:-1], widths[1:], strict=True):
            layers += [
                nn.Conv2d(source, target, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(target),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the block's result."""
        return F.relu(self.body(x) + self.shortcut(x))


def residual(width: int, counts: tuple[int, ...], *, bottleneck: bool) -> nn.Module:
    """ResNet for images of 32 by 32: a first convolution of 3 by 3, and no pooling behind it."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage, count in enumerate(counts):
        after = (width << stage) * (4 if bottleneck else 1)
        for block in range(count):
            layers.append(Residual(before, after, 2 if stage and not block else 1, bottleneck=bottleneck))
            before = after
    return Classified(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


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
    width, words, length, size = (8, 20, 6, 16) if small else (512, 8192, 128, 32)
    low, high = (2, 4) if small else (8, 128)

    def pictures(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(count, 3, size, size), torch.randint(0, 10, (count,))

    def text(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randint(0, words, (count, length)), torch.randint(0, words, (count, length))

    wide, counts = (8, (1, 1)) if small else (64, (2, 2, 2, 2))
    deep = (1, 1) if small else (3, 4, 6, 3)
    return {
        "cnn": Net(lambda: convolutional(wide, size), pictures, (low, high)),
        "resnet18": Net(lambda: residual(wide, counts, bottleneck=False), pictures, (low, high)),
        "resnet50": Net(lambda: residual(wide, deep, bottleneck=True), pictures, (low, high)),
        "gpt": Net(lambda: Decoder(width, 1 if small else 6, words), text, (low, high // 4 or 1)),
        "lstm": Net(lambda: Recurrent(width, words), text, (low, high)),
    }
