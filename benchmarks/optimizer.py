"""The fused update of AdamW beside torch's.

    python benchmarks/optimizer.py

64 MiB of float32 parameters with their gradient and state, on one core. A round updates once with each, in turn, and
copies as many bytes once; times are of the process, medians over the rounds. An update reads four arrays and writes
three; its bandwidth is that traffic over its time, and the copy's is what it reads and writes over its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import maniple as mp

BYTES = 64 << 20
ROUNDS = 15
MOVED = 7
"""Arrays that an update reads or writes."""


def process_s(call: Callable[[], object]) -> float:
    """Seconds of the process that a call takes."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def main() -> None:
    """Print both medians, their ratio, and how near ours comes to a copy."""
    torch.set_num_threads(1)
    size = BYTES // 4
    start, gradient = torch.randn(size), torch.randn(size)
    optimizer = mp.optim.AdamW(lr=1e-3)
    value, states = start.clone(), (torch.zeros(size), torch.zeros(size))
    row = torch.tensor([1, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
    ours = optimizer.bind_update(value, gradient, states, 1, row)
    held = torch.nn.Parameter(start.clone())
    held.grad = gradient
    theirs = torch.optim.AdamW([held], lr=1e-3, fused=True)
    other = torch.empty_like(gradient)
    times: dict[str, list[float]] = {"ours": [], "torch, fused": [], "copy": []}
    for step in range(1, ROUNDS + 1):
        row[0] = step
        times["ours"].append(process_s(ours))
        times["torch, fused"].append(process_s(theirs.step))
        times["copy"].append(process_s(lambda: other.copy_(gradient)))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in medians.items():
        arrays = 2 if name == "copy" else MOVED
        print(f"{name:14s}{found * 1e3:9.2f} ms{arrays * BYTES / found / 1e9:9.2f} GB/s")
    share = MOVED / 2 * medians["copy"] / medians["ours"]
    print(
        f"speed beside torch {medians['torch, fused'] / medians['ours']:.2f}, share of the copy's bandwidth {share:.2f}"
    )
    print(f"largest difference {float((value - held.detach()).abs().max()):.1e}")


if __name__ == "__main__":
    main()
