"""A chain of stages, each a linear layer and a relu, and the same in plain torch with lists of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from listed_weights import Make, train

import maniple as mp
from maniple.operators.graph.node import Node
from maniple.operators.plan.plan import OperatorPlan, WeightPlan
from maniple.operators.training.optimizer import AbstractOptimizer

BATCH, WIDTH = 4, 5
OPTIMIZERS: dict[str, tuple[AbstractOptimizer, Make]] = {
    "descent": (mp.SGD(lr=0.1), lambda found: torch.optim.SGD(found, lr=0.1)),
    "momentum": (mp.SGD(lr=0.05, momentum=0.9), lambda found: torch.optim.SGD(found, lr=0.05, momentum=0.9)),
    "adam": (mp.optim.Adam(lr=0.01), lambda found: torch.optim.Adam(found, lr=0.01)),
}
Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def chain(stages: int, batch: int = BATCH, width: int = WIDTH) -> mp.Graph:
    """The graph."""
    g = mp.Graph("chain")
    h, labels = g.input("x", (batch, width), "float64"), g.input("y", (batch,), "int64")
    for _ in range(stages):
        h = g.relu(g.linear(h, width))
    g.output("scores", h)
    g.loss(g.cross_entropy(h, labels))
    return g


def flowing(
    graph: mp.Graph, stages: int, rule: str, split: int = 1, parts: int = 0, order: str = "asynchronous"
) -> mp.Plan:
    """A plan of it without a flush, each stage on processors of its own, its samples split over them.

    Under 2BW a mini-batch is cut into some parts, by default as many as there are stages.
    """
    names = [node.name for node in graph.nodes]
    cut = [names[2 * stage : 2 * stage + 2] for stage in range(stages)]
    cut[-1].append(names[-1])
    return staged(graph, cut, rule, parts=parts, width=split, order=order)


def samples(graph: mp.Graph, node: Node) -> str:
    """The factor of an operator that counts samples, if it has one."""
    factors = graph.bound(node).factors
    return next((f.name for f in factors if f.role == "sample" and f.extent == graph.batch), "")


def staged(
    graph: mp.Graph,
    stages: Sequence[Sequence[str]],
    rule: str,
    *,
    parts: int = 0,
    width: int = 1,
    factor: Callable[[mp.Graph, Node], str] = samples,
    order: str = "asynchronous",
) -> mp.Plan:
    """A plan without a flush, each stage on so many processors, over which an operator is split that has the factor."""
    stage_of = {name: stage for stage, own in enumerate(stages) for name in own}
    operators, homes = [], {}
    for node in graph.nodes:
        first, along = stage_of[node.name] * width, factor(graph, node)
        degrees = tuple((f.name, width if f.name == along else 1) for f in graph.bound(node).factors)
        operators.append((node.name, OperatorPlan(degrees, tuple(range(first, first + (width if along else 1))))))
        homes.update({o: first for o in node.operands if o is not None and graph.tensors[o].lasting})
    weights = tuple((t.name, WeightPlan((1,) * len(t.shape), (homes[t.id],))) for t in graph.lasting)
    plan = mp.Plan(graph.fingerprint(), "by hand", tuple(operators), weights)
    count = (parts or len(stages)) if rule == "2bw" else 1
    plan = plan.with_pipeline(stages, order=order, micro_batches=count)
    return replace(plan, semantics=(("weights", rule),))


def batches(count: int, size: int = BATCH, width: int = WIDTH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels."""
    chance = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(size, width, generator=chance, dtype=torch.float64),
            torch.randint(width, (size,), generator=chance),
        )
        for _ in range(count)
    ]


def pairs(parameters: dict[str, torch.Tensor]) -> Pairs:
    """Weight and bias of each stage."""
    found = list(parameters.values())
    return list(zip(found[::2], found[1::2], strict=True))


def listed(
    first: dict[str, torch.Tensor], given: Sequence[tuple[torch.Tensor, torch.Tensor]], rule: str, optimizer: str
) -> tuple[list[float], list[Pairs]]:
    """What plain torch makes of it: the losses, and by stage all weights that it had."""
    return train(pairs(first), list(given), rule, OPTIMIZERS[optimizer][1])


def apart(found: Pairs, wanted: Pairs) -> float:
    """How far weights are apart, at most."""
    return max(
        float((one - other).abs().max())
        for pair, like in zip(found, wanted, strict=True)
        for one, other in zip(pair, like, strict=True)
    )
