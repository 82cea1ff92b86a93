"""Models that nothing of Maniple was made or tuned for, written as people write them for themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.models import draw_batch


class UNet(nn.Module):
    """A U-Net of two levels for masks of 32 by 32 (Ronneberger et al., MICCAI 2015, in the small)."""

    def __init__(self, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        sizes = ((3, width), (width, 2 * width), (2 * width, 4 * width))
        self.downs = nn.ModuleList([self.pair(*size) for size in sizes])
        self.lifts = nn.ModuleList([nn.ConvTranspose2d(2 * n * width, n * width, 2, stride=2) for n in (2, 1)])
        self.ups = nn.ModuleList([self.pair(2 * n * width, n * width) for n in (2, 1)])
        self.head = nn.Conv2d(width, classes, 1)

    def pair(self, before: int, after: int) -> nn.Module:
        """Two convolutions, each with a batch norm and a ReLU behind it."""
        first = (nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
        second = (nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
        return nn.Sequential(*first, *second)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a mask."""
        kept = []
        for place, down in enumerate(self.downs):
            x = down(F.max_pool2d(x, 2) if place else x)
            kept.append(x)
        for lift, up, skip in zip(self.lifts, self.ups, (kept[1], kept[0]), strict=True):
            x = up(torch.cat([skip, lift(x)], 1))
        return F.cross_entropy(self.head(x), y)


class ChannelsLastBlock(nn.Module):
    """A block of ConvNeXt (Liu et al., CVPR 2022, figure 4): norm and perceptron with channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.scale = nn.LayerNorm(width, eps=1e-6), nn.Parameter(1e-1 * torch.ones(width))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Give the block's result."""
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.scale * self.narrow(F.gelu(self.wide(h)))
        return x + h.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """A ConvNeXt of two stages for images of 32 by 32."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.reduce = nn.Conv2d(3, width, 2, 2), nn.Conv2d(width, 2 * width, 2, 2)
        self.first = nn.Sequential(*(ChannelsLastBlock(width) for _ in range(2)))
        self.second = nn.Sequential(*(ChannelsLastBlock(2 * width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a label."""
        x = self.second(self.reduce(self.first(self.stem(x))))
        return F.cross_entropy(self.head(self.norm(x.mean((2, 3)))), y)


class Sentences(nn.Module):
    """A classifier of padded sentences: two layers of GRU in both directions, and the mean over what is no padding."""

    def __init__(self, words: int = 2000, width: int = 128, classes: int = 5, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.gru = nn.GRU(width, width, 2, batch_first=True, bidirectional=True, dropout=dropout)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a label."""
        states, _ = self.gru(self.drop(self.words(x)))
        mask = (x != 0).unsqueeze(-1).to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return F.cross_entropy(self.head(self.drop(mean)), y)


class Switch(nn.Module):
    """Experts of which each sample has one, all of them computed (Fedus et al., JMLR 2022, with a loss for balance)."""

    def __init__(self, width: int = 512, experts: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.into, self.gate, self.head = nn.Linear(256, width), nn.Linear(width, experts), nn.Linear(width, classes)
        self.wide = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.narrow = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a label, and a little of that of the balance."""
        h = F.relu(self.into(x))
        scores = self.gate(h).softmax(-1)
        best, chosen = scores.max(-1)
        routed = F.one_hot(chosen, scores.shape[-1]).to(h.dtype)
        each = torch.einsum("bd,edf->ebf", h, self.wide).relu()
        mixed = torch.einsum("ebf,efd,be->bd", each, self.narrow, routed)
        balance = scores.shape[-1] * (routed.mean(0) * scores.mean(0)).sum()
        return F.cross_entropy(self.head(h + mixed * best.unsqueeze(-1)), y) + 0.01 * balance


class Translator(nn.Module):
    """torch's own encoder and decoder with attention from one to the other, and words of both."""

    def __init__(self, words: int = 1000, width: int = 128, places: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.body = nn.Transformer(width, 4, 2, 2, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a translation's next words."""
        given, wanted = y[:, :-1], y[:, 1:]
        length = given.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        h = self.body(
            self.source(x) + self.places[: x.shape[1]], self.target(given) + self.places[:length], tgt_mask=causal
        )
        return F.cross_entropy(self.head(h).flatten(0, 1), wanted.flatten())


class Attending(nn.Module):
    """An LSTM cell that looks at all that an LSTM read (Bahdanau et al., ICLR 2015)."""

    def __init__(self, words: int = 500, width: int = 128) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.cell, self.head = nn.LSTMCell(2 * width, width), nn.Linear(2 * width, words)
        self.keys, self.query, self.energy = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a sequence's words, each told the one before it."""
        states, (hidden, cell) = self.reader(self.words(x))
        keys, told, h, c = self.keys(states), self.words(y), hidden[0], cell[0]
        made = []
        for step in range(y.shape[1] - 1):
            energy = self.energy(torch.tanh(keys + self.query(h).unsqueeze(1))).squeeze(-1)
            seen = torch.bmm(energy.softmax(-1).unsqueeze(1), states).squeeze(1)
            h, c = self.cell(torch.cat([told[:, step], seen], -1), (h, c))
            made.append(torch.cat([h, seen], -1))
        return F.cross_entropy(self.head(torch.stack(made, 1)).flatten(0, 1), y[:, 1:].flatten())


class Patches(nn.Module):
    """A vision transformer of torch's own encoder layers: images of 32 by 32 in patches of 4 by 4."""

    def __init__(self, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.start, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(0.02 * torch.randn(65, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of a label."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1) + self.places
        return F.cross_entropy(self.head(self.layers(x)[:, 0]), y)


class Outside(NamedTuple):
    """A model and its batches.

    Args:
        make: makes the module.
        sample: the shape of one sample.
        labels: the shape of its labels.
        words: how many there are, where samples are words; else 0.
        classes: how many there are.
        batch: the samples of a step.
    """

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    labels: tuple[int, ...]
    words: int
    classes: int
    batch: int

    def module(self) -> nn.Module:
        """Make the module, with the same weights every time."""
        torch.manual_seed(0)
        return self.make()

    def data(self, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Draw a batch."""
        return draw_batch((samples, *self.sample), (samples, *self.labels), self.words, self.classes, seed)


OUTSIDE = {
    "unet": Outside(UNet, (3, 32, 32), (32, 32), 0, 4, 16),
    "convnext": Outside(ConvNext, (3, 32, 32), (), 0, 10, 32),
    "gru_sentences": Outside(Sentences, (40,), (), 2000, 5, 32),
    "switch": Outside(Switch, (256,), (), 0, 10, 128),
    "translator": Outside(Translator, (32,), (33,), 1000, 1000, 32),
    "attending": Outside(Attending, (24,), (17,), 500, 500, 32),
    "patches": Outside(Patches, (3, 32, 32), (), 0, 10, 32),
}
