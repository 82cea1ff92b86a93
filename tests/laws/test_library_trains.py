"""Law 1 for the library: networks of its operators train under any plan as torch's modules do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.operators.library.randomness.dropout_mask import drawn_factors
from maniple.operators.operator.operator import Initial
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.plan.plan import OperatorPlan
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

Values = Mapping[str, torch.Tensor]
Trained = tuple[list[float], dict[str, torch.Tensor], torch.Tensor]
Batch = dict[str, torch.Tensor]

TOLERANCE = 1e-10  # of float64, after three steps; |a - b| <= TOLERANCE * max(1, max|b|)
STEPS = 3
SEED = 5
BATCH = 5
SGD = mp.SGD(lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Network:
    """A network in both forms.

    Args:
        build: its graph, whose output is ``out``.
        forward: the output and the loss, from the state, a batch and the step (None: evaluation).
        batch: draws a batch of some samples.
    """

    build: Callable[[], mp.Graph]
    forward: Callable[[Values, Batch, int | None], tuple[torch.Tensor, torch.Tensor]]
    batch: Callable[[int, torch.Generator], Batch]

    def batches(self) -> list[Batch]:
        chance = torch.Generator().manual_seed(1)
        return [self.batch(size, chance) for size in (BATCH, BATCH, BATCH - 2)]


def mask(operator: str, p: float, step: int | None, shape: tuple[int, ...]) -> torch.Tensor | float:
    """What a dropout multiplies by: the masks that torch is given to be comparable."""
    if step is None:
        return 1.0
    stream = RandomStream.of(operator, torch.tensor([SEED, step]))
    return drawn_factors(stream, p, shape, Rect.of_shape(shape), torch.float64)


# -- a decoder with tied embedding, grouped causal attention and ignored labels ---------------------------------------

WORDS, STEPS_IN, WIDTH = 11, 4, 8


def decoder() -> mp.Graph:
    g = mp.Graph("decoder")
    x, y = g.input("x", (BATCH, STEPS_IN), "int64"), g.input("y", (BATCH, STEPS_IN), "int64")
    table = g.parameter("table", (WORDS, WIDTH), "float64", Initial("normal", 0.5))
    h = g.dropout(g.embedding(x, WORDS, WIDTH, padding_idx=3, weight=table), 0.3)
    normal = g.rms_norm(h, WIDTH)
    parts = []
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        part = g.linear(normal, 2 * heads, bias=False, name=name)
        parts.append(g.call(lambda t, heads=heads: t.view(*t.shape[:2], heads, 2).transpose(1, 2).clone(), part)[0])
    attended = g.scaled_dot_product_attention(*parts, dropout_p=0.2, is_causal=True, enable_gqa=True)
    (joined,) = g.call(lambda t: t.transpose(1, 2).flatten(2), attended)
    h = g.add(h, g.linear(joined, WIDTH, name="o"))
    out = g.linear(h, WORDS, bias=False, weight=table)
    (across,) = g.call(lambda t: t.transpose(1, 2).clone(), out)
    g.loss(g.cross_entropy(across, y, ignore_index=2, label_smoothing=0.1))
    g.output("out", out)
    return g


def decoder_by_torch(p: Values, batch: Batch, step: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    x = batch["x"]
    n = x.shape[0]
    h = F.embedding(x, p["table"], 3) * mask("dropout", 0.3, step, (n, STEPS_IN, WIDTH))
    normal = F.rms_norm(h, (WIDTH,), p["rms_norm.weight"])
    q, k, v = (
        F.linear(normal, p[f"{name}.weight"]).view(n, STEPS_IN, heads, 2).transpose(1, 2)
        for name, heads in (("q", 4), ("k", 2), ("v", 2))
    )
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = (q @ k.transpose(2, 3) / 2**0.5).masked_fill(~torch.ones(4, 4, dtype=torch.bool).tril(), float("-inf"))
    kept = mask("scaled_dot_product_attention", 0.2, step, (n, 4, STEPS_IN, STEPS_IN))
    attended = (scores.softmax(-1) * kept) @ v
    h = h + F.linear(attended.transpose(1, 2).flatten(2), p["o.weight"], p["o.bias"])
    out = F.linear(h, p["table"])
    return out, F.cross_entropy(out.transpose(1, 2), batch["y"], ignore_index=2, label_smoothing=0.1)


def words(size: int, chance: torch.Generator) -> Batch:
    x, y = (torch.randint(WORDS, (size, STEPS_IN), generator=chance) for _ in range(2))
    x[0, 1], y[0, 0] = 3, 2
    return {"x": x, "y": y}


# -- attention with split keys, masks, and a divergence ---------------------------------------------------------------


def encoder() -> mp.Graph:
    g = mp.Graph("encoder")
    x = g.input("x", (BATCH, 2, 6, 3), "float64")
    seen, target = g.input("seen", (BATCH, 1, 1, 6), "bool"), g.input("target", (BATCH, 2, 6, 3), "float64")
    q, k, v = (g.linear(x, width, name=name) for name, width in (("q", 4), ("k", 4), ("v", 3)))
    h = g.scaled_dot_product_attention(q, k, v, seen, scale=0.7)
    h = g.scaled_dot_product_attention(g.linear(h, 4, name="q2"), k, v, is_causal=True)
    out = g.log_softmax(h, -1)
    g.loss(g.kl_div(out, target, reduction="batchmean"))
    g.output("out", out)
    return g


def encoder_by_torch(p: Values, batch: Batch, step: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    del step
    q, k, v = (F.linear(batch["x"], p[f"{name}.weight"], p[f"{name}.bias"]) for name in "qkv")
    h = F.scaled_dot_product_attention(q, k, v, batch["seen"], scale=0.7)
    h = F.scaled_dot_product_attention(F.linear(h, p["q2.weight"], p["q2.bias"]), k, v, is_causal=True)
    out = h.log_softmax(-1)
    return out, F.kl_div(out, batch["target"], reduction="batchmean")


def masked(size: int, chance: torch.Generator) -> Batch:
    x = torch.randn(size, 2, 6, 3, generator=chance, dtype=torch.float64)
    target = torch.rand(size, 2, 6, 3, generator=chance, dtype=torch.float64).softmax(-1)
    seen = torch.rand(size, 1, 1, 6, generator=chance) > 0.5
    seen[..., 2] = True
    seen[0, ..., :2] = seen[0, ..., 3:] = False  # split keys: some tile sees nothing
    return {"x": x, "seen": seen, "target": target}


# -- images: grouped, three-dimensional and transposed convolutions, every pool, group norm ---------------------------


def images() -> mp.Graph:
    g = mp.Graph("images")
    x, y = g.input("x", (BATCH, 4, 9, 7), "float64"), g.input("y", (BATCH, 3), "float64")
    h = g.relu(g.conv2d(x, 6, 3, padding="same", groups=2))
    h = g.group_norm(h, 3)
    h = g.avg_pool2d(h, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)  # 5, 4
    h = g.conv_transpose2d(h, 4, 3, stride=2, padding=1, output_padding=1)  # 10, 8
    h = g.max_pool2d(h, 2, stride=2, dilation=2, ceil_mode=True)  # 5, 3... by torch
    h = g.adaptive_avg_pool(h, (3, 2))
    h = g.reshape(h, (BATCH, 2, 2, 3, 2))
    h = g.conv3d(h, 3, (1, 2, 2), bias=False)
    h = g.reshape(h, (BATCH, 3, 4))
    h = g.conv_transpose1d(g.conv1d(h, 2, 2, groups=1), 2, 3, groups=2)
    h = g.avg_pool1d(h, 5)
    out = g.linear(g.dropout(g.flatten(h), 0.5), 3)
    g.loss(g.binary_cross_entropy_with_logits(out, y))
    g.output("out", out)
    return g


def images_by_torch(p: Values, batch: Batch, step: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    h = F.conv2d(batch["x"], p["conv2d.weight"], p["conv2d.bias"], padding=1, groups=2).relu()
    h = F.group_norm(h, 3, p["group_norm.weight"], p["group_norm.bias"])
    h = F.avg_pool2d(h, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    weight, bias = p["conv_transpose2d.weight"], p["conv_transpose2d.bias"]
    h = F.conv_transpose2d(h, weight, bias, 2, 1, 1)
    h = F.max_pool2d(h, 2, 2, dilation=2, ceil_mode=True)
    h = F.adaptive_avg_pool2d(h, (3, 2)).reshape(-1, 2, 2, 3, 2)
    h = F.conv3d(h, p["conv3d.weight"]).reshape(-1, 3, 4)
    h = F.conv1d(h, p["conv1d.weight"], p["conv1d.bias"])
    h = F.conv_transpose1d(h, p["conv_transpose1d.weight"], p["conv_transpose1d.bias"], groups=2)
    h = F.avg_pool1d(h, 5).flatten(1)
    h = h * mask("dropout", 0.5, step, tuple(h.shape))
    out = F.linear(h, p["linear.weight"], p["linear.bias"])
    return out, F.binary_cross_entropy_with_logits(out, batch["y"])


def pictures(size: int, chance: torch.Generator) -> Batch:
    x = torch.randn(size, 4, 9, 7, generator=chance, dtype=torch.float64)
    return {"x": x, "y": torch.rand(size, 3, generator=chance, dtype=torch.float64)}


# -- sequences: two layers in both directions with dropout between them, then cells -----------------------------------


def recurrent() -> mp.Graph:
    g = mp.Graph("recurrent")
    x, y = g.input("x", (BATCH, 3, 4), "float64"), g.input("y", (BATCH, 6), "float64")
    h, _, _ = g.lstm(x, 3, num_layers=2, batch_first=True, dropout=0.4, bidirectional=True)
    h, last = g.gru(h, 6, batch_first=True, bias=False)
    (state,) = g.call(lambda t: t[0].clone(), last)
    hidden, cell = g.lstm_cell(state, (state, state))
    (first,) = g.call(lambda t: t[:, 0].clone(), h)
    hidden, _ = g.lstm_cell(
        first,
        (hidden, cell),
        parameters=[g.handle(f"lstm_cell.{part}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")],
    )
    out = g.gru_cell(hidden, state)
    g.loss(g.huber_loss(out, y, delta=0.3))
    g.output("out", out)
    return g


def recurrent_by_torch(p: Values, batch: Batch, step: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    x = batch["x"]
    n = x.shape[0]
    for layer in (0, 1):
        names = [
            f"{part}_l{layer}{way}"
            for way in ("", "_reverse")
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        zeros = x.new_zeros(2, n, 3)
        x, _, _ = torch.lstm(x, (zeros, zeros), [p[f"lstm.{name}"] for name in names], True, 1, 0.0, False, True, True)
        if layer == 0 and step is not None:
            x = x * mask("lstm", 0.4, step, (2, n, 3, 6))[0]  # type: ignore[index]
    x, last = torch.gru(
        x, x.new_zeros(1, n, 6), [p["gru.weight_ih_l0"], p["gru.weight_hh_l0"]], False, 1, 0.0, False, False, True
    )
    state = last[0]
    weights = [p[f"lstm_cell.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    hidden, cell = torch.lstm_cell(state, (state, state), *weights)
    hidden, _ = torch.lstm_cell(x[:, 0], (hidden, cell), *weights)
    weights = [p[f"gru_cell.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    out = torch.gru_cell(hidden, state, *weights)
    return out, F.huber_loss(out, batch["y"], delta=0.3)


def series(size: int, chance: torch.Generator) -> Batch:
    x = torch.randn(size, 3, 4, generator=chance, dtype=torch.float64)
    return {"x": x, "y": torch.randn(size, 6, generator=chance, dtype=torch.float64)}


NETWORKS = {
    "decoder": Network(decoder, decoder_by_torch, words),
    "encoder": Network(encoder, encoder_by_torch, masked),
    "images": Network(images, images_by_torch, pictures),
    "recurrent": Network(recurrent, recurrent_by_torch, series),
}


def judge(network: Network) -> Trained:
    """Losses, state and output by torch."""
    state = network.build().state_dict(SEED)
    descent = torch.optim.SGD([value.requires_grad_() for value in state.values()], lr=0.05, momentum=0.9)
    losses = []
    for step, batch in enumerate(network.batches()):
        descent.zero_grad()
        _, loss = network.forward(state, batch, step)
        loss.backward()
        descent.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, state, network.forward(state, network.batches()[0], None)[0]


def train(network: Network, world: World, plan: mp.Plan) -> Trained:
    with mp.Trainer(network.build(), plan, optimizer=SGD, seed=SEED, world=world) as trainer:
        losses = [trainer.step(**batch) for batch in network.batches()]
        found = trainer.bytes()
        assert found["predicted"] == found["measured"]
        return losses, trainer.state_dict(), trainer.evaluate(**network.batches()[0])["out"]


def check(network: Network, found: list[Trained]) -> None:
    losses, state, out = judge(network)
    assert len(set(losses)) == STEPS
    for mine, values, output in found:
        assert mine == pytest.approx(losses, rel=0, abs=TOLERANCE)
        assert list(values) == list(state)
        for key, value in state.items():
            assert torch.allclose(values[key], value, rtol=0, atol=TOLERANCE), key
        assert torch.allclose(output, out, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("world", [(1, 1), (2, 2), (3, 1)], ids=lambda w: f"{w[0]}x{w[1]}")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("strategy", ["data_parallel", "random"])
def test_networks_of_the_library_train_as_torch_does(strategy: str, name: str, world: tuple[int, int]) -> None:
    network = NETWORKS[name]

    def body(world: World) -> Trained:
        return train(network, world, mp.search(network.build(), host_machine(world), strategy=strategy, seed=3))

    check(network, run_on_ranks(world[0], body, processors=world[1]))


@pytest.mark.parametrize("name", ["encoder", "images"])
def test_every_exchanged_factor_in_two_parts_trains_as_torch_does(name: str) -> None:
    network = NETWORKS[name]

    def body(world: World) -> Trained:
        graph = network.build()
        plan = mp.search(graph, host_machine(world), strategy="data_parallel")
        operators = []
        for node in graph.nodes:
            factors = graph.bound(node).factors
            exchanged = [f.name for f in factors if f.name in node.operator.exchanges() and f.highest_degree > 1]
            degrees = tuple((f.name, 2 if f.name in exchanged[-1:] else 1) for f in factors)
            operators.append((node.name, OperatorPlan(degrees, (0, 1) if exchanged else (0,))))
        assert sum(len(config.processors) > 1 for _, config in operators) >= 1
        return train(network, world, replace(plan, operators=tuple(operators)))

    check(network, run_on_ranks(2, body))
