"""Which plan an all-reduce goes by, and what it takes: the table of docs/explanation/movement-plans.md.

    python benchmarks/movement_plans.py [MACHINE ...]

All memories of the machine take part and own equal blocks. The price is the one that schedules are ordered and plans
searched by; `direct` is what it comes to where hosts are not known of, `bound` is 2 (n - 1) / n of the bytes over the
bandwidth of the best route from memory 0. Nothing is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import maniple as mp
from maniple.regions.columns.history import ELEMENTS, GROUP, GROUP_SIZE, KIND, NONE, TOUCHED
from maniple.runtime.schedule.movement_plan import NAMES
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.traffic import Prices, price

MACHINES = ("p100x16", "k80x64", "h100x64")
SIZES = tuple(1 << power for power in range(10, 31, 2))


def all_reduce(network: Network, size: int) -> Prices:
    """The price of an all-reduce of so many bytes."""
    count = len(network.wires[4])
    moves = np.full((1, TOUCHED + 1), NONE, dtype=np.int64)
    moves[0, [KIND, ELEMENTS, GROUP, GROUP_SIZE]] = RowKind.ALL_REDUCE, 2 * (count - 1) * size, 0, count
    members = np.full((count, 4), -(-size // count), dtype=np.int64)
    members[:, 0] = np.arange(count)
    return price(network, 1, moves, members)


def rows(machine: mp.Machine) -> Iterator[tuple[int, str, float, float, float]]:
    """Of each size the plan, and the microseconds of it, of direct, and of the bound."""
    network, count = Network.of(machine), len(machine.memories)
    direct = replace(network, wires=(*network.wires[:7], np.zeros(count, dtype=np.int64)))
    quickest = max(
        min(machine.routes.rate(link)[1] for link in machine.routes.route(0, target)) for target in range(1, count)
    )
    for size in SIZES:
        found = all_reduce(network, size)
        bound = 2 * (count - 1) / count * size / quickest
        taken = found.durations[0] / 1e3, all_reduce(direct, size).durations[0] / 1e3
        yield size, NAMES[found.plans[0]], *taken, bound * 1e6


def main() -> None:
    """Print a table for each machine."""
    for name in sys.argv[1:] or MACHINES:
        print(f"\n| {name}: bytes | plan | us | direct, us | direct / plan | bound, us |\n|---|---|---|---|---|---|")
        for size, plan, taken, direct, bound in rows(mp.Machine.preset(name)):
            print(f"| {size:,} | {plan} | {taken:,.1f} | {direct:,.1f} | {direct / taken:.2f} | {bound:,.1f} |")


if __name__ == "__main__":
    main()
