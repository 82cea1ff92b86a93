"""The raced models: plain modules in blocks, so that every side can cut them at the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Blocks(nn.Module):
    """Blocks in a row, each of one tensor, and the cross-entropy of what the last gives.

    Args:
        blocks: the last gives logits, of one sample or of each place of one.
    """

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss."""
        for block in self.blocks:
            x = block(x)
        return mean_loss(x, y)


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Give the mean cross-entropy of logits whose last axis are classes."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


class Residual(nn.Module):
    """A basic block of ResNet: He et al., Deep residual learning, CVPR 2016, table 1."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Give the block's result."""
        inside = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(inside + self.shortcut(x))


class Words(nn.Module):
    """Bytes and their places as vectors."""

    def __init__(self, words: int, places: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(places, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Give the sum of both."""
        return self.words(x) + self.places


class Attention(nn.Module):
    """A layer of GPT: causal attention and a perceptron, each behind a norm and beside a skip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Give the layer's result."""
        samples, places, width = x.shape
        parts = self.into(self.norms[0](x)).view(samples, places, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, places, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Recurrent(nn.Module):
    """One layer of LSTM, of which the states of all steps go on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Give the states."""
        return self.lstm(x)[0]


def cnn() -> Blocks:
    """A network in the way of VGG for images of 32 by 32 (Simonyan and Zisserman, ICLR 2015, configuration A)."""
    blocks: list[nn.Module] = []
    before = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0):
        if width:
            blocks.append(nn.Sequential(nn.Conv2d(before, width, 3, padding=1), nn.ReLU()))
            before = width
        else:
            blocks.append(nn.MaxPool2d(2))
    return Blocks(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(2048, 512), nn.ReLU()), nn.Linear(512, 10))


def resnet18() -> Blocks:
    """ResNet-18 for images of 32 by 32: a first convolution of 3 by 3, and no pooling behind it."""
    blocks: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(before, width, stride), Residual(width, width, 1)]
        before = width
    return Blocks(*blocks, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)))


def gpt() -> Blocks:
    """A GPT of bytes: 4 layers, 256 wide, 128 places."""
    head = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256, bias=False))
    return Blocks(Words(256, 128, 256), *(Attention(256, 8) for _ in range(4)), head)


def lstm() -> Blocks:
    """A language model of 10,000 words: two layers of LSTM, 512 wide (Zaremba et al., 2014, in the small)."""
    return Blocks(nn.Embedding(10_000, 512), Recurrent(512), Recurrent(512), nn.Linear(512, 10_000))


def mlp() -> Blocks:
    """A perceptron of three layers, 4096 wide."""
    wide = (nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(2))
    return Blocks(nn.Sequential(nn.Linear(784, 4096), nn.ReLU()), *wide, nn.Linear(4096, 10))


class Race(NamedTuple):
    """A model and its batches.

    Args:
        make: makes the module.
        sample: the shape of one sample.
        labels: the shape of its labels.
        words: how many there are, where samples are words; else 0.
        classes: how many there are.
        batch: the samples of a step.
        cuts: the blocks before which it is cut in two, three and four stages of about equal work.
    """

    make: Callable[[], Blocks]
    sample: tuple[int, ...]
    labels: tuple[int, ...]
    words: int
    classes: int
    batch: int
    cuts: dict[int, tuple[int, ...]]

    def module(self) -> Blocks:
        """Make the module, with the same weights in every process."""
        torch.manual_seed(0)
        return self.make()

    def data(self, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Draw a batch."""
        return draw_batch((samples, *self.sample), (samples, *self.labels), self.words, self.classes, seed)


def draw_batch(
    samples: tuple[int, ...], labels: tuple[int, ...], words: int, classes: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw samples and labels of these shapes: words of so many, normal numbers if 0, and classes of so many."""
    chance = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, words, samples, generator=chance) if words else torch.randn(samples, generator=chance)
    return drawn, torch.randint(0, classes, labels, generator=chance)


RACES = {
    "cnn": Race(cnn, (3, 32, 32), (), 0, 10, 64, {2: (5,), 4: (3, 5, 7)}),
    "resnet18": Race(resnet18, (3, 32, 32), (), 0, 10, 64, {2: (5,), 4: (3, 5, 7)}),
    "gpt": Race(gpt, (128,), (128,), 256, 256, 16, {2: (3,), 4: (2, 3, 4)}),
    "lstm": Race(lstm, (35,), (35,), 10_000, 10_000, 32, {2: (3,), 4: (1, 2, 3)}),
    "mlp": Race(mlp, (784,), (), 0, 10, 64, {2: (2,), 4: (1, 2, 3)}),
}
