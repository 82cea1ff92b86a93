"""Rectified batch norms of an import: what becomes one operator and what does not; law 1; rows, of simulations too."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm
from maniple.process.error import RequestError
from maniple.strategies.simulation.simulation import Simulation

SGD = mp.SGD(lr=0.1, momentum=0.9)


class Residual(nn.Module):
    """A block whose shortcut is a convolution where channels change."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after, affine=False)])
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(inside + self.shortcut(x))


class Network(nn.Module):
    """Two blocks, and a batch norm whose value is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(2, 4), Residual(4, 4))
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        normal = self.norm(self.blocks(x))
        return nn.functional.cross_entropy(self.head((normal + torch.relu(normal)).mean((2, 3))), y)


def module() -> Network:
    torch.manual_seed(0)
    return Network().double()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(4, 2, 5, 3, dtype=torch.float64, generator=chance), torch.randint(3, (4,), generator=chance)


@cache
def graph(*, fuse: bool = True) -> Graph:
    return mp.from_torch(module(), batch(0), fuse=fuse)


def rectified(found: Graph) -> list[str]:
    return [node.name for node in found.nodes if isinstance(node.operator, RectifiedBatchNorm)]


def test_a_batch_norm_takes_what_is_added_and_the_relu_behind_it() -> None:
    """Of the sum of two batch norms the later one takes it; one that somebody else reads takes nothing."""
    assert rectified(graph()) == [
        "blocks.0.norms.0+blocks.0.relu",
        "blocks.0.shortcut.1+blocks.0.add+blocks.0.relu_1",
        "blocks.1.norms.0+blocks.1.relu",
        "blocks.1.norms.1+blocks.1.add+blocks.1.relu_1",
    ]
    assert not rectified(graph(fuse=False))
    assert [t.name for t in graph().lasting] == [t.name for t in graph(fuse=False).lasting]


def test_a_graph_file_has_them() -> None:
    from maniple.operators.graph import graph_file

    read = graph_file.from_json(graph_file.to_json(graph()), Graph)
    assert read.fingerprint() == graph().fingerprint()
    written = graph_file.to_json(graph())
    node = next(each for each in written["nodes"] if each["operator"] == "rectified_batch_norm")  # type: ignore[attr-defined]
    node["attributes"]["norm"] = {"operator": "relu", "attributes": {}}
    with pytest.raises(RequestError, match="batch_norm"):
        graph_file.from_json(written, Graph)


@pytest.mark.parametrize(("strategy", "seed"), [("data_parallel", 0), *(("random", seed) for seed in range(5))])
def test_a_plan_changes_no_result(strategy: str, seed: int) -> None:
    """Law 1, in float64: losses, parameters and running statistics are torch's."""
    plan = mp.search(graph(), mp.Machine.cpu(3), strategy=strategy, seed=seed)
    reference = module()
    descent = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    with mp.Trainer(graph(), plan, optimizer=SGD) as trainer:
        for step in range(3):
            loss = reference(*batch(step))
            descent.zero_grad()
            loss.backward()
            descent.step()
            assert trainer.step(*batch(step)) == pytest.approx(loss.item(), rel=0, abs=1e-10)
        found = trainer.state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("processors", [1, 2])
def test_rows_are_fewer_and_those_that_are_simulated(processors: int) -> None:
    """By eleven a processor: two sums and four ReLUs forward, these and the sum whose gradient is copied backward."""
    machine, counts = mp.Machine.cpu(processors), []
    for fuse in (False, True):
        made = graph(fuse=fuse)
        plan = mp.search(made, machine, strategy="data_parallel")
        simulated = Simulation(made, machine, plan, optimizer=SGD)
        with mp.Trainer(made, plan, optimizer=SGD) as trainer:
            assert len(trainer.schedule) == len(simulated.ledger.sequence)
            counts.append(len(trainer.schedule))
    assert counts[0] - counts[1] == 11 * processors
