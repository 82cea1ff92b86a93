"""The loss of some steps in float32, bf16 and fp16, beside plain torch and torch.autocast on the same batches.

    python benchmarks/precision_loss.py [--steps 100] [--width 64]

Nothing is timed. Torch's autocast on a CPU has shorter lists of float32 than ours, and rounds gradients of weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import nn

import maniple as mp
from maniple.runtime.machine.world_machine import host_machine


def network(width: int, batch: int) -> mp.Graph:
    """Three layers with a norm."""
    graph = mp.Graph("precision")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    hidden = graph.layer_norm(graph.relu(graph.linear(x, width, name="l1")), width, name="norm")
    hidden = graph.relu(graph.linear(hidden, width, name="l2"))
    graph.loss(graph.cross_entropy(graph.linear(hidden, 10, name="l3"), y))
    return graph


class Network(nn.Module):
    """The same in torch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.l1, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.l2, self.l3 = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        found: torch.Tensor = self.l3(torch.relu(self.l2(self.norm(torch.relu(self.l1(x))))))
        return found


def batches(steps: int, width: int, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Points around ten centres."""
    chance = torch.Generator().manual_seed(0)
    centres = torch.randn(10, width, generator=chance)
    for _ in range(steps):
        y = torch.randint(10, (batch,), generator=chance)
        yield centres[y] + 2 * torch.randn(batch, width, generator=chance), y


def ours(precision: str, arguments: argparse.Namespace) -> list[float]:
    """The losses under a plan of a precision."""
    graph = network(arguments.width, arguments.batch)
    (world,) = mp.testing.local_worlds(1)
    plan = mp.search(graph, host_machine(world), semantics={"precision": precision})
    with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW(lr=1e-3), world=world) as trainer:
        return list(trainer.run(batches(arguments.steps, arguments.width, arguments.batch)))


def theirs(dtype: torch.dtype | None, arguments: argparse.Namespace) -> list[float]:
    """The losses of plain torch, under autocast where a dtype is given."""
    model = Network(arguments.width)
    model.load_state_dict(network(arguments.width, arguments.batch).state_dict(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    losses = []
    for x, y in batches(arguments.steps, arguments.width, arguments.batch):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    columns = {
        "float32": ours("float32", arguments),
        "torch": theirs(None, arguments),
        "bf16": ours("bf16", arguments),
        "autocast bf16": theirs(torch.bfloat16, arguments),
        "fp16": ours("fp16", arguments),
        "autocast fp16": theirs(torch.float16, arguments),
    }
    print("step  " + "  ".join(f"{name:>13}" for name in columns))
    for step in range(0, arguments.steps, max(1, arguments.steps // 10)):
        print(f"{step:4}  " + "  ".join(f"{losses[step]:13.6f}" for losses in columns.values()))
    print("last  " + "  ".join(f"{losses[-1]:13.6f}" for losses in columns.values()))
    for name, other in (("bf16", "autocast bf16"), ("fp16", "autocast fp16"), ("float32", "torch")):
        most = max(abs(a - b) for a, b in zip(columns[name], columns[other], strict=True))
        print(f"most that {name} and {other} differ by in a step: {most:.2e}")


if __name__ == "__main__":
    main()
