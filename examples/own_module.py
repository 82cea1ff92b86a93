"""An unmodified module of torch, trained by one process, by two, or by two hosts: the first program to copy.

    python examples/own_module.py
    maniple run --nodes 2 examples/own_module.py             # two processes of this host
    maniple run --hosts alpha,beta examples/own_module.py    # two hosts that ssh reaches

Every rank runs this file and is given the same batches. Which rank computes what part of them is the plan's word.
"""

from __future__ import annotations

import torch
from torch import nn

import maniple as mp

BATCH = 64
FEATURES, CLASSES = 20, 5


class Net(nn.Module):
    """A module as any other: it knows nothing of Maniple."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(FEATURES, 64), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the logits of a batch."""
        return self.out(torch.relu(self.hidden(x)))


def network(batch: int = BATCH) -> mp.Graph:
    """Import the module with its loss. Of the examples only shapes and types count."""
    torch.manual_seed(0)  # the module's values are where training begins, so they must be the same on all ranks
    examples, targets = (torch.zeros(batch, FEATURES),), (torch.zeros(batch, dtype=torch.int64),)
    return mp.from_torch(Net(), examples, loss=nn.functional.cross_entropy, targets=targets)


def samples(count: int = 2048) -> dict[str, torch.Tensor]:
    """Draw a data set: a column for each input of the graph, by its name."""
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(count, FEATURES, generator=drawn)
    return {"x": x, "target": (x @ torch.randn(FEATURES, CLASSES, generator=drawn)).argmax(1)}


def main() -> None:
    """Train for a few epochs, and give the weights back to the module."""
    graph = network()
    plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    print(plan.explain("hidden"))
    loader = mp.data.Loader(samples(), batch=BATCH, seed=0)
    with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW(lr=1e-2)) as trainer:
        for epoch in range(5):
            losses = list(trainer.run(loader))  # for loss in losses: a mean over each batch, the same on every rank
            print(f"epoch {epoch}: loss {losses[-1]:.4f}")
        moved = trainer.bytes()
        weights = trainer.state_dict()
    print(f"bytes in a step: {moved['predicted']:,} predicted, {moved['measured']:,} measured")
    module = Net()
    module.load_state_dict(weights)
    right = (module(samples()["x"]).argmax(1) == samples()["target"]).float().mean().item()
    print(f"torch alone, with these weights: {100 * right:.1f} % right")


if __name__ == "__main__":
    main()
