"""Trains a perceptron of two stages on two ranks as a pipeline: `pipelined.py OUT ORDER MICRO_BATCHES RANK [ACTION]`.

Rank 0 writes to OUT what there was: losses, parameters, and of one recorded step which rank ran what from when to when.
With an action, such as `1B0`, the rank is killed as it begins with it in the fourth step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import maniple as mp
from maniple.operators.lowering import operator_body
from maniple.operators.plan.plan import OperatorPlan, WeightPlan
from maniple.operators.rules.tile import split_range

BATCH, WIDTH, STEPS, FAULT = 24, 6, 4, 3
STAGES = (("linear", "relu"), ("linear_1", "cross_entropy"))
FIRST = {"0F": ("linear", "forward"), "1F": ("linear_1", "forward"), "0B": ("relu", "backward")}
FIRST |= {"1B": ("cross_entropy", "backward")}


def network() -> mp.Graph:
    """Two linear layers, in double precision."""
    g = mp.Graph("perceptron")
    x, labels = g.input("x", (BATCH, WIDTH), "float64"), g.input("labels", (BATCH,), "int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, WIDTH)), WIDTH), labels))
    return g


def whole(graph: mp.Graph) -> mp.Plan:
    """A stage on each processor, and no pipeline."""
    operators = tuple(
        (
            node.name,
            OperatorPlan(tuple((f.name, 1) for f in graph.bound(node).factors), (int(node.name in STAGES[1]),)),
        )
        for node in graph.nodes
    )
    weights = tuple(
        (tensor.name, WeightPlan((1,) * len(tensor.shape), (int("_1" in tensor.name),))) for tensor in graph.lasting
    )
    return mp.Plan(graph.fingerprint(), "by hand", operators, weights)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of the steps."""
    chance = torch.Generator().manual_seed(4)
    return [
        (
            torch.randn(BATCH, WIDTH, generator=chance, dtype=torch.float64),
            torch.randint(WIDTH, (BATCH,), generator=chance),
        )
        for _ in range(STEPS)
    ]


def kill_at(action: str, micro_batches: int) -> None:
    """Have this process end itself as the first operator of an action begins, in a step."""
    name, does = FIRST[action[:2]]
    first, _ = split_range(BATCH, micro_batches)[int(action[2:])]
    binder = operator_body.ForwardBinder if does == "forward" else operator_body.BackwardBinder
    method = "__call__" if does == "forward" else "bind_adding"
    bind: Callable[..., Callable[[], object]] = getattr(binder, method)
    seen: list[int] = []

    def deadly(self: operator_body.ForwardBinder, point: int, views: Sequence[object], *rest: object) -> object:
        body = bind(self, point, views, *rest)
        if self.node.name != name or self.tiles[point].range("b")[0] != first:
            return body

        def run() -> object:
            seen.append(point)
            if len(seen) > FAULT:
                os.kill(os.getpid(), signal.SIGKILL)
            return body()

        return run

    setattr(binder, method, deadly)


def main(out: Path, order: str, micro_batches: int, rank: int, action: str) -> None:
    """Train, and kill or write."""
    graph = network()
    plan = whole(graph).with_pipeline(STAGES, order=order, micro_batches=micro_batches)
    world = mp.world()
    pids = [int.from_bytes(part, "big") for part in world.control.gather(os.getpid().to_bytes(4, "big"))]
    if action and world.rank == rank:
        kill_at(action, micro_batches)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1, momentum=0.9), seed=1) as trainer:
        losses = []
        for step, (x, labels) in enumerate(batches()):
            if step == 1:
                print("pids", *pids, flush=True)  # noqa: T201 - the test reads it
            losses.append(trainer.step(x, labels))
        parameters = {name: value.tolist() for name, value in trainer.parameters().items()}
        with mp.record() as recording:
            trainer.step(*batches()[0])
        spans = [
            (span.lane, span.name, span.start_ns, span.end_ns)
            for span in recording.timeline.spans
            if span.category == "task"
        ]
    if world.rank == 0:
        out.write_text(json.dumps({"losses": losses, "parameters": parameters, "ran": spans}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else "")
