"""The CUDA kernels on a real GPU: each checked against the CPU, and its bandwidth over that of a measured copy.

    python benchmarks/gpu.py             prints a table and one JSON object
    python benchmarks/gpu.py --json      prints the JSON object alone

Bytes are those that the kernel must read and write, each once; the copy moves as many between two buffers of the same
size. A time is the median over rounds of a few launches between two CUDA events. Without a GPU it says so and measures
nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import maniple as mp
from maniple.operators.library.losses import cross_entropy_kernels
from maniple.operators.library.randomness import dropout_kernels
from maniple.regions.rectangle import Rect

LAUNCHES = 10
Launch = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """A kernel bound to memory on the GPU.

    Args:
        name: what the table calls it.
        launch: starts it.
        moved: bytes that it must read and write.
        found: what it wrote.
        expected: what the CPU's kernel wrote.
        tolerance: of the largest difference; 0 for the same bits.
    """

    name: str
    launch: Launch
    moved: int
    found: Tensor
    expected: Tensor
    tolerance: float

    def error(self) -> float:
        """The largest difference after one run from fresh memory."""
        self.launch()
        torch.cuda.synchronize()
        return float((self.found.cpu().double() - self.expected.double()).abs().max())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in single precision, on the CPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def updates(size: int) -> Iterator[Measured]:
    """One step of descent with momentum; launched again, it goes on from where it is."""
    from maniple.operators.training.descent_cuda_kernels import bind_descent

    optimizer = mp.SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
    value, gradient, momentum = (drawn(size, seed=seed) for seed in range(3))
    found, slope, buffer = value.cuda(), gradient.cuda(), momentum.cuda()
    optimizer.bind_update(value, gradient, (momentum,), 1)()
    launch = bind_descent(optimizer, found, slope, (buffer,))
    yield Measured("SGD with momentum", launch, 4 * 5 * size, found, value, 1e-6)


def dropouts(size: int) -> Iterator[Measured]:
    """Dropout of a whole tensor."""
    from maniple.operators.library.randomness.dropout_cuda_kernels import bind_dropout

    shape, clock = (size // 1024, 1024), torch.tensor([0, 3])
    mask, rect, source = dropout_kernels.Mask(7, 0.1), Rect.of_shape(shape), drawn(*shape)
    expected, found = torch.empty(shape), torch.empty(shape, device="cuda")
    dropout_kernels.bind_dropout(mask, shape, rect, clock.numpy(), source, expected)()
    launch = bind_dropout(mask, shape, rect, clock.cuda(), source.cuda(), found)
    yield Measured("dropout", launch, 4 * 2 * source.numel(), found, expected, 0.0)


def losses(size: int) -> Iterator[Measured]:
    """Cross-entropy over many classes, forward and backward."""
    from maniple.operators.library.losses.cross_entropy_cuda_kernels import (
        bind_cross_entropy,
        bind_cross_entropy_backward,
    )

    classes = 32768
    rows = max(1, size // classes)
    logits, labels = drawn(rows, classes), torch.arange(rows) % classes
    share, weights, one = torch.full((1,), 1 / rows), torch.ones(classes), torch.ones(1)
    z, result, slope = torch.empty(rows), torch.empty(1), torch.empty(rows, classes)
    read = [tensor.numpy() for tensor in (logits, labels, share, weights)]
    cross_entropy_kernels.forward(*read, -100, np.float32(0), z.numpy(), result.numpy())
    cross_entropy_kernels.backward(*read, -100, np.float32(0), z.numpy(), one.numpy(), slope.numpy())
    given = [tensor.cuda() for tensor in (logits, labels, share, weights)]
    found_z, found, found_slope = (torch.empty_like(tensor, device="cuda") for tensor in (z, result, slope))
    launch = bind_cross_entropy(*given, -100, 0.0, found_z, found)
    yield Measured("cross-entropy", launch, 4 * logits.numel(), found, result, 1e-4)
    back = bind_cross_entropy_backward(*given, -100, 0.0, found_z, one.cuda(), found_slope)
    yield Measured("cross-entropy backward", back, 8 * logits.numel(), found_slope, slope, 1e-6)


def copies(size: int) -> Iterator[Measured]:
    """Folds of four parts, and a tile of rows of 128 bytes that goes into a row without gaps."""
    from maniple.runtime.storage.copy_cuda_kernels import bind_fold, mover_of

    parts = [drawn(size, seed=seed) for seed in range(4)]
    found = torch.empty(size, device="cuda")
    launch = bind_fold("+", found, [part.cuda() for part in parts])
    if launch is not None:
        yield Measured("fold of four", launch, 4 * 5 * size, found, parts[0] + parts[1] + parts[2] + parts[3], 0.0)
    view = drawn(size // 64, 64)[:, :32]
    near = view.cuda().new_empty(size // 64, 64)[:, :32]
    near.copy_(view)
    with torch.device("cuda"):
        mover = mover_of(near, Rect.of_shape(view.shape))
        if mover is not None:
            row = mover.pack()
            yield Measured(
                "pack of rows", lambda: row.copy_(mover.pack()), 4 * 4 * view.numel(), row, view.reshape(-1), 0
            )


def seconds(launch: Launch, rounds: int) -> float:
    """The median time of one launch, after one round that is not counted."""
    times = []
    for _ in range(rounds + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(LAUNCHES):
            launch()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end) / LAUNCHES)
    return statistics.median(times[1:])


def measure(size: int, rounds: int) -> dict[str, object]:
    """Check every kernel and time it beside a copy that moves as many bytes."""
    kernels = {}
    for make in (updates, dropouts, losses, copies):
        for kernel in make(size):
            error = kernel.error()
            source = torch.empty(kernel.moved // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            copy = seconds(lambda a=target, b=source: a.copy_(b), rounds)  # type: ignore[misc]
            taken = seconds(kernel.launch, rounds)
            kernels[kernel.name] = {
                "GB_per_s": 1e-9 * kernel.moved / taken,
                "over_copy": copy / taken,
                "error": error,
                "right": error <= kernel.tolerance,
            }
    right = all(row["right"] for row in kernels.values())
    told = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "elements": size}
    return {**told, "kernels": kernels, "right": right}


def main() -> int:
    """Measure and print; 1 where a kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--size", type=int, default=1 << 26, help="elements of a tensor")
    parser.add_argument("--rounds", type=int, default=11, help="rounds; figures are medians over them")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        if not given.json:
            print(f"no GPU: {reason}; nothing was measured")
        print(json.dumps({"gpu": None, "reason": reason}))
        return 0
    found = measure(given.size, given.rounds)
    kernels: dict[str, dict[str, float]] = found["kernels"]  # type: ignore[assignment]
    if not given.json:
        print(f"{found['gpu']}, {given.size} elements")
        for name, row in kernels.items():
            verdict = "right" if row["right"] else f"WRONG by {row['error']:g}"
            print(f"  {name:24s} {row['GB_per_s']:8.0f} GB/s   x{row['over_copy']:.2f} of a copy   {verdict}")
    print(json.dumps(found))
    return int(not found["right"])


if __name__ == "__main__":
    raise SystemExit(main())
