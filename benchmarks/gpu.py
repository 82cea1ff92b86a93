"""The CUDA kernels on a real GPU: each checked against the CPU, and its bandwidth over that of a measured copy.

    python benchmarks/gpu.py             prints a table and one JSON object
    python benchmarks/gpu.py --json      prints the JSON object alone

Bytes are those that the kernel must read and write, each once; the copy moves as many between two buffers of the same
size. A time is the median over rounds of a CUDA graph of a few launches, as steps are replayed. Without a GPU it says
so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import maniple as mp
from maniple.operators.library.losses import cross_entropy_kernels
from maniple.operators.library.randomness import dropout_kernels
from maniple.operators.training.block import Block
from maniple.regions.rectangle import Rect
from maniple.runtime.devices.cuda_device import why_no_cuda

LAUNCHES = 10
Launch = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """A kernel bound to memory on the GPU.

    Args:
        name: what the table calls it.
        launch: starts it.
        moved: bytes that it must read and write.
        found: gives what it wrote.
        expected: what the CPU's kernel wrote.
        tolerance: of the largest difference; 0 for the same bits.
    """

    name: str
    launch: Launch
    moved: int
    found: Callable[[], Tensor]
    expected: Tensor
    tolerance: float

    def error(self) -> float:
        """The largest difference after one run from fresh memory."""
        self.launch()
        torch.cuda.synchronize()
        return float((self.found().cpu().double() - self.expected.double()).abs().max())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in single precision on the CPU, drawn on the GPU, which is quicker."""
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").cpu()


