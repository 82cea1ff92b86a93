"""The lower bound against the fastest plan: small graphs drawn by number, each searched exhaustively.

    python benchmarks/lower_bound.py --graphs 300

A graph has up to four operators (layers, a convolution, activations, a softmax, a skip), and a machine two processors
in one memory or in two. Prints the shares of the fastest plan's time that the bound has: none may be above 1.
"""

from __future__ import annotations

import argparse
import json
from random import Random
from statistics import median

import maniple as mp
from maniple.strategies.bound import lower_bound_s

MACHINES = ("cpu:2", "cpu:2x1", "p100x2", "k80x2", "h100x2")


def drawn(seed: int) -> tuple[mp.Graph, mp.Machine]:
    """The graph and the machine of a number."""
    chance = Random(seed)
    graph = mp.Graph(f"drawn{seed}")
    batch, width, classes = (chance.choice(sizes) for sizes in ([4, 32, 256], [4, 64, 1024], [2, 10]))
    y = graph.input("y", (batch,), dtype="int64")
    kind = chance.choice(["deep", "deep", "relu", "softmax", "skip", "image"])
    if kind == "image":
        side = chance.choice([5, 15])
        image = graph.conv2d(graph.input("x", (batch, 2, side, side)), chance.choice([3, 15]), 3, padding=1)
        logits = graph.linear(graph.flatten(image), classes)
    else:
        hidden = graph.linear(graph.input("x", (batch, width)), classes if kind == "skip" else 2 * width)
        hidden = graph.softmax(hidden, 1) if kind == "softmax" else graph.relu(hidden) if kind == "relu" else hidden
        logits = graph.add(hidden, graph.relu(hidden)) if kind == "skip" else graph.linear(hidden, classes)
    graph.loss(graph.cross_entropy(logits, y))
    return graph, mp.Machine.preset(chance.choice(MACHINES))


def share(seed: int) -> float:
    """The bound's share of the time of the fastest plan."""
    graph, machine = drawn(seed)
    plan = mp.search(graph, machine, strategy="exhaustive", proposals=10**9)
    if plan.predicted.step_s is None or not dict(dict(plan.explanation)[""])["exact"]:
        raise SystemExit(f"graph {seed}: the search did not end")
    return lower_bound_s(graph, machine) / plan.predicted.step_s


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=300)
    shares = sorted(share(seed) for seed in range(parser.parse_args().graphs))
    found = {"graphs": len(shares), "least": shares[0], "median": median(shares), "greatest": shares[-1]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
