"""Drawn networks with drawn pipelines: skips, tied weights, several losses, stages beside each other, uneven parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch

import maniple as mp
from maniple.operators.graph.node import Node
from maniple.operators.operator.operator import Initial
from maniple.operators.plan.plan import OperatorPlan, WeightPlan
from maniple.runtime.control.world import World

PROCESSORS = 4
WORDS, WIDTH = 7, 6
ORDERS = ("sequential", "gpipe", "1f1b", "early_backward")
LAYERS = ("linear", "relu", "dropout", "layer_norm", "skip", "tied", "softmax")


@dataclass(frozen=True)
class Drawn:
    """A network, and a plan of it as a pipeline.

    Args:
        graph: the network.
        plan: with a pipeline.
        said: what was drawn, for messages.
    """

    graph: mp.Graph
    plan: mp.Plan
    said: str

    @property
    def whole(self) -> mp.Plan:
        """The plan without the pipeline, that keeps all."""
        operators = tuple((name, replace(operator, recompute=False)) for name, operator in self.plan.operators)
        weights = tuple((name, replace(home, copy="kept", sums="use")) for name, home in self.plan.weights)
        return replace(self.plan, operators=operators, weights=weights, stages=(), pipeline=None)


def drawn(chance: Random, *, orders: tuple[str, ...] = ORDERS) -> Drawn:
    """A network and a pipeline for it.

    Args:
        chance: draws both.
        orders: to choose from.
    """
    graph = network(chance)
    stages, groups = staged(graph, chance, chance.randint(1, 4))
    micro_batches = chance.choice([count for count in (1, 2, 3, 5, 8) if count <= graph.batch])
    losses = {node.name for node in graph.nodes if not graph.tensors[node.results[0]].shape}
    operators = []
    for node in graph.nodes:
        group = groups[next(number for number, stage in enumerate(stages) if node.name in stage)]
        config = placed(graph, node, group, chance)
        again = chance.random() < 0.3 and (node.name not in losses or micro_batches == 1)
        operators.append((node.name, replace(config, recompute=again)))
    plan = mp.Plan(graph.fingerprint(), "drawn", tuple(operators), ())
    # Of two losses backward reads what all micro-batches add up to.
    reads_all = any(node.operator.name == "opaque" for node in graph.nodes)
    order = "gpipe" if reads_all and micro_batches > 1 else chance.choice(orders)
    plan = plan.with_pipeline(stages, order=order, micro_batches=micro_batches)
    plan = replace(plan, weights=tuple((tensor.name, living(tensor.shape, chance)) for tensor in graph.lasting))
    again = [name for name, operator in operators if operator.recompute]
    said = f"{order}, {micro_batches} of {graph.batch}, stages {stages} on {groups}, again {again}\n{graph}"
    return Drawn(graph, plan, f"{said}\n{plan.weights}")


def living(shape: tuple[int, ...], chance: Random) -> WeightPlan:
    """A home in one block or in two, whose working copies live for some time, and where gradients add up anywhere."""
    blocks = min(shape[0], chance.choice((1, 2)))
    degrees = (blocks, *(1 for _ in shape[1:]))
    home = WeightPlan(degrees, tuple(chance.sample(range(PROCESSORS), blocks)))
    copy, sums = chance.choice(("kept", "kept", "step", "pass")), chance.choice(("use", "home"))
    return replace(home, copy=copy, sums=sums)


def both(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """What two losses come to: an operator without samples, which runs once for all micro-batches."""
    return one + 0.5 * other


def network(chance: Random) -> mp.Graph:
    """An embedding whose table is tied to a layer, layers that read any that came before, and one loss or two."""
    g = mp.Graph("drawn")
    batch = chance.randint(2, 9)
    words, labels = g.input("words", (batch,), "int64"), g.input("labels", (batch,), "int64")
    table = g.parameter("table", (WORDS, WIDTH), "float64", Initial("normal", 0.5))
    made = [g.embedding(words, WORDS, WIDTH, weight=table)]
    for kind in chance.choices(LAYERS, k=chance.randint(2, 6)):
        x = made[-1] if chance.random() < 0.7 else chance.choice(made)
        if kind == "linear":
            made.append(g.linear(x, WIDTH))
        elif kind == "skip":
            made.append(g.add(x, chance.choice(made)))
        elif kind == "tied":
            made.append(g.linear(g.linear(x, WORDS, False, weight=table), WIDTH))
        elif kind == "softmax":
            made.append(g.softmax(x, 1))
        elif kind == "dropout":
            made.append(g.dropout(x, 0.4))
        elif kind == "layer_norm":
            made.append(g.layer_norm(x, WIDTH))
        else:
            made.append(g.relu(x))
    read = {operand for node in g.nodes for operand in node.operands}
    ends = [tensor for tensor in made if tensor.id not in read]
    whole = ends[0]
    for end in ends[1:]:
        whole = g.add(whole, end)
    loss = g.cross_entropy(g.linear(whole, WORDS, weight=table), labels)
    if chance.random() < 0.4:
        other = g.cross_entropy(g.linear(chance.choice(made), 3), g.input("others", (batch,), "int64"))
        loss = g.call(both, loss, other)[0]
    g.loss(loss)
    return g


def staged(graph: mp.Graph, chance: Random, most: int) -> tuple[list[list[str]], list[list[int]]]:
    """Stages that read only from earlier ones, in a row or beside each other, and the processors of each."""
    stage_of: dict[int, int] = {}
    for node in graph.nodes:
        least = max((stage_of[p.id] for o in node.operands if o is not None and (p := graph.producer(o))), default=0)
        stage_of[node.id] = chance.choice([least, least, min(least + 1, most - 1), chance.randint(least, most - 1)])
    used = sorted(set(stage_of.values()))
    stages = [[node.name for node in graph.nodes if stage_of[node.id] == stage] for stage in used]
    borders = sorted(chance.sample(range(1, PROCESSORS), len(stages) - 1))
    groups = [list(range(*ends)) for ends in zip([0, *borders], [*borders, PROCESSORS], strict=True)]
    return stages, chance.sample(groups, len(groups))


def placed(graph: mp.Graph, node: Node, group: list[int], chance: Random) -> OperatorPlan:
    """A split by any factor, over the processors of a stage, sometimes twice over."""
    degrees = {factor.name: 1 for factor in graph.bound(node).factors}
    if chance.random() < 0.6 and (splittable := [f for f in graph.bound(node).factors if f.highest_degree > 1]):
        factor = chance.choice(splittable)
        degrees[factor.name] = min(factor.extent, chance.choice((2, 3)))
    points = max(degrees.values(), default=1)
    replicas = 2 if len(group) > 1 and chance.random() < 0.2 else 1
    processors = [group[(place + replica) % len(group)] for place in range(points) for replica in range(replicas)]
    return OperatorPlan(tuple(degrees.items()), tuple(processors), replicas)


def perceptron(batch: int, layers: int) -> mp.Graph:
    """A linear layer and a relu for each of some stages; dropout in the first, a loss in the last."""
    g = mp.Graph("perceptron")
    words, labels = g.input("words", (batch,), "int64"), g.input("labels", (batch,), "int64")
    table = g.parameter("table", (WORDS, WIDTH), "float64", Initial("normal", 0.5))
    h = g.dropout(g.embedding(words, WORDS, WIDTH, weight=table), 0.3)
    for _ in range(layers):
        h = g.relu(g.linear(h, WIDTH))
    g.output("scores", h)
    g.loss(g.cross_entropy(h, labels))
    return g


def in_stages(
    graph: mp.Graph, lanes: list[list[int]], order: str, micro_batches: int, again: tuple[str, ...] = ()
) -> Drawn:
    """A chain of operators cut at its linear layers into stages, each lane on a processor of its own.

    Args:
        graph: the operators.
        lanes: the stages of each lane.
        order: of the pipeline.
        micro_batches: of the pipeline.
        again: what is computed again.
    """
    stages: list[list[str]] = [[]]
    count = sum(map(len, lanes))
    for node in graph.nodes:
        if node.operator.name == "linear" and len(stages) < count and any("linear" in name for name in stages[-1]):
            stages.append([])
        stages[-1].append(node.name)
    lane_of = {stage: lane for lane, own in enumerate(lanes) for stage in own}
    where = {name: lane_of[stage] for stage, names in enumerate(stages) for name in names}
    operators = tuple(
        (node.name, OperatorPlan(tuple((f.name, 1) for f in graph.bound(node).factors), (where[node.name],)))
        for node in graph.nodes
    )
    operators = tuple((name, replace(own, recompute=name in again)) for name, own in operators)
    weights = tuple((tensor.name, WeightPlan((1,) * len(tensor.shape), (0,))) for tensor in graph.lasting)
    plan = mp.Plan(graph.fingerprint(), "drawn", operators, weights)
    return Drawn(graph, plan.with_pipeline(stages, order=order, micro_batches=micro_batches), f"{order} {stages}")


def batches(graph: mp.Graph, steps: int) -> list[dict[str, torch.Tensor]]:
    """Whole batches, and last one of a single sample, of which most micro-batches have none."""
    chance = torch.Generator().manual_seed(5)
    sizes = [graph.batch] * (steps - 1) + [1]
    tops = {"words": WORDS, "labels": WIDTH, "others": 3}
    names = [tensor.name for tensor in graph.inputs]
    return [{name: torch.randint(tops[name], (size,), generator=chance) for name in names} for size in sizes]


def trained(drawn: Drawn, plan: mp.Plan, world: World, steps: int = 3) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and parameters of some steps."""
    optimizer = mp.SGD(lr=0.1, momentum=0.9)
    with mp.Trainer(drawn.graph, plan, optimizer=optimizer, seed=1, world=world) as trainer:
        losses = [trainer.step(**batch) for batch in batches(drawn.graph, steps)]
        return losses, trainer.parameters()
