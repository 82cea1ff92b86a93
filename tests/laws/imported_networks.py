"""Modules to train twice: imported and under a plan, and by plain torch as the judge."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from injected_masks import masks_of
from torch import Tensor, nn

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.torch_import.from_torch import from_torch
from maniple.runtime.control.world import World

STEPS = 3
SEED = 7
BATCH = 4


@dataclass(frozen=True)
class Imported:
    """A module with batches.

    Args:
        make: builds the module, the same one each time.
        batch: gives a batch of as many samples, drawn by a generator.
        loss: of the module's output and the targets, where forward gives none.
        targets: how many of the batch's tensors, from its end, are the loss's.
        lr: of the steps.
        tolerance: of losses and state, against torch.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], dict[str, Tensor]]
    loss: Callable[..., Tensor] | None = None
    targets: int = 0
    lr: float = 0.05
    tolerance: float = 1e-8

    def module(self) -> nn.Module:
        """The module in float64, for which sums in another order differ by less."""
        torch.manual_seed(0)
        return self.make().double()

    def batches(self, count: int = STEPS, samples: int = BATCH) -> list[dict[str, Tensor]]:
        """Batches in float64."""
        chance = torch.Generator().manual_seed(1)
        found = [self.batch(samples, chance) for _ in range(count)]
        return [{k: v.double() if v.is_floating_point() else v for k, v in batch.items()} for batch in found]

    def graph(self, module: nn.Module | None = None) -> Graph:
        """The imported module."""
        batch = self.batches(1)[0]
        cut = len(batch) - self.targets
        inputs, targets = dict([*batch.items()][:cut]), dict([*batch.items()][cut:])
        made = self.module() if module is None else module
        return from_torch(made, inputs, loss=self.loss, targets=targets if self.targets else None)

    def judged(self, graph: Graph, samples: int = BATCH) -> tuple[list[float], dict[str, Tensor]]:
        """Losses and state after the steps, by plain torch with the masks of the graph's dropout."""
        module = self.module()
        descent = torch.optim.SGD(module.parameters(), lr=self.lr, momentum=0.9)
        losses = []
        for step, batch in enumerate(self.batches(samples=samples)):
            values = list(batch.values())
            cut = len(values) - self.targets
            with masks_of(graph, SEED, step):
                output = module(**dict([*batch.items()][:cut]))
            loss = output if self.loss is None else self.loss(output, *values[cut:])
            loss = getattr(loss, "loss", loss)
            descent.zero_grad()
            loss.backward()
            descent.step()
            losses.append(loss.item())
        return losses, copy.deepcopy(module.state_dict())

    def trained(
        self, graph: Graph, plan: mp.Plan, world: World | None = None, samples: int = BATCH
    ) -> tuple[list[float], dict[str, Tensor]]:
        """Losses and state after the steps, under a plan."""
        optimizer = mp.SGD(lr=self.lr, momentum=0.9)
        with mp.Trainer(graph, plan, optimizer=optimizer, seed=SEED, world=world) as trainer:
            losses = [trainer.step(**batch) for batch in self.batches(samples=samples)]
            return losses, trainer.state_dict()
