"""Asks for a pipeline without a flush that cannot be, or steps one by one through one: `flow_refused.py WHAT`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "oracles"))

from chained_stages import batches, chain, flowing, staged

import maniple as mp


def normed() -> tuple[mp.Graph, mp.Plan]:
    """A batch norm over all samples in the first of two stages."""
    graph = mp.Graph("normed")
    x, y = graph.input("x", (4, 5), "float64"), graph.input("y", (4,), "int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.batch_norm(graph.linear(x, 5)), 5), y))
    names = [node.name for node in graph.nodes]
    return graph, staged(graph, [names[:2], names[2:]], "stash")


def main(what: str) -> None:
    """Ask for it."""
    graph, optimizer = chain(2), mp.SGD(lr=0.1)
    plan = flowing(graph, 2, "spectrain" if what == "optimizer" else "stash")
    if what == "batch_norm":
        graph, plan = normed()
    elif what == "stage":
        whole = mp.search(graph, mp.Machine.detect(), strategy="data_parallel").with_pipeline(
            order="asynchronous", micro_batches=1
        )
        plan = replace(whole, semantics=(("weights", "stash"),))
    with mp.Trainer(graph, plan, optimizer=optimizer, seed=1) as trainer:
        sizes = (4, 4, 2, 4) if what == "size" else (4, 4, 4)
        for (x, y), size in zip(batches(len(sizes)), sizes, strict=True):
            sys.stdout.write(f"loss {trainer.step(x=x[:size], y=y[:size]):.3f}\n")


if __name__ == "__main__":
    main(sys.argv[1])
