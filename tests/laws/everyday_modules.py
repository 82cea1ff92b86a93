"""Modules as people write them for themselves: what an importer meets beside the published networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from imported_networks import Imported
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

Draw = Callable[[int, torch.Generator], Tensor]


class UNet(nn.Module):
    """Skip connections, channels dropped, upsampling in two ways."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.down, self.middle = self.block(3, width), self.block(width, 2 * width)
        self.up, self.join = nn.ConvTranspose2d(2 * width, width, 2, stride=2), self.block(4 * width, width)
        self.drop, self.head = nn.Dropout2d(0.3), nn.Conv2d(width, 2, 1)

    def block(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.SiLU(), nn.GroupNorm(2, outputs)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        a = self.down(x)
        b = self.drop(self.middle(F.max_pool2d(a, 2)))
        wide = F.interpolate(b, scale_factor=2, mode="bilinear")
        return F.cross_entropy(self.head(self.join(torch.cat([self.up(b), a, wide], 1))), mask)


class Mixture(nn.Module):
    """Experts, of which each sample goes through the two that a gate scores highest."""

    def __init__(self, width: int = 6, experts: int = 3) -> None:
        super().__init__()
        self.first, self.gate, self.out = nn.Linear(5, width), nn.Linear(width, experts), nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)
        scores = self.gate(h).softmax(-1)
        top, chosen = scores.topk(2, -1)
        kept = F.one_hot(chosen, len(self.experts)).to(h.dtype)
        mix = torch.einsum("bk,bke->be", top / top.sum(-1, keepdim=True), kept)
        routed = torch.zeros_like(scores).scatter(-1, chosen, top).mean(0)
        h = torch.einsum("be,bed->bd", mix, torch.stack([expert(h).relu() for expert in self.experts], 1))
        return F.cross_entropy(self.out(h), y) + 0.1 * (routed * scores.mean(0)).sum()


class Unrolled(nn.Module):
    """Cells of three kinds in a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm, self.plain = nn.GRUCell(4, 6), nn.LSTMCell(6, 5), nn.RNNCell(5, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, a = x.new_zeros(x.size(0), 6), torch.zeros(x.size(0), 5, dtype=x.dtype)
        c, r = torch.zeros_like(a), torch.zeros_like(a)
        seen = []
        for step in range(x.size(1)):
            h = self.gru(x[:, step], h)
            a, c = self.lstm(h, (a, c))
            r = self.plain(a, r)
            seen.append(a + r)
        return F.nll_loss(self.out(torch.stack(seen, 1).mean(1)).log_softmax(-1), y)


class Patches(nn.Module):
    """A vision transformer of einsums."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.start = nn.Linear(12, width), nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.place, self.norm = nn.Parameter(torch.randn(1, 5, width) * 0.1), nn.LayerNorm(width)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 3)
        self.scale = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, image: Tensor, y: Tensor) -> Tensor:
        batch, _, rows, columns = image.shape
        cut = image.reshape(batch, 3, rows // 2, 2, columns // 2, 2).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x = torch.cat([self.start.expand(batch, -1, -1), self.embed(cut)], 1) + self.place
        q, k, v = self.qkv(self.norm(x)).view(batch, 5, 3, self.heads, -1).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", F.normalize(q, dim=-1), F.normalize(k, dim=-1)) * self.scale
        x = x + torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
        return F.cross_entropy(self.head(x[:, 0]), y, label_smoothing=0.1)


class SharedHeads(nn.Module):
    """Attention as language models write it: one head of keys for all, an empty cache, nothing left unrotated."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.query, self.keys, self.values = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.scores = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        x = self.words(tokens)
        query = self.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
        keys = torch.cat([self.keys(x)[..., :4].sin(), self.keys(x)[..., 4:]], -1)[:, None]
        keys, values = torch.cat([torch.tensor([]), keys], -2), self.values(x)[:, None]
        seen = nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
        return nn.functional.cross_entropy(self.scores(seen.transpose(1, 2).flatten(2).mean(1)), y)


class Discriminator(nn.Module):
    """Weights of norm one, found by a power iteration without gradients that writes to buffers, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(nn.Conv2d(3, 4, 4, 2, 1))
        self.norm, self.drop = nn.InstanceNorm2d(4, affine=True), nn.Dropout2d(0.25)
        self.last = nn.utils.spectral_norm(nn.Linear(16, 1))

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        first, second = (
            self.last(self.drop(self.norm(F.leaky_relu(self.first(x), 0.2))).flatten(1)) for x in (real, fake)
        )
        return F.relu(1 - first).mean() + F.relu(1 + second).mean()


class Weighted(nn.Module):
    """Weights as a direction and a length, a gated unit, dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Conv1d(3, 6, 3, padding=2, dilation=2))
        self.last = parametrizations.weight_norm(nn.Linear(3, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.smooth_l1_loss(self.last(F.glu(self.first(x), 1).mean(-1)), y)


class Counting(nn.Module):
    """Masks, and buffers that are written in place: in a chain, in part, without gradients, and used afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.out = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)
        for name, value in (("mean", torch.zeros(6)), ("queue", torch.zeros(3, 6)), ("seen", torch.zeros(3))):
            self.register_buffer(name, value)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        there = (tokens != 0).unsqueeze(-1)
        h = self.layer(self.words(tokens))
        h = torch.where(there, h, h.new_zeros(())).sum(1) / there.sum(1).clamp(min=1)
        self.steps += 1
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        with torch.no_grad():
            self.queue[1] = h.sum(0)
            self.seen.add_(F.one_hot(y, 3).sum(0))
            shift = 2 * h
        scores = self.out(self.norm(h - self.mean + shift)) + self.queue.mean()
        return F.cross_entropy(scores.masked_fill(scores < -5, 0.0), y)


