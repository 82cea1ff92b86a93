"""Mixed precision on devices, where kernels compute on halves themselves: losses and gradients beside float64.

The devices are strict null devices, which also say what a body must not do: stop the host, or take what lies there.
"""

from __future__ import annotations

import copy

import pytest
import torch
from rounding_bound import bounded_step
from torch import nn
from torch.nn import functional as F

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.devices.null_device import StrictNullDevice
from maniple.runtime.devices.registry import DEVICES
from maniple.runtime.execution.rank import RankRuntime
from maniple.testing import local_worlds, run_on_worlds

DEVICES.register("strict-null", StrictNullDevice)

UNITS = {"bf16": 2.0**-8, "fp16": 2.0**-11}
DEVIATIONS = 4
LR = 0.5


class Decoder(nn.Module):
    """Causal attention, an addition of what is float32 and what is not, GELU, a head with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 11)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(F.gelu(h)).flatten(0, 1), y.flatten())


class Pictures(nn.Module):
    """Convolutions of floats and of halves, norms of channels, pools, a product of halves element by element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2)
        self.batch, self.group = nn.BatchNorm2d(6), nn.GroupNorm(2, 6)
        self.gate, self.head = nn.Conv2d(6, 6, 1, bias=False), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.batch(self.first(x))), 2)
        h = self.second(h) + h[:, :, 1:, 1:][:, :, :3, :3]
        h = self.group(h) * torch.sigmoid(self.gate(h))
        return F.cross_entropy(self.head(h.mean((2, 3))), y)


class Mixer(nn.Module):
    """Products of activations, and what autocast does in float32: softmax, logarithms, powers."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = self.left(x), self.right(x)
        weights = torch.softmax(a @ b.transpose(1, 2) * 0.5, -1)
        mixed = torch.einsum("bst,btd->bsd", weights, F.silu(b))
        return ((mixed * a - y).pow(2).mean() + 1).log()


class Sequence(nn.Module):
    """A recurrent layer, whose products are of halves: its first step has no state before it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.lstm(x)[0][:, -1]), y)


class Layers(nn.Module):
    """Recurrent layers behind each other, in both directions, from states that come of products."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.head = nn.Linear(5, 6), nn.Linear(12, 3)
        self.lstm = nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.stack([self.begin(x[:, step]) for step in (0, 1, 2, 0)])
        found, (_, cell) = self.lstm(x, (hidden, torch.tanh(hidden)))
        return F.cross_entropy(self.head(found[:, 1]) + cell[3][:, :3], y)


class Resets(nn.Module):
    """The same of GRUs, of which the first layer's state comes of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.head = nn.Linear(5, 6), nn.Linear(12, 3)
        self.gru = nn.GRU(5, 6, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found, last = self.gru(x, torch.stack([self.begin(x[:, step]) for step in (0, 1, 2, 0)]))
        return F.cross_entropy(self.head(found[:, 1]) + last[3][:, :3], y)


def batch_of(kind: type[nn.Module]) -> tuple[torch.Tensor, ...]:
    if kind is Decoder:
        return torch.randint(11, (4, 5)), torch.randint(11, (4, 5))
    if kind is Pictures:
        return torch.randn(4, 3, 8, 8), torch.randint(4, (4,))
    if kind is Mixer:
        return torch.randn(4, 3, 6), torch.randn(4, 3, 5)
    return torch.randn(4, 3, 5), torch.randint(3, (4,))


def step_of(
    module: nn.Module, batch: tuple[torch.Tensor, ...], precision: str, device: str, ranks: int = 1
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of a step, and the gradients, as far as float32 parameters tell them."""
    graph = mp.from_torch(copy.deepcopy(module), batch)
    plan = mp.search(
        graph, mp.Machine.cpu(1, ranks=ranks), strategy="data_parallel", semantics={"precision": precision}
    )

    def program(world: World) -> tuple[float, dict[str, torch.Tensor]]:
        scale = mp.optim.LossScale(init_scale=16.0)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(LR, loss_scale=scale), world=world) as trainer:
            before = trainer.parameters()
            loss = trainer.step(*batch)
            after = trainer.parameters()
            return loss, {name: (value - after[name]) / LR for name, value in before.items()}

    worlds = local_worlds(ranks, device=device)
    try:
        return run_on_worlds(worlds, program)[0]
    finally:
        for world in worlds:
            RankRuntime.of(world).close()


@pytest.mark.parametrize("kind", [Decoder, Pictures, Mixer, Sequence, Layers, Resets])
@pytest.mark.parametrize("precision", UNITS)
def test_a_step_is_as_near_to_float64_as_its_roundings_allow(kind: type[nn.Module], precision: str) -> None:
    """On devices and on a CPU: the loss, and its gradients along random directions of the parameters."""
    torch.manual_seed(3)
    module, batch = kind(), batch_of(kind)
    chance = torch.Generator().manual_seed(5)
    shapes = {name: value.shape for name, value in module.named_parameters()}
    directions = [{name: torch.randn(shape, generator=chance) for name, shape in shapes.items()} for _ in range(3)]
    loss, slopes = bounded_step(copy.deepcopy(module), batch, directions)
    unit = UNITS[precision]
    for device, ranks in (("strict-null", 1), ("null", 2), ("cpu", 1)):
        found, gradients = step_of(module, batch, precision, device, ranks)
        assert abs(found - loss.value) <= DEVIATIONS * unit * loss.deviation, (device, ranks)
        for slope, direction in zip(slopes, directions, strict=True):
            along = sum(float((gradients[name] * value).sum()) for name, value in direction.items())
            assert abs(along - slope.value) <= DEVIATIONS * unit * slope.deviation, (device, ranks)
