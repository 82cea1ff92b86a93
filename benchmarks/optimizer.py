"""The fused update of AdamW beside torch's.

    python benchmarks/optimizer.py
    python benchmarks/optimizer.py --mib 1 --rounds 3       tries that it runs

64 MiB of float32 parameters with their gradient and state, on one core. Where arrays lie decides as much as what is
done with them: of sets of equal arrays of one process one takes up to 1.7 times as long as another. So both sides
update the same arrays, in memory as torch gives it and as a trainer on one rank of a host has it, on huge pages
(`runtime/storage/host_bytes.py`); a round takes every side once on each, in an order that goes round, and copies as
many bytes as the parameters have. Times are of the process, medians over the rounds, and ratios medians of the rounds'
own. An update reads four arrays and writes three; its bandwidth is that traffic over its time, and the copy's is what
it reads and writes over its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import click
import torch

import maniple as mp
from maniple.runtime.storage import host_bytes

MOVED = 7
"""Arrays that an update reads or writes."""
MEMORIES: dict[str, Callable[[int], torch.Tensor]] = {
    "torch's": partial(torch.empty, dtype=torch.int8),
    "the trainer's": host_bytes.take,
}
OURS, THEIRS, COPY = "ours", "torch, fused", "copy"


def sides_in(allocate: Callable[[int], torch.Tensor], size: int, row: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What updates or copies the arrays of one memory; both updates of the first step are compared before."""
    value, gradient, mean, square, other = (allocate(4 * size).view(torch.float32) for _ in range(5))
    for each in (value, gradient):
        each.normal_()
    for each in (mean, square, other):
        each.zero_()
    ours = mp.optim.AdamW(lr=1e-3).bind_update(value, gradient, (mean, square), 1, row)
    held, start = torch.nn.Parameter(value), value.clone()
    held.grad = gradient
    theirs = torch.optim.AdamW([held], lr=1e-3, fused=True)
    ours()
    found = value.clone()
    value.copy_(start)
    for each in (mean, square):
        each.zero_()
    theirs.state[held] = {"step": torch.tensor(0.0), "exp_avg": mean, "exp_avg_sq": square}
    theirs.step()
    print(f"largest difference after a step {float((value - found).abs().max()):.1e}")
    return {OURS: ours, THEIRS: theirs.step, COPY: lambda: other.copy_(gradient)}


def process_s(call: Callable[[], object]) -> float:
    """Seconds of the process that a call takes."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


@click.command()
@click.option("--mib", default=64, show_default=True, help="Of parameters.")
@click.option("--rounds", default=30, show_default=True)
def main(mib: int, rounds: int) -> None:
    """Print medians, their ratios, and how near ours comes to a copy."""
    torch.set_num_threads(1)
    size = mib << 18
    optimizer = mp.optim.AdamW(lr=1e-3)
    row = torch.tensor([1, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
    calls = {
        (memory, side): call
        for memory, allocate in MEMORIES.items()
        for side, call in sides_in(allocate, size, row).items()
    }
    times: dict[tuple[str, str], list[float]] = {each: [] for each in calls}
    order = list(calls)
    for step in range(rounds):
        row[0] = step + 2
        for each in order[step % len(order) :] + order[: step % len(order)]:
            times[each].append(process_s(calls[each]))
    for (memory, side), found in times.items():
        arrays, took = 2 if side == COPY else MOVED, statistics.median(found)
        print(f"{memory:14}{side:14}{took * 1e3:9.2f} ms{arrays * 4 * size / took / 1e9:9.2f} GB/s")

    def ratio(first: tuple[str, str], second: tuple[str, str]) -> float:
        return statistics.median(a / b for a, b in zip(times[first], times[second], strict=True))

    for memory in MEMORIES:
        share = MOVED / 2 * ratio((memory, COPY), (memory, OURS))
        print(
            f"in {memory} memory: speed beside torch {ratio((memory, THEIRS), (memory, OURS)):.2f}, share of the "
            f"copy's bandwidth {share:.2f}"
        )
    theirs, ours = MEMORIES
    print(f"ours in {ours} memory beside torch in {theirs}: {ratio((theirs, THEIRS), (ours, OURS)):.2f}")


if __name__ == "__main__":
    main()
