"""Which plan a collective goes by, and what it takes: the tables of docs/explanation/movement-plans.md.

    python benchmarks/movement_plans.py [MACHINE ...]

All memories of the machine take part. In an all-reduce they own equal blocks; what is broadcast, or reduced to one, is
one block of memory 0. The price is the one that schedules are ordered and plans searched by; `direct` is what it comes
to where all goes direct. Nothing is run. Sizes next to each other that go by one plan are one row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

import numpy as np

import maniple as mp
from maniple.regions.columns.history import ELEMENTS, GROUP, GROUP_SIZE, KIND, NONE, TOUCHED
from maniple.runtime.schedule.movement_plan import NAMES
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.traffic import Prices, price

MACHINES = ("p100x4", "p100x16", "k80x4", "k80x64", "v100x8", "v100x32", "h100x8", "h100x64", "cpu:4x1", "cpu:16x1")
SIZES = tuple(1 << power for power in range(8, 31))
EXCHANGES = ("all_reduce", "broadcast", "reduce")


def collective(network: Network, exchange: str, size: int) -> Prices:
    """The price of a collective of so many bytes over all memories."""
    count = len(network.wires[4])
    kinds = {"all_reduce": RowKind.ALL_REDUCE, "broadcast": RowKind.BROADCAST, "reduce": RowKind.REDUCE_SCATTER}
    moves = np.full((1, TOUCHED + 1), NONE, dtype=np.int64)
    times = 2 if exchange == "all_reduce" else 1
    moves[0, [KIND, ELEMENTS, GROUP, GROUP_SIZE]] = kinds[exchange], times * (count - 1) * size, 0, count
    members = np.full((count, 4), -(-size // count), dtype=np.int64)
    if exchange != "all_reduce":
        members[:] = 0
        members[0] = size
    members[:, 0] = np.arange(count)
    return price(network, 1, moves, members)


def rows(machine: mp.Machine, exchange: str) -> Iterator[tuple[int, str, int, float, float]]:
    """Of each size the plan and its pieces, and the microseconds of it and of direct."""
    network = Network.of(machine)
    for size in SIZES:
        found = collective(network, exchange, size)
        taken = found.durations[0] / 1e3, found.direct[0] / 1e3
        yield size, NAMES[found.plans[0]], int(found.pieces[0]), *taken


def main() -> None:
    """Print a table for each exchange."""
    machines = sys.argv[1:] or MACHINES
    for exchange in EXCHANGES:
        print(f"\n{exchange}\n\n| machine | bytes | plan | pieces | us | of direct |\n{'|---' * 6}|")
        for name in machines:
            table = rows(mp.Machine.preset(name), exchange)
            for plan, same in groupby(table, key=lambda row: row[1]):
                few, *_, many = [*same] * 2
                cells = [
                    f"{least:,} to {most:,}" if least != most else f"{most:,}"
                    for least, most in ((few[0], many[0]), (few[2], many[2]))
                ]
                took = f"{few[3]:,.1f} to {many[3]:,.1f}"
                share = f"{few[3] / few[4]:.2f} to {many[3] / many[4]:.2f}"
                print(f"| {name} | {cells[0]} | {plan} | {cells[1]} | {took} | {share} |")


if __name__ == "__main__":
    main()
