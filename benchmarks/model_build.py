"""Building graphs of the zoo on meta tensors: seconds and memory, as JSON or a table.

    python benchmarks/model_build.py [--model resnet152] [--rounds 5] [--json]

The first build of a process imports what torch.export needs; it is a small model here, and timed by itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from math import prod
from time import perf_counter

import maniple as mp


def built(name: str) -> tuple[float, mp.Graph]:
    """Seconds of one build, and the graph."""
    begun = perf_counter()
    graph = mp.model(name)
    return perf_counter() - begun, graph


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    first, _ = built("lenet")
    before = peak_bytes()
    seconds, graph = built(given.model)
    grown = peak_bytes() - before
    rounds = [seconds] + [built(given.model)[0] for _ in range(given.rounds - 1)]
    weights = sum(4 * prod(tensor.shape) for tensor in graph.parameters)
    found = {
        "model": given.model,
        "operators": len(graph.nodes),
        "first_build_s": first,
        "build_s": statistics.median(rounds),
        "slowest_s": max(rounds),
        "peak_growth_bytes": grown,
        "weights_bytes": weights,
    }
    if given.json:
        print(json.dumps(found))
        return
    print(f"{given.model}: {len(graph.nodes)} operators, weights of {weights / 2**20:.0f} MiB")
    print(f"first build of the process (lenet, with torch.export's imports)  {first:6.2f} s")
    print(f"median of {len(rounds)} builds                                               {found['build_s']:6.2f} s")
    print(f"growth of the process's peak memory by the first of them      {grown / 2**20:6.0f} MiB")


if __name__ == "__main__":
    main()