class Averaged(nn.Module):
    """A buffer written twice in a chain, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return (h - self.mean).square().sum()


class Drawing(nn.Module):
    """Random numbers of every kind that a plan may cut."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 8), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        mean, width = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * width).exp()  # a variational autoencoder
        z = z * (torch.rand(x.shape[0], 1, dtype=x.dtype) < 0.8) + torch.rand_like(z)
        z = z + torch.normal(mean.detach(), 0.1) * x.new_empty(x.shape[0], 1).bernoulli_(0.7)
        gumbels = -torch.empty_like(z).exponential_().log()
        z = (z + gumbels).softmax(-1) + torch.bernoulli(z.detach().sigmoid()) + z.new_empty(4).uniform_(-1, 2)
        return F.mse_loss(self.decode(F.alpha_dropout(z, 0.2, self.training)), x) + torch.randint_like(z, 3).mean()


def numbers(*shape: int) -> Draw:
    return lambda count, chance: torch.randn(count, *shape, generator=chance)


def labels(classes: int, *shape: int) -> Draw:
    return lambda count, chance: torch.randint(classes, (count, *shape), generator=chance)


def everyday(make: Callable[[], nn.Module], **inputs: Draw) -> Imported:
    return Imported(make, lambda count, chance: {key: draw(count, chance) for key, draw in inputs.items()})


MODULES = {
    "unet": everyday(UNet, x=numbers(3, 4, 4), mask=labels(2, 4, 4)),
    "mixture": everyday(Mixture, x=numbers(5), y=labels(3)),
    "unrolled": everyday(Unrolled, x=numbers(3, 4), y=labels(3)),
    "patches": everyday(Patches, image=numbers(3, 4, 4), y=labels(3)),
    "shared heads": everyday(SharedHeads, tokens=labels(11, 5), y=labels(3)),
    "discriminator": everyday(Discriminator, real=numbers(3, 4, 4), fake=numbers(3, 4, 4)),
    "weighted": everyday(Weighted, x=numbers(3, 6), y=numbers(4)),
    "counting": everyday(Counting, tokens=labels(11, 5), y=labels(3)),
    "averaged": everyday(Averaged, x=numbers(4)),
    "drawing": everyday(Drawing, x=numbers(5)),
}