def updates(size: int) -> Iterator[Measured]:
    """One step of every optimizer that goes element by element, of one weight and of many; again, they go on."""
    from maniple.operators.training.torch_rule_kernels import RULES

    optimizers = {"SGD with momentum": mp.SGD(lr=0.1, momentum=0.9, weight_decay=0.01), "AdamW": mp.optim.AdamW(1e-3)}
    by_torch = {name: mp.optim.by_torch(getattr(torch.optim, name)) for name in RULES}
    small = min(size, 1 << 25) // 64
    for name, optimizer in {**optimizers, **by_torch}.items():
        row = torch.tensor([3.0, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
        for sizes in [[size], *([[small, 64, 1000] * 21] if name in optimizers else [])]:
            blocks = [Block(*_states(each, len(optimizer.states))) for each in sizes]
            found = [Block(b.value.cuda(), b.gradient.cuda(), tuple(s.cuda() for s in b.states)) for b in blocks]
            for block in blocks[:3]:
                optimizer.bind_update(*block, 2, row)()
            launch = optimizer.bind_updates(found, 1, row.cuda())
            moved = 4 * (3 + 2 * len(optimizer.states)) * sum(sizes)
            expected = _values(blocks)
            shown = f"{name}, {len(sizes)} weights" if len(sizes) > 1 else name
            yield Measured(shown, launch, moved, lambda each=found: _values(each), expected, 1e-5)


def _values(blocks: Sequence[Block]) -> Tensor:
    """The values of the first three."""
    return torch.cat([block.value for block in blocks[:3]])


def _states(size: int, count: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    return drawn(size, seed=0), drawn(size, seed=1), tuple(drawn(size, seed=2 + n).abs() for n in range(count))


def dropouts(size: int) -> Iterator[Measured]:
    """Dropout of a whole tensor."""
    from maniple.operators.library.randomness.dropout_cuda_kernels import bind_dropout
    from maniple.runtime.devices.cuda_kernels import current_stream

    shape, clock = (size // 1024, 1024), torch.tensor([0, 3])
    mask, rect, source = dropout_kernels.Mask(7, 0.1), Rect.of_shape(shape), drawn(*shape)
    expected, found = torch.empty(shape), torch.empty(shape, device="cuda")
    dropout_kernels.bind_dropout(mask, shape, rect, clock.numpy(), source, expected)()
    launch = bind_dropout(mask, shape, rect, clock.cuda(), source.cuda(), found, current_stream())
    yield Measured("dropout", launch, 4 * 2 * source.numel(), lambda: found, expected, 0.0)
    halves, left = source.bfloat16().cuda(), torch.empty(shape, device="cuda", dtype=torch.bfloat16)
    launch = bind_dropout(mask, shape, rect, clock.cuda(), halves, left, current_stream())
    kept = torch.where(expected != 0, (source.bfloat16().float() * float(np.float32(mask.scale))).bfloat16(), 0)
    yield Measured("dropout, bfloat16", launch, 2 * 2 * source.numel(), lambda: left, kept, 0.0)


def losses(size: int) -> Iterator[Measured]:
    """Cross-entropy over many classes, forward and backward."""
    from maniple.operators.library.losses.cross_entropy_cuda_kernels import (
        bind_cross_entropy,
        bind_cross_entropy_backward,
    )
    from maniple.runtime.devices.cuda_kernels import current_stream

    for classes in (32768, 32767, 1000):
        rows = max(1, size // classes)
        logits, labels = drawn(rows, classes), torch.arange(rows) % classes
        share, weights, one = torch.full((1,), 1 / rows), torch.ones(classes), torch.ones(1)
        z, result, slope = torch.empty(rows), torch.empty(1), torch.empty(rows, classes)
        read = cast("Any", [tensor.numpy() for tensor in (logits, labels, share, weights)])
        cross_entropy_kernels.forward(*read, -100, np.float32(0), z.numpy(), result.numpy())
        cross_entropy_kernels.backward(*read, -100, np.float32(0), z.numpy(), one.numpy(), slope.numpy())
        given = cast("Any", [tensor.cuda() for tensor in (logits, labels, share, weights)])
        found_z, found, found_slope = (torch.empty_like(tensor, device="cuda") for tensor in (z, result, slope))
        launch = bind_cross_entropy(*given, -100, 0.0, found_z, found, current_stream())
        yield Measured(f"cross-entropy, {classes}", launch, 4 * logits.numel(), lambda each=found: each, result, 1e-4)
        back = bind_cross_entropy_backward(*given, -100, 0.0, found_z, one.cuda(), found_slope, current_stream())
        shown = f"cross-entropy backward, {classes}"
        yield Measured(shown, back, 8 * logits.numel(), lambda each=found_slope: each, slope, 1e-6)


def copies(size: int) -> Iterator[Measured]:
    """Folds of four parts, and a tile of rows of 128 bytes that goes into a row without gaps and back."""
    from maniple.runtime.storage.copy_cuda_kernels import bind_fold, mover_of

    for dtype in (torch.float32, torch.bfloat16):
        parts = [drawn(size, seed=seed).to(dtype) for seed in range(4)]
        sums = torch.empty(size, device="cuda", dtype=dtype)
        launch = bind_fold("+", sums, [part.cuda() for part in parts])
        if launch is not None:
            moved, expected = dtype.itemsize * 5 * size, parts[0] + parts[1] + parts[2] + parts[3]
            yield Measured(
                f"fold of four, {dtype}".replace("torch.", ""), launch, moved, lambda each=sums: each, expected, 0.0
            )
    view = drawn(size // 32, 64)[:, :32]
    near = view.cuda().new_empty(size // 32, 64)[:, :32]
    near.copy_(view)
    with torch.device("cuda"):
        mover = mover_of(near, Rect.of_shape(view.shape))
        if mover is not None:
            row = mover.pack()
            yield Measured(
                "pack of rows", lambda: mover.pack(row), 4 * 2 * view.numel(), lambda: row, view.reshape(-1), 0
            )
            yield Measured("unpack of rows", lambda: mover.unpack(row), 4 * 2 * view.numel(), lambda: near, view, 0)


def pools(size: int) -> Iterator[Measured]:
    """Pools of 2 by 2 and of 3 by 3, whose windows lie one over another, forward and backward."""
    from maniple.operators.library.windows.pooling_cuda_kernels import AVG_POOL_KERNELS, MAX_POOL_KERNELS
    from maniple.operators.operator.operator import BackwardTensors, ForwardTensors

    x = drawn(max(1, size >> 20), 64, 128, 128)
    for reach, before in ((2, 0), (3, 1)):
        tile = SimpleNamespace(padding=((before, before),) * 2, operand_rects=(Rect.of_shape(x.shape),))
        window = SimpleNamespace(name="pool", kernel_size=(reach, reach), stride=(2, 2))
        context: Any = SimpleNamespace(operator=window, tile=tile)
        for name, kernels in (("max", MAX_POOL_KERNELS), ("mean", AVG_POOL_KERNELS)):
            leaf = x.clone().requires_grad_()
            pool = F.max_pool2d if name == "max" else F.avg_pool2d
            expected = pool(leaf, reach, 2, before)
            slope = drawn(*expected.shape, seed=1)
            expected.backward(slope)
            near, result, back = (
                x.cuda(),
                torch.empty(expected.shape, device="cuda"),
                torch.empty_like(x, device="cuda"),
            )
            saved = (torch.zeros(result.shape, dtype=torch.int64, device="cuda"),) * (name == "max")
            moved = 4 * x.numel() + (12 if saved else 4) * result.numel()
            shown = f"{name} of {reach} by {reach}"
            launch = kernels.bind_forward(context, ForwardTensors((near,), (result,), saved))
            yield Measured(shown, launch, moved, lambda each=result: each, expected.detach(), 1e-6)
            given = BackwardTensors((slope.cuda(),), (near,), (result,), saved, (back,))
            launch = kernels.bind_backward(context, given)
            yield Measured(f"{shown}, backward", launch, moved, lambda each=back: each, cast("Tensor", leaf.grad), 1e-6)


def seconds(launch: Launch, rounds: int) -> float:
    """The median time of one launch of a CUDA graph of some, after one round that is not counted."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(LAUNCHES):
            launch()
    times = []
    for _ in range(rounds + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end) / LAUNCHES)
    return statistics.median(times[1:])


def each(size: int, rounds: int) -> Iterator[tuple[str, dict[str, float | bool]]]:
    """Check every kernel and time it beside a copy that moves as many bytes; each is told as it is found."""
    torch.cuda.set_stream(torch.cuda.Stream())  # the default one cannot be captured
    for make in (updates, dropouts, losses, copies, pools):
        for kernel in make(size):
            error = kernel.error()
            source = torch.empty(kernel.moved // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            copy = seconds(lambda a=target, b=source: a.copy_(b), rounds)  # type: ignore[misc]
            taken = seconds(kernel.launch, rounds)
            yield (
                kernel.name,
                {
                    "GB_per_s": 1e-9 * kernel.moved / taken,
                    "over_copy": copy / taken,
                    "error": error,
                    "right": error <= kernel.tolerance,
                },
            )


def measure(size: int, rounds: int) -> dict[str, object]:
    """Every kernel, by name."""
    kernels = dict(each(size, rounds))
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
        reason = why_no_cuda()
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
            print(f"  {name:30s} {row['GB_per_s']:8.0f} GB/s   x{row['over_copy']:.2f} of a copy   {verdict}")
    print(json.dumps(found))
    return int(not found["right"])


if __name__ == "__main__":
    raise SystemExit(main())
